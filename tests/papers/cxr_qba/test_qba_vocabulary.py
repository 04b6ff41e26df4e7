"""Definitions beside the release's numbers, and where a folder's bytes are."""

import json

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions
from cxrjax.papers.cxr_qba.construct.folder_size import folder_bytes
from cxrjax.papers.cxr_qba.construct.vocabulary import table, unused_names
from cxrjax.papers.cxr_qba.statistics import RELEASE_DEFINITIONS
from cxrjax.radiology_text.definitions import load_definitions


@pytest.fixture
def source(tmp_path):
    image = {"image_id": "i1", "image_hw": [100, 100], "view": "PA"}
    image["boxes"] = {"left lung": [[50, 10, 90, 80]], "third left rib": [[50, 10, 90, 20]]}
    study = {"patient_id": "p1", "study_id": "s1", "sections": {"findings": "No effusion."}}
    path = tmp_path / "studies.jsonl"
    path.write_text(json.dumps(study | {"images": [image]}))
    return path


def test_what_differs_is_listed_with_its_reason(source, tmp_path):
    definitions = load_definitions()
    text = table(definitions)
    for name, (theirs, why) in RELEASE_DEFINITIONS.items():
        (row,) = [
            line for line in text.splitlines() if line.startswith(f"| {name} ".replace("_", " "))
        ]
        ours = int(row.split("|")[2])
        assert f"| {ours} | {theirs} | {ours - theirs:+} | {why} |" in row and why
    numbers = {name: theirs for name, (theirs, _) in RELEASE_DEFINITIONS.items()}
    assert numbers["localized_regions"] + numbers["other_regions"] == numbers["regions"]
    without = [one.name for one in definitions.regions.values() if not one.localized]
    assert f"No box ({len(without)})" in text and all(name in text for name in without)
    assert unused_names(source, definitions) == {"third left rib": 1}

    out = tmp_path / "out"
    QbaBuilder(QbaOptions(source, out)).build()
    built = json.loads((out / "statistics.json").read_text())["definitions/regions"]
    assert (built["value"], built["paper"]) == (len(definitions.regions), 310) and built["note"]


def test_every_byte_of_a_folder_is_told(source, tmp_path):
    out = tmp_path / "out"
    QbaBuilder(QbaOptions(source, out, lean=True)).build()
    questions, files, fields = folder_bytes(out)
    lines = [line for f in out.glob("records/*.jsonl") for line in f.read_bytes().splitlines(True)]
    assert questions == len(lines)
    assert sum(files.values()) == sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    told = sum(fields.values()) * questions
    assert told == pytest.approx(sum(map(len, lines)), rel=0.05)
    assert {"answers.text", "image_path"} <= fields.keys() and "generator" not in fields
    with pytest.raises(UserError, match="no records"):
        folder_bytes(tmp_path)
