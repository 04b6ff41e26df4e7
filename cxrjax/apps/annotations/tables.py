"""Tables as text: their separator, their header, and each row with its line.

Cells are separated by commas, semicolons, tabs or bars. A quoted cell may have a few lines; a quote
that is not closed within them costs its own line.
"""

import codecs
import collections
import csv
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cxrjax.apps.annotations.folder import IMAGE_ENDINGS, Folder
from cxrjax.errors import ForeignError, UserError
from cxrjax.untrusted.foreign_files import MIB, decode_text, read_bytes
from cxrjax.untrusted.json_text import parse_json
from cxrjax.untrusted.names import shown

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
SAMPLE = 50  # rows that tell the separator and the content of columns
_SAID_SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_MOST_COLUMNS = 4_096
_MOST_LINES = 50  # of a row
_VIA3_HEADER, _VIA3_OPTIONS = "# CSV_HEADER =", "# ATTRIBUTE ="
_WORD = re.compile(r"\w*[^\W\x00-\x7f]\w*")
_OTHER_LETTERS = re.compile(rb"[\x80-\xff]{3}")
NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d+)?")


class Rows(NamedTuple):
    """A table's cells with the line of each row, and lines that are no rows.

    Attributes:
        doubt: an example of what a guess at the letters gives, "" where they are clear.
        options: of VIA 3, by attribute.
    """

    header: list[str]
    rows: list[tuple[int, list[str]]]
    broken: list[tuple[int, str]]
    separator: str
    path: Path
    doubt: str = ""
    options: Any = None

    def fault(self, told: str, role: str = "") -> UserError:
        """An error about the header that lists its columns where a flag can name one."""
        value = "'A+B+C+D'" if role == "box" else "NAME"
        found = ", ".join(map(shown, self.header[:30]))
        listed = f"; found {found}; pass --columns={role}={value}" if role else ""
        return UserError(f"{self.path}:1: {told}{listed}")


def table(path: Path, folder: Folder, most: int | None = None) -> Rows:
    """The rows of a file; the first is the header unless it holds a box or names an image.

    Raises:
        ForeignError: it is no table.
    """
    whole, doubt = _decode(read_bytes(path))
    lines = whole.splitlines()
    start = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = next((one for one in lines[: min(start, SAMPLE)] if one.startswith(_VIA3_HEADER)), "")
    options = None
    if header:
        listed = [one for one in lines[:SAMPLE] if one.startswith(_VIA3_OPTIONS)]
        options = parse_json(listed[0].removeprefix(_VIA3_OPTIONS)) if listed else None
        start -= 1
        lines[start] = header.removeprefix(_VIA3_HEADER).strip()
    # Excel's own first line states what separates cells.
    said = _SAID_SEPARATOR.fullmatch(lines[0].strip()) if lines else None
    separator = said[1] if said else _separator(lines[start:])
    rows: list[tuple[int, list[str]]] = []
    broken: list[tuple[int, str]] = []
    start = max(start, bool(said))
    ahead = iter(range(start, len(lines)))
    for at in ahead:
        if not lines[at].strip(f" \t{separator}"):
            continue
        text = [f"{line}\n" for line in lines[at : _end_of_row(lines, at)]]
        reader = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=True)
        try:
            cells = next(reader)
            if reader.line_num > 1 and rows and len(cells) != len(rows[0][1]):
                raise csv.Error(f"{len(cells)} cells in {reader.line_num} lines")
        except (csv.Error, StopIteration) as error:
            broken.append((at + 1, f"{error}; is a quote not closed?"))
            continue
        collections.deque(itertools.islice(ahead, reader.line_num - 1), 0)
        rows.append((at + 1, [cell.strip() for cell in cells]))
        if most and len(rows) > most:
            break
    if not rows:
        raise ForeignError("an empty table")
    first = rows[0][1]
    if len(first) > _MOST_COLUMNS:
        raise ForeignError(f"{len(first):,} columns")
    names_image = any(one.lower().endswith(IMAGE_ENDINGS) and folder.has(one) for one in first)
    found = Rows(first, rows[1:], broken, separator, path, doubt, options)
    if sum(map(is_number, first)) >= 4 or names_image:
        return found._replace(header=[], rows=rows)
    return found


def _end_of_row(lines: Sequence[str], at: int) -> int:
    """The line behind a row, whose quotes all close; the next one if they do not within a few."""
    is_open = False
    for end, line in enumerate(lines[at : at + _MOST_LINES], at + 1):
        is_open ^= line.count('"') % 2 == 1
        if not is_open:
            return end
    return at + 1


def _decode(content: bytes) -> tuple[str, str]:
    """The text of a table, and a word of it where it is read as Windows-1252 for want of UTF-8.

    What has letters of UTF-8 too, or many others in a row (of Russian or Chinese), is neither.
    """
    doubt = ""
    try:
        marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = content.decode("utf-16") if marked else decode_text(content)
    except UnicodeDecodeError:
        raise ForeignError("not UTF-16, as its first bytes suggest; save it as UTF-8") from None
    except ForeignError:
        text = content.decode("cp1252", "replace")
        is_mixed = not content.decode("utf-8", "ignore").isascii()
        if is_mixed or _OTHER_LETTERS.search(content) or "\ufffd" in text:
            raise
        word = _WORD.search(text)
        doubt = word[0][:30] if word else shown(text[:20])
    if "\0" in text:
        raise ForeignError("zero bytes in it; save the table as UTF-8")
    return text, doubt


def _separator(lines: Sequence[str]) -> str:
    """Returns the most frequent separator of the first line, outside of quotes and brackets."""
    first = next((line for line in lines if line.strip()), "")[:MIB]
    counts = dict.fromkeys(SEPARATORS, 0)
    depth, quoted = 0, False
    for sign in first:
        quoted ^= sign == '"'
        depth = max(0, depth + (sign in "[(") - (sign in "])"))
        if sign in counts and not depth and not quoted:
            counts[sign] += 1
    return max(counts, key=counts.__getitem__)


def is_number(cell: str) -> bool:
    return bool(NUMBER.fullmatch(cell))
