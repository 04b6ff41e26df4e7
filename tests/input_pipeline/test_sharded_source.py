"""Questions in shards: the elements of the file, chosen by the table, refused where broken."""

import collections
import itertools
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.input_pipeline.loader import single_source, train_loader
from cxrjax.input_pipeline.sharded_source import ShardedSource, _element_starts, parse_selection
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import read_records, write_records
from cxrjax.records_io.shards import by_image
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from cxrjax.training.data import open_records

from .conftest import assert_equal, take

GRADES = ("A++", "A", "B", None)


@pytest.fixture
def built(records_file):
    """A finished build: grades and views vary, one image has no size."""
    root = records_file.parent.parent
    records = [
        record.model_copy(
            update={
                "grade": GRADES[number % 4],
                "view": ("PA", "AP")[number % 2],
                "image_hw": None if record.image_id == "image3" else record.image_hw,
                "study_id": "s1",
            }
        )
        for number, record in enumerate(read_records(records_file))
    ]
    write_records(records_file, by_image(records))
    (root / "manifest.json").write_text('{"dataset": "test"}')
    return root


@pytest.fixture
def sharded(built, tmp_path):
    """`sharded(3)`: the build in three shards."""

    def write(shards):
        out = tmp_path / f"shards{shards}"
        flags = [f"--source={built}", f"--out={out}", f"--num_shards={shards}"]
        build.main(["--dataset=shards", *flags])
        return out

    return write


@pytest.mark.parametrize("select", [(), ("view=AP",)])
def test_sizes_of_images_are_those_of_the_records(sharded, select):
    source = ShardedSource(sharded(3), "train", questions_per_image=3, select=select)
    expected = [list(source[element].records[0].image_hw) for element in range(len(source))]
    assert source.image_sizes().tolist() == expected and len(expected) > 2


def elements(source):
    return [[record.question_id for record in source[n].records] for n in range(len(source))]


def test_whom_shards_are_about_is_read_an_image_at_a_time(built, sharded, monkeypatch):
    path = built / "records/train.jsonl"
    unsized = {n for n, r in enumerate(read_records(path)) if r.image_hw is None}
    files = RecordSource(path, questions_per_image=3, exclude=unsized)
    for select in [(), ("view=AP",)]:
        stored = ShardedSource(sharded(3), "train", built, 2, select)
        records = [record for _, record in stored.records()]
        expected = {"image": len({record.image_id for record in records})}
        if patients := len({record.patient_id for record in records} - {None}):
            expected["patient"] = patients
        read = []
        with monkeypatch.context() as patched:
            once = ShardedSource.record
            patched.setattr(
                ShardedSource,
                "record",
                lambda self, n, f=once, read=read: read.append(n) or f(self, n),
            )
            found = stored.identities()
        assert len(read) == expected["image"] < len(records)
        assert found.shared_with([files.identities()]) == expected
    assert stored.findings == files.findings


def test_one_shard_has_the_elements_of_the_file(built, sharded):
    path = built / "records/train.jsonl"
    unsized = {n for n, r in enumerate(read_records(path)) if r.image_hw is None}
    files = RecordSource(path, questions_per_image=3, exclude=unsized)
    stored = ShardedSource(sharded(1), "train", built, questions_per_image=3)
    assert elements(stored) == elements(files)
    assert (stored.num_questions, stored.without_size) == (files.num_questions, len(unsized))
    assert stored.num_images == files.num_images
    for number in range(len(files)):
        assert stored[number] == files[number]
    assert list(stored.records()) == list(files.records())
    with pytest.raises(IndexError):
        stored[len(stored)]


def test_a_sample_is_drawn_from_what_the_conditions_leave(sharded):
    folder = sharded(3)
    whole = ShardedSource(folder, "train", select=["view=PA"])
    ids = [record.question_id for _, record in whole.records()]
    drawn = ShardedSource(folder, "train", select=["view=PA", "sample=3"])
    chosen = [record.question_id for _, record in drawn.records()]
    assert drawn.num_questions == len(set(chosen)) == 3 < len(ids)
    assert [one for one in ids if one in chosen] == chosen  # in the order of the shards
    again = ShardedSource(folder, "train", select=["sample=3", "view=PA"])
    assert elements(again) == elements(drawn) and again.fingerprint == drawn.fingerprint
    more = ShardedSource(folder, "train", select=["view=PA", "sample=1000000"])
    assert elements(more) == elements(whole) and more.fingerprint != whole.fingerprint
    # Another choice is another draw: every question comes up.
    seen = collections.Counter()
    for questions_per_image in range(1, 40):
        one = ShardedSource(folder, "train", None, questions_per_image, ["view=PA", "sample=3"])
        seen.update(record.question_id for _, record in one.records())
    assert seen.keys() == set(ids) and seen.total() == 3 * 39


@pytest.mark.parametrize("questions_per_image", [1, 2, 8])
def test_shards_have_the_same_elements_in_another_order(sharded, questions_per_image):
    one, four = (
        ShardedSource(sharded(n), "train", questions_per_image=questions_per_image) for n in (1, 4)
    )
    assert sorted(elements(one)) == sorted(elements(four))
    assert one.fingerprint != four.fingerprint


