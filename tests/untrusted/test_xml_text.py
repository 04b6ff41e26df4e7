"""XML: which encodings and documents are read, and in which words the rest is refused."""

import pytest

from cxrjax.errors import ForeignError
from cxrjax.untrusted.xml_text import decode_xml, parse_xml
from tests.untrusted.conftest import CASES


def document(encoding, text="é"):
    return f'<?xml version="1.0" encoding="{encoding}"?><a b="c">{text}</a>'


def test_encodings_that_are_read():
    pairs = {"UTF-8": "utf-8-sig", "utf-16": "utf-16", "ISO-8859-1": "latin-1"}
    pairs |= {"windows-1252": "cp1252", "utf-8": "utf-8"}
    # A mark says more than the declaration.
    for declared, written in [*pairs.items(), ("utf-8", "utf-16")]:
        root = parse_xml(decode_xml(document(declared).encode(written)))
        assert (root.text, root.get("b")) == ("é", "c"), (declared, written)


def test_without_a_declaration_it_is_utf8():
    assert parse_xml(decode_xml("<a>phổi</a>".encode())).text == "phổi"
    with pytest.raises(ForeignError, match="byte 3 is not UTF-8"):
        decode_xml(b"<a>\xe9</a>")
    with pytest.raises(ForeignError, match="is not ASCII"):
        decode_xml(document("us-ascii").encode())


def test_encodings_that_are_refused(subtests):
    names = "utf-32 utf-7 cp037 shift_jis no-such base64 idna unicode_escape x\0"
    for encoding in names.split(" "):
        refused = pytest.raises(ForeignError, match=r"XML in the encoding .*; save it as UTF-8")
        with subtests.test(ascii(encoding)), refused:
            decode_xml(document(encoding).encode())
    with pytest.raises(ForeignError, match="XML in UTF-32"):
        decode_xml(document("utf-8").encode("utf-32"))


def test_documents_that_are_refused(subtests):
    deep = ("<a>" * 201 + "</a>" * 201, "<a>" * 300_000)
    others = [("<a>\ud800</a>", "not XML"), (" " * (2**24 + 1), "at most")]
    others += [(text, "deeper than 200") for text in deep]
    for text, words in [*CASES["documents_that_are_refused"], *others]:
        with subtests.test(ascii(text[:99])), pytest.raises(ForeignError, match=words):
            parse_xml(text)


def test_a_floor_that_is_left_does_not_count():
    assert len(parse_xml("<a>" + "<b><c/></b>" * 1_000 + "</a>")) == 1_000
    assert parse_xml("<a>" * 200 + "</a>" * 200).tag == "a"


def test_a_floor_that_is_entered_again_counts():
    with pytest.raises(ForeignError, match="deeper than 200"):
        parse_xml("<a>" * 150 + "<b/>" + "<a>" * 60 + "</a>" * 210)
