"""Turns a sound file into a hostile one: by bytes, and by what its kind is made of."""

import csv
import gzip
import io
import itertools
import json
import random
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import PurePosixPath

LONGEST = 2**20  # bytes of a case, by mutators that do not mean it to be large
REPEATED = 200_000
KEY = "sk-canary-0123456789"  # what no message and no file may hold

TEXTS = [
    *("", " ", "\x00", ".", "..", "~", "-", "--help", "@", "#", "a/b", "a\\b", "C:\\x", "CON"),
    *("../../../escaped", "../outside/secret.txt", "/dev/zero", "/etc/passwd", "/proc/self/mem"),
    *("a" * 300, "a" * 5_000, "é" * 300, "\u202e", "\ufeff", "\u2028", "\x85", "\x1b[2J", "\r"),
    *("</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{7*7}}", "{0}"),
    *("%s%n", "=1+1", "'; DROP TABLE rating; --", "NaN", "inf", "1e400", "-1", "9" * 400, "0x10"),
    *("file:///etc/passwd", "http://127.0.0.1:9/x", "__class__", KEY, KEY[:12] + "\n" + KEY[12:]),
    *(
        "<loc0001>" * 40,
        "[" * 3_000,
        "(" * 3_000,
        "(a+)+$",
        "a b " * 2_000,
        "\n" * 2_000,
        "٣",
        "１",
    ),
]


def _nested(opening: str, inner: str, closing: str, depth: int) -> str:
    return opening * depth + inner + closing * depth


NUMBERS = [
    *("0", "-0.0", "-1", "1", "2", "1.5", "1e400", "-1e400", "1e-400", "NaN", "Infinity"),
    *("-Infinity", "1" + "0" * 400, "-1" + "0" * 5_000, "255", "65536", "2147483647"),
    *("2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "1000000000"),
    *("-9223372036854775809", "1e308", "1e9", "1e18"),
]
LEAVES = [
    *NUMBERS,
    *map(json.dumps, TEXTS),
    *("true", "false", "null", "[]", "{}", "[[]]", '[""]', "[null]", "[1,2,3,4]", '{"a":1}'),
    *(r'"\ud800"', r'"\udfff\ud800"', r'"a\udc00b"', r'"\u0000"', '"' + "x" * 300_000 + '"'),
    *(_nested("[", "1", "]", depth) for depth in (50, 190, 2_000, 100_000)),
    *(_nested('{"a":', "1", "}", depth) for depth in (190, 2_000, 100_000)),
    *("[" * 3_000, "[" + "0," * 20_000 + "0]", "[" + "[]," * 20_000 + "[]]", "01", "'a'", "{,}"),
]
INTEGERS = [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 100, 127, 128, 255, 256, 1023, 1024]
INTEGERS += [4096, 32767, 32768, 65500, 65535, 65536, 2**20, 2**24, 10**9, 2**31 - 1, 2**31]
INTEGERS += [2**32 - 1, 2**32, 2**40, 2**60, 2**61, 2**63 - 1, 2**63, 2**64 - 1]

Rng = random.Random
Mutator = Callable[[Rng, bytes], bytes]


def mutated(rng: Rng, name: str, data: bytes, others: list[bytes]) -> bytes:
    """A hostile neighbour of a file; its kind is told by the name's ending."""
    structured = BY_ENDING.get(name.rpartition(".")[2], ())
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        if len(data) > LONGEST:
            break
        if structured and rng.random() < 0.7:
            data = rng.choice(structured)(rng, data)
        elif others and rng.random() < 0.05:
            data = _splice(rng, data, rng.choice(others))
        else:
            data = rng.choice(_BYTES)(rng, data)
    return data


def _span(rng: Rng, data: bytes, longest: int = 64) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randrange(1, longest + 1))