@pytest.mark.parametrize(
    ("select", "holds"),
    [
        (("grade=A|A++",), lambda r: r.grade in ("A", "A++")),
        (("grade=none",), lambda r: r.grade is None),
        (("grade=none|B", "view=AP"), lambda r: r.grade in (None, "B") and r.view == "AP"),
        (("finding=ILD",), lambda r: r.variables["finding"] == "ILD"),
    ],
)
def test_what_is_chosen(built, sharded, select, holds):
    source = ShardedSource(sharded(3), "train", select=select)
    sized = [r for r in read_records(built / "records/train.jsonl") if r.image_hw]
    expected = {r.question_id for r in sized if holds(r)}
    found = list(itertools.chain(*elements(source)))
    assert set(found) == expected and len(found) == len(expected) == source.num_questions


def test_a_choice_is_kept_and_copies_in_other_processes_read_the_same(sharded):
    out = sharded(2)
    first = ShardedSource(out, "train", select=("grade=A",))
    for table in out.glob("records/*.parquet"):
        table.unlink()
    again = ShardedSource(out, "train", select=("grade=A",))
    assert elements(again) == elements(first) and again.fingerprint == first.fingerprint
    with pytest.raises(UserError, match="not there, and the manifest names it"):
        ShardedSource(out, "train", select=("grade=B",))
    source = ShardedSource(sharded(2), "train", questions_per_image=2)
    before = elements(source)
    assert elements(pickle.loads(pickle.dumps(source))) == before


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_batches(built, sharded, tokenizer, config, workers):
    path = built / "records/train.jsonl"
    unsized = {n for n, r in enumerate(read_records(path)) if r.image_hw is None}
    files = RecordSource(path, questions_per_image=3, exclude=unsized)
    stored = ShardedSource(sharded(1), "train", built, questions_per_image=3)
    settings = {"global_batch_size": 2, "seed": 5, "workers": workers}
    found = []
    for source in (files, stored):
        with train_loader(single_source(source, config), tokenizer, **settings) as loader:
            found.append(take(loader, 4))
    for expected, batch in zip(*found, strict=True):
        assert_equal(expected, batch)


def test_a_damaged_shard_is_named(sharded):
    out = sharded(1)
    (shard,) = out.glob("records/*.array_record")
    content = bytearray(shard.read_bytes())
    content[200:240] = bytes(40)
    shard.write_bytes(content)
    with pytest.raises(UserError, match=r"\.array_record: has the hash .*, the manifest"):
        ShardedSource(out, "train")
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["splits"]["train"]["shards"][0]["records_sha256"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    source = ShardedSource(out, "train")
    with pytest.raises(UserError, match=r"\.array_record:0: damaged \(.*build it again") as caught:
        elements(source)
    assert "\n" not in str(caught.value)
    for positions in out.glob("selections/*/positions"):
        positions.write_bytes(b"\xff" * positions.stat().st_size)
    with pytest.raises(UserError, match="damaged selection; remove the folder"):
        elements(ShardedSource(out, "train"))
    of = [{"train": {"shards": [{"name": x, "questions": 1}] * 2}} for x in ("../x", "x")]
    for splits in (1, {"train": 1}, *of):
        (out / "manifest.json").write_text(json.dumps({"splits": splits}))
        with pytest.raises(UserError, match=r"no split|expected shards|cannot name|2 times"):
            ShardedSource(out, "train")


def test_training_opens_them(built, sharded):
    config = default_config()
    config.data.train = str(sharded(2))
    config.data.select = ("view=PA",)
    config.data.findings = ("ILD", "Cardiomegaly")
    opened = open_records(typed_config(config), "train")
    records = [record for _, record in opened.source.records()]
    assert records and {record.view for record in records} == {"PA"}
    assert {record.variables["finding"] for record in records} <= {"ILD", "Cardiomegaly"}
    config.data.train = str(built / "records/train.jsonl")
    with pytest.raises(UserError, match="is for folders of shards"):
        open_records(typed_config(config), "train")


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 4))
def test_elements_begin_at_images_and_when_full(sizes, most):
    images = np.repeat(np.arange(len(sizes)) * 3, sizes)
    starts = [*_element_starts(images, most), len(images)]
    held = [images[a:b].tolist() for a, b in itertools.pairwise(starts)]
    assert list(itertools.chain(*held)) == images.tolist()
    assert all(0 < len(one) <= most and len(set(one)) == 1 for one in held)
    counts = collections.Counter(one[0] for one in held)
    assert counts == {3 * n: -(-size // most) for n, size in enumerate(sizes)}


@pytest.mark.parametrize("condition", ["grade", "colour=red", "=A"])
def test_conditions_that_are_none(condition):
    with pytest.raises(UserError, match="expected COLUMN=VALUE"):
        parse_selection([condition])
    with pytest.raises(UserError, match="each column once"):
        parse_selection(["view=PA", "view=AP"])


def test_folders_that_cannot_be_read(sharded):
    out = sharded(2)
    with pytest.raises(UserError, match="no split 'test', found"):
        ShardedSource(out, "test")
    with pytest.raises(UserError, match="no question of split train"):
        ShardedSource(out, "train", select=("grade=D",))
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["questions"] += 1
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="rows, the manifest has"):
        ShardedSource(out, "train")
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match="cannot be read"):
        ShardedSource(out, "train")
