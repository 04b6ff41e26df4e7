"""The synthetic set: layout, text that follows from the phantom, lengths."""

import json
import random
import unicodedata

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.records import read_records
from cxrjax.simulation.vix_ray import (
    LesionCentre,
    SyntheticVixRayOptions,
    grammar,
    word_report,
    write_synthetic,
)

_LESIONS = st.lists(
    st.builds(LesionCentre, st.sampled_from(CLASSES), st.floats(0, 1), st.floats(0, 1)), max_size=8
)


def stems(sentences):
    """What a sentence says, places apart."""
    return [sentence.split("{")[0] for sentence in sentences]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("synthetic")
    build.main(
        ["--dataset=vix_ray_synthetic", "--images=11", "--validation_images=2", "--seed=3"]
        + ["--long_side=64", "--processes=1", "--segmenter=syllables", f"--out={out}"]
    )
    return out


def test_the_layout_is_the_releases_in_a_folder_of_its_own(made, tmp_path):
    table = pyarrow.parquet.read_table(made / "native" / "train-00000-of-00001.parquet")
    assert table.schema.names == [
        *("image", "findings", "impressions", "Ages", "sex", "view", "Ghi chú", "Kỹ thuật")
    ]
    rows = table.to_pylist()
    assert len(rows) == 11 and set(rows[0]["image"]) == {"bytes", "path"}
    forms = ["NFC" if unicodedata.is_normalized("NFC", r["findings"]) else "NFD" for r in rows]
    assert forms == ["NFC"] * 9 + ["NFD", "NFC"]
    (tmp_path / "train-0.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="not of this set"):
        write_synthetic(SyntheticVixRayOptions(tmp_path, 1, 1, long_side=64))


def test_records_say_that_they_are_synthetic(made):
    records = list(read_records(made / "records" / "train.jsonl"))
    assert len(records) == 44
    assert {r.dataset for r in records} == {"vix_ray_synthetic"}
    assert all(r.generator and r.generator.version.startswith("v2, phantoms") for r in records)
    assert "Synthetic" in (made / "tables.md").read_text()
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["synthetic"] and manifest["splits"]["train"]["stages"]["stage3"]
    # No sentence of ours looks like a person's.
    quality = json.loads((made / "quality.json").read_text())
    assert not [name for name in quality["warnings"] if name.startswith("possible")]


def test_the_same_seed_gives_the_same_files_and_they_are_not_made_again(made, tmp_path):
    again = SyntheticVixRayOptions(tmp_path, images=11, validation_images=2, seed=3, long_side=64)
    write_synthetic(again)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 3
    for name in files:
        first, second = (pyarrow.parquet.read_table(f / name) for f in (made / "native", tmp_path))
        assert first.equals(second)
    times = [(tmp_path / name).stat().st_mtime_ns for name in files]
    write_synthetic(again)
    assert times == [(tmp_path / name).stat().st_mtime_ns for name in files]
    other = SyntheticVixRayOptions(tmp_path, images=11, validation_images=2, seed=4, long_side=64)
    write_synthetic(other)
    assert times != [(tmp_path / name).stat().st_mtime_ns for name in files]


@pytest.mark.parametrize(
    "options",
    [{"images": 0}, {"seed": -1}, {"long_side": 10}, {"normal_percent": 101}, {"conspicuity": 0}],
)
def test_impossible_sizes_are_refused(tmp_path, options):
    with pytest.raises(UserError):
        SyntheticVixRayOptions(**{"out": tmp_path, "images": 1, "validation_images": 1} | options)


@given(_LESIONS, st.integers(0, 1000))
def test_findings_name_every_class_and_deny_none(lesions, seed):
    report, words = word_report(lesions, random.Random(f"{seed}")), grammar()
    labels = {lesion.label for lesion in lesions}
    for label, sentences in words["present"].items():
        said = any(stem and stem in report.findings for stem in stems(sentences))
        assert said >= (label in labels)
    for topic in words["normal"].values():
        if labels & set(topic["unless"]):
            assert not any(sentence in report.findings for sentence in topic["sentences"])
    advised = [classes for text, classes in words["advice"].items() if text in report.impression]
    assert all(labels & set(classes) for classes in advised)
    if not labels:
        assert any(sentence in report.impression for sentence in words["normal_impression"])
    for text in (report.findings, report.impression):
        assert "{" not in text and text.endswith(".")
        assert unicodedata.is_normalized("NFC", text)


@pytest.mark.parametrize(("x", "side"), [(0.2, "phổi phải"), (0.8, "phổi trái")])
def test_the_patients_right_is_on_the_images_left(x, side):
    report = word_report([LesionCentre("Nodule/Mass", x, 0.1)], random.Random("0"))
    assert f"1/3 trên {side}" in report.findings and side in report.impression