def _flip(rng: Rng, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _bit(rng: Rng, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(rng: Rng, data: bytes) -> bytes:
    at, _ = _span(rng, data)
    new = rng.choice((rng.randbytes(rng.randrange(1, 33)), b"\0" * 8, b"\xff" * 8, b"\xef\xbb\xbf"))
    return data[:at] + new + data[at:]


def _delete(rng: Rng, data: bytes) -> bytes:
    start, end = _span(rng, data, 1 << rng.randrange(1, 12))
    return data[:start] + data[end:]


def _again(rng: Rng, data: bytes) -> bytes:
    start, end = _span(rng, data, 1 << rng.randrange(1, 12))
    times = min(rng.choice((1, 2, 30, 1000)), max(REPEATED - len(data), 0) // max(end - start, 1))
    return data[:start] + data[start:end] * (times + 1) + data[end:]


def _cut(rng: Rng, data: bytes) -> bytes:
    return data[: rng.choice((rng.randrange(len(data) + 1), max(len(data) - 1, 0)))]


def _splice(rng: Rng, data: bytes, other: bytes) -> bytes:
    start, end = _span(rng, other, len(other) + 1)
    at, until = _span(rng, data, len(data) + 1)
    return data[:at] + other[start:end] + data[until:]


def _integer(rng: Rng, data: bytes) -> bytes:
    """An interesting number in the place of 1, 2, 4 or 8 bytes; heads of files more often."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(min(len(data), rng.choice((64, 512, len(data) + 1))), 1))
    number = (rng.choice(INTEGERS) - rng.choice((0, 0, 1))) % 2 ** (8 * width)
    return data[:at] + number.to_bytes(width, rng.choice(("little", "big"))) + data[at + width :]


_BYTES: tuple[Mutator, ...] = (_flip, _bit, _insert, _delete, _again, _cut, _integer)


def _repeated(rng: Rng, data: bytes) -> bytes:
    """A piece of the text over and over, up to 200 kB: what backtracking and squares hang on."""
    start, end = _span(rng, data, rng.choice((1, 2, 5, 20, 80)))
    piece = data[start:end] or b"["
    most = max(REPEATED - len(data), 0) // len(piece)
    return data[:start] + piece * min(rng.choice((10, 500, most)), most) + data[end:]


def _word(rng: Rng, data: bytes) -> bytes:
    """A hostile text in the place of a word or number."""
    words = list(itertools.islice(re.finditer(rb"[\w.+-]+", data), 5_000))
    start, end = rng.choice(words).span() if words else (0, 0)
    new = rng.choice(TEXTS + NUMBERS).encode("utf-8", "surrogatepass")
    return data[:start] + new + data[end:]


def _line(rng: Rng, data: bytes) -> bytes:
    """A line twice, away, elsewhere, or ended otherwise."""
    lines = data.splitlines(keepends=True) or [b""]
    at = rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[at:at] = [lines[at]] * rng.choice((1, 2, 300))
    elif kind == 2:
        lines.insert(at, lines.pop())
    elif kind == 3:
        lines[at] = lines[at].rstrip(b"\r\n") + rng.choice((b"", b"\r", b"\r\n", b"\n\n", b"\0\n"))
    else:
        other = rng.choice(("utf-16", "utf-32", "cp1252", "utf-7"))
        lines[at] = lines[at].decode("utf-8", "replace").encode(other, "replace")
    return b"".join(lines)[: 4 * LONGEST]


_TEXT: tuple[Mutator, ...] = (_repeated, _word, _word, _line)


class _Raw(str):
    """JSON as it is written."""


def _written(value: object) -> str:
    if isinstance(value, _Raw):
        return value
    if isinstance(value, dict):
        pairs = (
            f"{k if isinstance(k, _Raw) else json.dumps(k)}:{_written(value[k])}" for k in value
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _places(value: object, found: list) -> list:
    if isinstance(value, dict | list) and len(found) < 3_000:
        for key in value if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            _places(value[key], found)
    return found


def _json(rng: Rng, data: bytes) -> bytes:
    """One value, key or item of a JSON text otherwise, away, more, or of another type."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return rng.choice(_TEXT)(rng, data)
    places = _places(whole, [])
    if not places or rng.random() < 0.02:
        return rng.choice(LEAVES).encode()
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind <= 2:
        holder[key] = _Raw(rng.choice(LEAVES))
    elif kind == 3:
        del holder[key]
    elif kind == 4:
        other, place = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[place])) if place in _keys(other) else None
    elif isinstance(holder, dict):
        new = _Raw(rng.choice([json.dumps(rng.choice(TEXTS)), json.dumps(key), r'"\ud800"']))
        holder[_Raw(new + " ")] = holder.pop(key) if kind == 5 else _Raw(rng.choice(LEAVES))
    else:
        most = 4 * LONGEST // max(len(_written(holder[key])), 1)
        holder[key:key] = [holder[key]] * min(rng.choice((1, 2, 50, 1_500)), most)
    try:
        return _written(whole).encode("utf-8", "surrogatepass")
    except (RecursionError, MemoryError):
        return data


def _keys(value: object) -> object:
    return value if isinstance(value, dict) else range(len(value))  # type: ignore[arg-type]


def _json_line(rng: Rng, data: bytes) -> bytes:
    lines = data.splitlines() or [b"{}"]
    at = rng.randrange(len(lines))
    lines[at] = _json(rng, lines[at])
    return b"\n".join(lines) + b"\n"


def _cell(rng: Rng, data: bytes) -> bytes:
    """A cell otherwise; a cell, column or row more or less; quotes that do not end."""
    text = data.decode("utf-8", "replace")
    delimiter = rng.choice(",,,\t;") if rng.random() < 0.1 else ","
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error:
        return _word(rng, data)
    filled = [row for row in rows if row]
    if not filled:
        return _word(rng, data)
    row = rng.choice(filled)
    column = rng.randrange(len(row))
    kind = rng.randrange(6)
    if kind <= 2:
        row[column] = rng.choice(TEXTS + NUMBERS)
    elif kind == 3:
        del row[column]
    elif kind == 4:
        row.insert(column, row[column])
    else:
        at = data.find(b",", rng.randrange(len(data) + 1))
        return data[: at + 1] + b'"' + data[at + 1 :]
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, escapechar="\\").writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


