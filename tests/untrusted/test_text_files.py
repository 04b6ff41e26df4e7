"""Text files, XML, NumPy files and JSON arrays that nobody meant well, as commands read them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.results.curves import read_series
from cxrjax.errors import ForeignError, UserError
from cxrjax.evaluation.predictions import read_predictions
from cxrjax.evaluation.run_record import split_hashes
from cxrjax.evaluation.scoring_run import system_names
from cxrjax.files import KeyedLines, read_json_lines, replace_text
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import read_records
from cxrjax.records_io.own_records import OwnRecordsBuilder, OwnRecordsOptions
from cxrjax.training.metric_log import _cut_after
from cxrjax.training.store import find_damage
from cxrjax.untrusted.arrays import read_array
from cxrjax.untrusted.json_stream import read_items
from cxrjax.untrusted.xml_text import decode_xml, parse_xml
from tests.papers.cases import data
from tests.untrusted.conftest import CASES

RECORD = data(__file__)["record"]
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


def test_arrays_come_back_and_what_cannot_be_written_leaves_what_was_there(tmp_path):
    page = tmp_path / "index.html"
    replace_text(page, "old")
    with pytest.raises(UserError, match=r"index\.html: cannot be written: half of a surrogate"):
        replace_text(page, "new \ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert page.read_text() == "old"
    for array in (np.arange(6.0).reshape(2, 3), np.zeros((2, 0)), np.ones(3, np.int8)):
        np.save(tmp_path / "a.npy", array)
        if array.size:  # what has no cells cannot be mapped
            np.testing.assert_array_equal(read_array(tmp_path / "a.npy", 6), array)


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


def test_names_lines_and_items_are_read_one_by_one(tmp_path):
    for name in ("a\udcff", "a\nb", "", "x" * 300):
        with pytest.raises(UserError, match="choose another --name"):
            system_names([tmp_path / "p.jsonl"], [name])
    assert list(system_names([tmp_path / "p.jsonl"], ["org/model"])) == ["org/model"]
    with pytest.raises(UserError, match="not a regular file; pass another --cache"):
        KeyedLines(Path("/dev/zero"), "--cache", "a", len, dict)
    path = tmp_path / "a.json"
    items = [{"a": [1, 2.5, None, "phổi"], "b": {}}, 1, "x" * 999, []] * 500
    for text in (json.dumps(items), "\ufeff" + json.dumps(items, indent=2, ensure_ascii=False)):
        path.write_text(text, encoding="utf-8")
        for longest in (999 + 2, 2_000, 2**20):
            assert list(read_items(path, longest)) == items
    path.write_text(" [ ] ")
    assert list(read_items(path)) == []


def npy(shape, kind="<f8", content=b""):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + content


def test_arrays_that_are_refused(tmp_path, subtests):
    shapes = ((1 << 40, 1 << 20), (1 << 62, 8), (-5,), (10**400,), "(" * 60 + ")" * 60, "()")
    no_arrays = [npy(shape) for shape in shapes]
    no_arrays += [npy((3, 3), content=bytes(71)), npy((2,), "|O", bytes(16)), b"PK\3\4", b""]
    heads = (b"\1\0\xff\xff", b"\2\0\xff\xff\xff\xff", b"\x09\0")
    no_arrays += [b"\x93NUMPY" + head for head in heads]
    others = [(npy((3, 3), content=bytes(72)), "at most 8 numbers")]
    others += [(npy((2,), "<c16", bytes(32)), "expected real numbers")]
    for content, words in [*((one, "no .npy file") for one in no_arrays), *others]:
        (tmp_path / "a.npy").write_bytes(content)
        with subtests.test(content[:99]), pytest.raises(ForeignError, match=words):
            read_array(tmp_path / "a.npy", 8)


def test_arrays_of_json_that_are_refused(tmp_path, subtests):
    rows = [(text.encode(), words) for text, words in CASES["arrays_of_json_that_are_refused"]]
    rows += [(b'["\xff"]', "no UTF-8"), (b"[" + b"[" * 300 + b"]" * 300 + b"]", "recursion limit")]
    rows += [(start * 1_000_000, "too deep") for start in (b"[", b'[{"a":')]
    rows += [(b"[" + b"1" * count + b"]", "digits") for count in (5_000, 400)]
    long = [b'["' + b"a" * count + b'"]' for count in (3_000_000, 1_500_000)]
    long += [b"[" + b" " * 3_000_000 + b"1]"]
    rows += [(text, "more than 1,048,576 characters") for text in long]
    for text, words in rows:
        (tmp_path / "a.json").write_bytes(text)
        with subtests.test(text[:99]), pytest.raises(ForeignError, match=words):
            list(read_items(tmp_path / "a.json"))


def document(encoding, text="é"):
    return f'<?xml version="1.0" encoding="{encoding}"?><a b="c">{text}</a>'


def test_encodings_that_are_read():
    pairs = {"UTF-8": "utf-8-sig", "utf-16": "utf-16", "ISO-8859-1": "latin-1"}
    pairs |= {"windows-1252": "cp1252", "utf-8": "utf-8"}
    # A mark says more than the declaration.
    for declared, written in [*pairs.items(), ("utf-8", "utf-16")]:
        root = parse_xml(decode_xml(document(declared).encode(written)))
        assert (root.text, root.get("b")) == ("é", "c"), (declared, written)
    assert parse_xml(decode_xml("<a>phổi</a>".encode())).text == "phổi"
    with pytest.raises(ForeignError, match="byte 3 is not UTF-8"):
        decode_xml(b"<a>\xe9</a>")
    with pytest.raises(ForeignError, match="is not ASCII"):
        decode_xml(document("us-ascii").encode())


def test_encodings_and_documents_that_are_refused(subtests):
    names = "utf-32 utf-7 cp037 shift_jis no-such base64 idna unicode_escape x\0"
    for encoding in names.split(" "):
        refused = pytest.raises(ForeignError, match=r"XML in the encoding .*; save it as UTF-8")
        with subtests.test(ascii(encoding)), refused:
            decode_xml(document(encoding).encode())
    with pytest.raises(ForeignError, match="XML in UTF-32"):
        decode_xml(document("utf-8").encode("utf-32"))
    deep = ("<a>" * 201 + "</a>" * 201, "<a>" * 300_000)
    others = [("<a>\ud800</a>", "not XML"), (" " * (2**24 + 1), "at most")]
    others += [(text, "deeper than 200") for text in deep]
    for text, words in [*CASES["documents_that_are_refused"], *others]:
        with subtests.test(ascii(text[:99])), pytest.raises(ForeignError, match=words):
            parse_xml(text)


def test_floors_count_while_they_are_entered():
    assert len(parse_xml("<a>" + "<b><c/></b>" * 1_000 + "</a>")) == 1_000
    assert parse_xml("<a>" * 200 + "</a>" * 200).tag == "a"
    with pytest.raises(ForeignError, match="deeper than 200"):
        parse_xml("<a>" * 150 + "<b/>" + "<a>" * 60 + "</a>" * 210)
