"""Records, predictions, logs and checksums that nobody meant well, as the commands read them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.results.curves import read_series
from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import read_predictions
from cxrjax.evaluation.run_record import split_hashes
from cxrjax.evaluation.scoring_run import system_names
from cxrjax.files import KeyedLines, read_json_lines, replace_text
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import read_records
from cxrjax.records_io.own_records import OwnRecordsBuilder, OwnRecordsOptions
from cxrjax.training.metric_log import _cut_after
from cxrjax.training.store import find_damage
from tests.untrusted.conftest import CASES

RECORD = {
    "dataset": "custom",
    "split": "train",
    "image_id": "i",
    "image_path": "i.png",
    "question_id": "q",
    "question": "What?",
    "question_type": "What",
    "answers": [{"text": "Nothing."}],
}
# Each in place of a value that is a text.
HOSTILE = ["[" * 100_000, "[" * 210 + "]" * 210, '"\\ud800"', "1" * 5_000, '"\udc80"', "{"]
READERS = {
    "records": lambda path: list(read_records(path)),
    "a records source": RecordSource,
    "predictions": read_predictions,
    "a training log": read_series,
    "splits": split_hashes,
    "lines": lambda path: list(read_json_lines(path, "", "hint")),
    "a metric log": lambda path: _cut_after(path, 5),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_line_is_named(tmp_path, reader, subtests):
    path = tmp_path / "file.jsonl"
    good = json.dumps({**RECORD, "text": "a", "step": 1, "task": "facts"})
    for value in HOSTILE:
        bad = good.replace('"q"', value).encode("utf-8", "surrogateescape")
        path.write_bytes(bad + b"\n")
        with subtests.test(ascii(value[:99])):
            if (reader, value) == ("predictions", '"\\ud800"'):
                [prediction] = read_predictions(path)
                assert prediction.problems == (("half_character", "text"),)  # counted, and scored
                continue
            with pytest.raises(UserError, match=r"file\.jsonl:1: ") as caught:
                READERS[reader](path)
            assert len(str(caught.value)) < 500


@pytest.mark.parametrize("reader", READERS)
def test_devices_and_pipes_are_refused_at_once(tmp_path, reader):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match="device or pipe"):
            READERS[reader](path)


SPLITS = ["../../x", "/tmp/x", "a/b", "..", "a\\b", "a\0b", "a\nb", "x" * 300]


@pytest.mark.parametrize("split", SPLITS, ids=range(len(SPLITS)))
def test_a_split_names_a_file_of_the_build_and_no_other(tmp_path, split):
    source, out = tmp_path / "source", tmp_path / "a" / "b" / "out"
    source.mkdir()
    Image.fromarray(np.arange(1200, dtype=np.uint8).reshape(40, 30)).save(source / "i.png")
    lines = [RECORD, {**RECORD, "question_id": "r", "split": split}]
    file = source / "records.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    OwnRecordsBuilder(OwnRecordsOptions(source, out)).build()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "source"]
    assert [path.name for path in (out / "records").iterdir()] == ["train.jsonl"]
    (entry,) = json.loads((out / "quality.json").read_text())["set_aside"]
    assert (entry["reason"], entry["where"]) == ("invalid_record", "records.jsonl:2")
    assert entry["found"].startswith("split: ")
    with pytest.raises(UserError, match=r"records\.jsonl:2: split: "):
        list(read_records(file))


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    page = tmp_path / "index.html"
    replace_text(page, "old")
    with pytest.raises(UserError, match=r"index\.html: cannot be written: half of a surrogate"):
        replace_text(page, "new \ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert page.read_text() == "old"


def test_checksums_name_files_of_their_folder(tmp_path, subtests):
    rows = [('{"sha256": {"%s": "a"}}' % ("a" * 5000), "at most")]
    rows += [('{"sha256": ' + "[" * 100_000, "cannot be read")]
    for content, found in [*rows, *CASES["checksums_name_files_of_their_folder"]]:
        if '"pipe"' in content:  # the last
            os.mkfifo(tmp_path / "pipe")
        (tmp_path / "checksums.json").write_text(content)
        with subtests.test(content[:99]):
            assert found in find_damage(tmp_path)
            assert find_damage(tmp_path, ["params"]) != ""


def test_a_system_has_a_name_that_can_be_written(tmp_path):
    for name in ("a\udcff", "a\nb", "", "x" * 300):
        with pytest.raises(UserError, match="choose another --name"):
            system_names([tmp_path / "p.jsonl"], [name])
    assert list(system_names([tmp_path / "p.jsonl"], ["org/model"])) == ["org/model"]


def test_lines_are_not_kept_in_a_device():
    with pytest.raises(UserError, match="not a regular file; pass another --cache"):
        KeyedLines(Path("/dev/zero"), "--cache", "a", len, dict)