_XML_HEADS = (
    b'<?xml version="1.0" encoding="%s"?>' % name
    for name in (b"x-none", b"utf-32", b"utf-16", b"ascii", b"cp037", b"utf-7", b"idna", b"hex")
)
_XML = (
    *_XML_HEADS,
    b'<!DOCTYPE r [<!ENTITY a "lol">'
    + b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 10))
    + b"]>",
    b'<!DOCTYPE r SYSTEM "http://127.0.0.1:9/x.dtd">',
    b'<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
    b"<a>" * 30_000,
    b'<a b="' + b"c" * 100_000 + b'"/>',
    b"<!--" * 1_000,
    b"<![CDATA[" * 100,
)


def _xml(rng: Rng, data: bytes) -> bytes:
    """A declaration, entity, depth or name of another kind."""
    new = rng.choice(_XML)
    if new.startswith((b"<?xml", b"<!DOC")):
        body = re.sub(rb"^\s*<\?xml[^>]*>", b"", data)
        body = rng.choice((body, re.sub(rb">([^<]{3})", rb">&a9;&x;\1", body, count=2)))
        return new + body
    at = data.find(b">", rng.randrange(len(data) + 1)) + 1
    return data[:at] + new + data[at:]


def _name(rng: Rng, old: str) -> str:
    pure = PurePosixPath(old)
    bad = rng.choice([text for text in TEXTS if len(text) < 400 and "\x00" not in text])
    return rng.choice(
        (f"other/{old}", f"../{old}", f"/tmp/{pure.name}", f"{bad}{pure.suffix}", old)
    )


