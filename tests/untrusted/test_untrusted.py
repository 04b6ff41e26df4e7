"""What passes the border, and in which words the rest is refused."""

import os

import pytest

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_json_object, reading
from cxrjax.untrusted.foreign_files import decode_text, read_bytes, read_lines, read_text
from cxrjax.untrusted.json_text import parse_json, parse_object
from cxrjax.untrusted.names import file_name, path_inside


def test_devices_pipes_and_folders_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", "/dev/stdin", tmp_path / "pipe"):
        with pytest.raises(ForeignError, match="device or pipe"):
            read_bytes(path)
    with pytest.raises(ForeignError, match="a folder"):
        read_bytes(tmp_path)
    for path in ("a\0b", "\ud800"):
        with pytest.raises(ForeignError, match="can have this name"):
            read_bytes(path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "missing")


def test_files_and_lines_are_read_up_to_their_limits(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(ForeignError, match="more than the 4 bytes"):
        read_bytes(path, 4)
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbfone\n\n  \nfour")
    assert list(read_lines(path)) == [(1, b"one\n"), (4, b"four")]
    with pytest.raises(ForeignError, match="a line of more than 3 bytes"):
        list(read_lines(path, longest=3))
    path = tmp_path / "file"
    path.write_bytes("\ufeffphổi\r\n".encode())
    assert read_text(path) == "phổi\r\n"
    with pytest.raises(ForeignError, match=r"not UTF-8 text \(byte 2\)"):
        decode_text(b"ab\xff")


def test_json_is_refused_beyond_its_bounds(subtests):
    rows = [(b"", "EOF"), (b"{} {}", "trailing"), ('{"a": 1}'.encode("utf-16"), "not UTF-8")]
    rows += [(text, "recursion limit") for text in (b"[" * 100_000, b"[" * 210 + b"]" * 210)]
    rows += [(b'{"a": "\\ud800"}', "hex escape"), ('"\ud800"', "half of a surrogate pair")]
    rows += [(b'"\xff"', r"not UTF-8 text \(byte 1\)")]
    long = ("1" * 309, '{"a": 1e5, "b": [0.' + "0" * 700 + "1]}", "1" * 5_000)
    rows += [(text, "more than 308 digits") for text in long]
    for text, words in rows:
        with subtests.test(ascii(text[:99])), pytest.raises(ForeignError, match=words):
            parse_json(text)
    with pytest.raises(ForeignError, match="4,000,001 entries, at most 4,000,000"):
        parse_json(b"[" + b"0," * 3_999_999 + b"0,0]")
    assert len(parse_json(b"[" + b"0," * 3_999_998 + b"0]")) == 3_999_999
    assert parse_json('"' + "," * 3_999_000 + '"')
    assert parse_json("[Infinity, -Infinity]") == [float("inf"), float("-inf")]
    for text in ("[NaN]", "[Infinity]"):
        with pytest.raises(ForeignError, match="not JSON"):
            parse_json(text, finite=True)


def test_json_that_is_read():
    assert parse_json(b'\xef\xbb\xbf{"a": [1, 2.5, null, "ph\xe1\xbb\x95i"]}') == {
        "a": [1, 2.5, None, "phổi"]
    }
    assert parse_json("1" * 308) == int("1" * 308)
    assert parse_json("[" * 200 + "]" * 200)
    assert parse_json('["' + "1" * 300 + '", 1]')
    with pytest.raises(ForeignError, match="expected a JSON object, found list"):
        parse_object("[]")
    with pytest.raises(ForeignError, match="5 bytes, at most 4"):
        parse_json("[1,2]", most=4)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "a\nb", "\ud800", "ế" * 99],
)
def test_a_name_that_leads_elsewhere_names_no_file(name):
    with pytest.raises(ForeignError):
        file_name(name)


def test_names_of_people_pass_and_faults_name_the_file(tmp_path):
    for name in ("train", "phổi 1", "a.b-c_d", "...", "ế" * 66):
        assert file_name(name) == name
    path = tmp_path / "deep.json"
    path.write_bytes(b"[" * 10_000)
    with pytest.raises(UserError, match=r"deep\.json: not JSON .*; write or fetch it again"):
        read_json_object(path)
    with pytest.raises(UserError, match="here: odd; mend it"), reading("here", hint="mend it"):
        raise ForeignError("odd")


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "a/" + "b" * 300, "a/" * 1_500]
)
def test_a_path_stays_inside_of_its_folder(tmp_path, name):
    with pytest.raises(ForeignError):
        path_inside(tmp_path, name)
    assert path_inside(tmp_path, "a/b..c/d.png") == tmp_path / "a" / "b..c" / "d.png"
