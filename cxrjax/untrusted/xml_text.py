"""XML of others: of bounded size and depth, without document types and entities of its own."""

import codecs
import re
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

from cxrjax.errors import ForeignError

_DEEPEST = 200
_MOST_CHARACTERS = 2**24
_ENCODINGS = ("utf-8", "ascii", "iso8859-1", "cp1252")
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DECLARED = re.compile(r"""\s*<\?xml[^<>]{0,200}?\sencoding\s*=\s*["']([^"']{1,40})["']""")


class _ShallowTree(TreeBuilder):
    """Builds a tree that is not deep: functions of trees call themselves for each floor."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> Element:  # type: ignore[override]
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ForeignError(f"XML nested deeper than {_DEEPEST}")
        return super().start(tag, attributes)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def decode_xml(content: bytes) -> str:
    """The text of an XML file, by its mark, else as its declaration says, else as UTF-8.

    Raises:
        ForeignError: it is not in that encoding, or that is none of UTF-8, UTF-16 with a mark,
            ASCII, Latin-1 and Windows-1252.
    """
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise ForeignError("XML in UTF-32; save it as UTF-8")
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if encoding is None:
        # What may be declared here has ASCII at the same places.
        declared = _DECLARED.match(content[:400].decode("latin-1"))
        name = declared[1] if declared else "utf-8"
        try:
            encoding = codecs.lookup(name).name
        except (LookupError, ValueError):
            encoding = name
        if encoding not in _ENCODINGS:
            raise ForeignError(f"XML in the encoding {name!r}; save it as UTF-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise ForeignError(f"byte {error.start} is not {name}; save it as UTF-8") from None


def parse_xml(text: str) -> Element:
    """The root of an XML document.

    Raises:
        ForeignError: it is not XML, too long, nested deeper than 200, or declares a document type,
            in which entities would stand.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ForeignError(f"XML of {len(text):,} characters, at most {_MOST_CHARACTERS:,}")
    if "<!DOCTYPE" in text:
        raise ForeignError("XML with a document type or entities of its own; expected none")
    parser = XMLParser(target=_ShallowTree())
    try:
        # A text's declaration no longer decides how it is read.
        parser.feed(text)
        return parser.close()
    except ForeignError:
        raise
    except (ParseError, ValueError) as error:
        raise ForeignError(f"not XML: {error}") from None