def _zip(rng: Rng, data: bytes) -> bytes:
    """Members with other names, content, sizes or flags; twice; too many; far too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:
        return rng.choice(_BYTES)(rng, data)
    members = _members(rng, members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((0, 8, 8, 12, 14))) as archive:
        for name, content in members:
            if name:
                archive.writestr(name.encode("utf-8", "replace").decode(), content)
    written = bytearray(out.getvalue())
    if rng.random() < 0.3 and written:  # a field of the directory
        at = written.find(b"PK\x01\x02") + rng.randrange(4, 46)
        written[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(written)


def _members(rng: Rng, members: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    if not members:
        return [("a.json", b"{}")]
    at = rng.randrange(len(members))
    name, content = members[at]
    kind = rng.randrange(6)
    if kind == 0:
        members[at] = (_name(rng, name), content)
    elif kind == 1:
        members.insert(at, (_name(rng, name), content))
    elif kind == 2:
        members[at] = (name, mutated(rng, name, content, []))
    elif kind == 3:
        del members[at]
    elif kind == 4:
        members[at] = (name, content + b" " * rng.choice((10**5, 10**7, 7 * 10**7)))
    else:
        members += [(f"{number}/{name}", b"") for number in range(rng.choice((10, 3_000)))]
    return members


def _tar(rng: Rng, data: bytes) -> bytes:
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = [
                (member.name, tar.extractfile(member).read())  # type: ignore[union-attr]
                for member in tar
                if member.isfile()
            ]
    except Exception:
        return _gzip(rng, data)
    odd = rng.choice((None, None, b"1", b"2", b"3", b"5", b"6", b"S"))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
        for name, content in _members(rng, found):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if odd is not None and rng.random() < 0.3:
                member.type, member.linkname = odd, "../outside/secret.txt"
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def _gzip(rng: Rng, data: bytes) -> bytes:
    """The content otherwise, or far too much of it."""
    try:
        content = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return rng.choice(_BYTES)(rng, data)
    if rng.random() < 0.15:
        content += rng.choice((b"\0", b"a,", b"\n", b"1,2,3\n")) * 5 * 10**6
    else:
        content = rng.choice((*_BYTES, *_TEXT, _cell))(rng, content)
    return gzip.compress(content, 1) + rng.choice((b"", b"", b"junk", data))


def _png(rng: Rng, data: bytes) -> bytes:
    """A chunk otherwise, twice, away or much too large, with its checksum mended."""
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        return rng.choice(_BYTES)(rng, data)
    place = rng.randrange(len(chunks))
    kind, content = chunks[place]
    choice = rng.randrange(6)
    if choice == 0:
        chunks[place] = (kind, rng.choice(_BYTES)(rng, content))
    elif choice == 1:
        head = bytearray(chunks[0][1].ljust(13, b"\0"))
        side = struct.pack(">I", rng.choice((0, 1, 4096, 8192, 65500, 10**6, 2**31 - 1, 2**32 - 1)))
        where = rng.choice((0, 4))
        head[where : where + 4] = side
        if rng.random() < 0.3:
            head[8:10] = bytes((rng.choice((1, 2, 4, 8, 16, 3)), rng.randrange(8)))
        chunks[0] = (b"IHDR", bytes(head))
    elif choice == 2:
        chunks.insert(place, (kind, content))
    elif choice == 3:
        del chunks[place]
    elif choice == 4:
        bomb = zlib.compress(b"\0" * rng.choice((10**5, 6 * 10**7)), 1)
        new = rng.choice((b"iCCP", b"zTXt", b"IDAT"))
        prefix = b"" if new == b"IDAT" else b"x\0\0"
        chunks.insert(min(1, place), (new, prefix + bomb))
    else:
        name = rng.choice((b"eXIf", b"tRNS", b"PLTE", b"acTL", b"fcTL", b"IEND", b"tEXt", b"gAMA"))
        chunks.insert(place, (name, rng.randbytes(rng.choice((0, 1, 6, 26, 768, 3_000)))))
    return data[:8] + b"".join(
        struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks
    )


def _jpeg(rng: Rng, data: bytes) -> bytes:
    """A size, a segment's length, or a segment or scan over and over."""
    markers = [found.start() for found in re.finditer(rb"\xff[\xc0-\xfe]", data)] or [0]
    frames = [at for at in markers if data[at + 1 : at + 2] in (b"\xc0", b"\xc1", b"\xc2", b"\xc3")]
    choice = rng.randrange(5)
    at = rng.choice(markers)
    if choice <= 1 and frames:
        at = rng.choice(frames) + rng.choice((5, 7))
        return data[:at] + struct.pack(">H", rng.choice((0, 1, 64, 8192, 65500))) + data[at + 2 :]
    if choice == 2:
        return data[: at + 2] + struct.pack(">H", rng.choice(INTEGERS) % 65536) + data[at + 4 :]
    later = [other for other in markers if other > at] or [len(data)]
    segment = data[at : later[0]]
    count = min(rng.choice((1, 20, 3_000)), LONGEST // max(len(segment), 1))
    return data[:at] + segment * count + data[at:] if choice == 3 else data[:at] + data[later[0] :]


def _dicom(rng: Rng, data: bytes) -> bytes:
    """A size or length of an element, or of the coded image within; sequences without end."""
    choice = rng.randrange(6)
    coded = max(data.find(b"\xff\xd8\xff"), data.find(b"\xff\x4f\xff\x51"))
    if choice <= 1 and coded > 0:
        if data[coded + 1] == 0xD8:
            return data[:coded] + _jpeg(rng, data[coded:])
        at = coded + 6 + rng.choice((2, 6, 10, 14, 18, 22, 26, 30, 34))  # of JPEG 2000's SIZ
        number = rng.choice((0, 1, 64, 65, 8192, 65500, 10**6, 2**31, 2**32 - 1))
        return data[:at] + struct.pack(">I", number) + data[at + 4 :]
    if choice == 2:
        nested = b"\x08\x00\x40\x11SQ\0\0\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff"
        return data[:-1] + nested * rng.choice((3, 200, 5_000)) + data[-1:]
    tags = [found.start() for found in re.finditer(rb"\x28\x00[\x00-\x20\x50]\x00", data)]
    if choice == 3 and tags:  # of the element's length
        at = rng.choice(tags) + rng.choice((4, 6, 8))
        return data[:at] + struct.pack("<I", rng.choice(INTEGERS) % 2**32) + data[at + 4 :]
    if choice == 4 and data[128:132] == b"DICM":
        try:  # of a deflated file
            start = data.index(b"1.2.840.10008.1.2.1.99") + 22
            packed = zlib.compressobj(9, zlib.DEFLATED, -15)
            return data[:start] + packed.compress(b"\0" * 5 * 10**7) + packed.flush()
        except ValueError:
            pass
    if tags:
        at = rng.choice(tags) + 8
        number = struct.pack("<H", rng.choice((0, 1, 2, 7, 8, 16, 17, 64, 8192, 65535)))
        return data[:at] + number + data[at + 2 :]
    return rng.choice(_BYTES)(rng, data)


def _safetensors(rng: Rng, data: bytes) -> bytes:
    """The header's JSON, or its length."""
    (length,) = struct.unpack("<Q", data[:8].ljust(8, b"\0"))
    header = _json(rng, data[8 : 8 + length])
    told = len(header) if rng.random() < 0.9 else rng.choice(INTEGERS) % 2**64
    return struct.pack("<Q", told) + header + data[8 + length :]


def _header_line(rng: Rng, data: bytes) -> bytes:
    """The head of an HTTP message otherwise, or its body."""
    head, gap, body = data.partition(b"\r\n\r\n")
    if body and rng.random() < 0.5:
        body = _json(rng, body)
        told = len(body) if rng.random() < 0.8 else rng.choice(INTEGERS)
        head = re.sub(rb"(?i)content-length: *\d+", b"Content-Length: %d" % told, head)
        return head + gap + body
    return rng.choice((_word, _line, _repeated))(rng, head) + gap + body


_JSON = (_json, _json, _json, _json, _word, _repeated)
BY_ENDING: dict[str, tuple[Mutator, ...]] = {
    "json": _JSON,
    "jsonl": (_json_line, _json_line, _json_line, _line, _word, _repeated),
    "txt": _TEXT,
    "csv": (_cell, _cell, _line, _word, _repeated),
    "xml": (_xml, _word, _repeated),
    "zip": (_zip,),
    "tgz": (_tar, _tar, _gzip),
    "gz": (_gzip,),
    "png": (_png,),
    "jpg": (_jpeg,),
    "dcm": (_dicom,),
    "safetensors": (_safetensors, _safetensors, _integer),
    "gguf": (_integer, _integer, _word),
    "http": (_header_line,),
    "jinja": _TEXT,
    "step": (_line, _json_line),
}
