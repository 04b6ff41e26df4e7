"""XML: which encodings and documents are read, and in which words the rest is refused."""

import pytest

from cxrjax.border.xml_text import decode_xml, parse_xml
from cxrjax.errors import ForeignError


def document(encoding, text="é"):
    return f'<?xml version="1.0" encoding="{encoding}"?><a b="c">{text}</a>'


@pytest.mark.parametrize(
    ("declared", "written"),
    [
        ("utf-8", "utf-8"),
        ("UTF-8", "utf-8-sig"),
        ("utf-16", "utf-16"),
        ("utf-8", "utf-16"),  # the mark says more than the declaration
        ("ISO-8859-1", "latin-1"),
        ("windows-1252", "cp1252"),
    ],
)
def test_encodings_that_are_read(declared, written):
    root = parse_xml(decode_xml(document(declared).encode(written)))
    assert (root.text, root.get("b")) == ("é", "c")


def test_without_a_declaration_it_is_utf8():
    assert parse_xml(decode_xml("<a>phổi</a>".encode())).text == "phổi"
    with pytest.raises(ForeignError, match="byte 3 is not UTF-8"):
        decode_xml(b"<a>\xe9</a>")
    with pytest.raises(ForeignError, match="is not ASCII"):
        decode_xml(document("us-ascii").encode())


@pytest.mark.parametrize(
    "encoding",
    ["utf-32", "utf-7", "cp037", "shift_jis", "no-such", "base64", "idna", "unicode_escape", "x\0"],
)
def test_encodings_that_are_refused(encoding):
    with pytest.raises(ForeignError, match=r"XML in the encoding .*; save it as UTF-8"):
        decode_xml(document(encoding).encode())
    with pytest.raises(ForeignError, match="XML in UTF-32"):
        decode_xml(document("utf-8").encode("utf-32"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not XML"),
        ("<a>", "not XML"),
        ("<a>\0</a>", "not XML"),
        ("<a>\ud800</a>", "not XML"),
        ("<a b='1' b='2'/>", "not XML"),
        ("<a>&b;</a>", "not XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "entities of its own"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "document type"),
        ("<a>" * 201 + "</a>" * 201, "deeper than 200"),
        ("<a>" * 300_000, "deeper than 200"),
        (" " * (2**24 + 1), "at most"),
    ],
)
def test_documents_that_are_refused(text, words):
    with pytest.raises(ForeignError, match=words):
        parse_xml(text)


def test_a_floor_that_is_left_does_not_count():
    assert len(parse_xml("<a>" + "<b><c/></b>" * 1_000 + "</a>")) == 1_000
    assert parse_xml("<a>" * 200 + "</a>" * 200).tag == "a"


def test_a_floor_that_is_entered_again_counts():
    with pytest.raises(ForeignError, match="deeper than 200"):
        parse_xml("<a>" * 150 + "<b/>" + "<a>" * 60 + "</a>" * 210)
