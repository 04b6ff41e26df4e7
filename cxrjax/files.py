"""JSON files, checksums, package versions, the git commit, and JSON Lines by key."""

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.resources
import json
import os
import platform
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from cxrjax.errors import ForeignError, UserError
from cxrjax.lock import try_flock
from cxrjax.paths import AnyPath, in_bucket, in_path, local_path
from cxrjax.untrusted import foreign_files
from cxrjax.untrusted.json_text import parse_json, parse_object

_PACKAGE = Path(__file__).parent
# What ships beside the package; a wheel has it in the package (setup.py).
_SHIPPED = ("configs", "data/demo_base", "data/real_base")


def shipped(path: AnyPath) -> Path:
    """The path, or what ships under this name where the working folder has nothing there.

    A line on stderr says so, once of each name.
    """
    path = in_path(path)
    is_there = in_bucket(path) or os.path.exists(path)
    if is_there or not any(path.is_relative_to(folder) for folder in _SHIPPED):
        return path
    bundled = _PACKAGE / "_bundled"
    found = (bundled if bundled.is_dir() else _PACKAGE.parent) / path
    if not os.path.exists(found):
        return path
    _tell_shipped(path, found)
    return found


@functools.cache
def _tell_shipped(path: Path, found: Path) -> None:
    print(f"{path}: not in the working folder; the one that ships: {found}", file=sys.stderr)


@functools.cache
def read_packaged(package: str, name: str) -> Any:
    """Reads a file that is part of the package, once: JSON or TOML, one object for all, or text."""
    text = importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")
    if name.endswith(".toml"):
        return tomllib.loads(text)
    return parse_json(text) if name.endswith(".json") else text


def read_patterns(package: str, name: str, section: str = "patterns") -> dict[str, re.Pattern[str]]:
    """Returns the patterns of a section of a TOML file of the package, by name."""
    return {key: re.compile(one) for key, one in read_packaged(package, name)[section].items()}


def read_json_object(
    path: Path, most: int = foreign_files.MOST_BYTES, finite: bool = False
) -> dict[str, Any]:
    """The object that a file of at most so many bytes holds.

    Args:
        finite: refuse NaN and infinities, which `write_json` could not write again.

    Raises:
        UserError: it cannot be read, is not JSON, or holds something else than an object.
    """
    content = _read(path, most, finite)
    if not isinstance(content, dict):
        found = type(content).__name__
        raise UserError(f"{path}: expected a JSON object, found {found}")
    return content


def read_json_list(path: Path) -> list[Any]:
    """The list that a file holds.

    Raises:
        UserError: it cannot be read, is not JSON, or holds something else than a list.
    """
    content = _read(path)
    if not isinstance(content, list):
        found = type(content).__name__
        raise UserError(f"{path}: expected a JSON list, found {found}")
    return content


def _read(path: Path, most: int = foreign_files.MOST_BYTES, finite: bool = False) -> Any:
    with reading(path, hint="write or fetch it again"):
        return parse_json(foreign_files.read_bytes(path, most), finite=finite)


def read_json_lines(
    path: Path, what: str, hint: str, longest: int = foreign_files.LONGEST_LINE
) -> Iterator[tuple[str, dict[str, Any]]]:
    """`path:line` and the object of each line that is not blank; one line in memory at a time.

    Args and errors are those of `read_raw_json_lines`.
    """
    for where, fields, _ in read_raw_json_lines(path, what, hint, longest):
        yield where, fields


def read_raw_json_lines(
    path: Path,
    what: str,
    hint: str,
    longest: int = foreign_files.LONGEST_LINE,
    mend: Callable[[bytes], bytes] = bytes,
) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """Yields for each JSON line where it is, its object and the raw line.

    Args:
        mend: called with each line before it is read.
        what: what the file holds, such as "predictions".
        hint: what was expected, or what to do.

    Raises:
        UserError: the file cannot be read, or a line is no object of JSON; names it.
    """
    with reading(path, what, hint):
        for number, line in foreign_files.read_lines(path, longest):
            where = f"{path}:{number}"
            try:
                fields = parse_object(mend(line))
            except ForeignError as error:
                raise UserError(f"{where}: {error}; {hint}") from None
            yield where, fields, line


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal.

    Raises:
        UserError: it cannot be read.
    """
    with reading(path), foreign_files.open_stream(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_lines(lines: Iterable[str]) -> str:
    """SHA-256 over the sorted lines: the same for the same set."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def cell(value: Any) -> Any:
    """The value as a cell of a CSV file: text that a spreadsheet would compute is text there too.

    Such text begins with = + - @, a tab or a return, and is no number; it gets an apostrophe.
    """
    if not isinstance(value, str) or value[:1] not in tuple("=+-@\t\r"):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def write_json(path: Path, content: Any) -> None:
    """Writes JSON for people: indented, one trailing newline, no NaN."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    replace_text(path, text + "\n")


def replace_text(path: Path, text: str) -> None:
    """Replaces a file in one move, so that a killed process leaves the old or the new one.

    Raises:
        UserError: the text holds half of a surrogate pair, as a file's name may.
    """
    with replacing(path) as file:
        file.write(text)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file to write, which gets its name when it is whole; of an error nothing is left.

    Raises:
        UserError: as `replace_text`.
    """
    # What is written to a bucket is there whole or not at all.
    temporary = path if in_bucket(path) else path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        if temporary != path:
            temporary.replace(path)
    except BaseException as error:
        if temporary != path:
            temporary.unlink(missing_ok=True)
        if isinstance(error, UnicodeEncodeError):
            found = ascii(error.object[max(0, error.start - 20) : error.end])
            raise UserError(
                f"{path}: cannot be written: half of a surrogate pair in {found}"
            ) from None
        raise


@contextlib.contextmanager
def reading(path: str | Path, what: str = "", hint: str = "") -> Iterator[None]:
    """Turns a file that cannot be read or used into a line for the user.

    Args:
        what: what the file holds, such as "records".
        hint: what to do.
    """
    then = f"; {hint}" if hint else ""
    try:
        yield
    except OSError as error:
        found = f"cannot read {what}" if what else "cannot be read"
        raise UserError(f"{path}: {found}: {error.strerror or error}{then}") from None
    except ForeignError as error:
        line = "" if error.line is None else f":{error.line}"
        raise UserError(f"{path}{line}: {error}{then}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text{then or '; save it as UTF-8'}") from None


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turns the operating system's refusals (rights, space) into a line for the user."""
    try:
        yield
    except OSError as error:
        place = error.filename or out
        raise UserError(f"{place}: cannot write: {error.strerror}; choose another --out") from None


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of Python and of the packages."""
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def git_commit() -> str | None:
    """Commit of the source tree, `-dirty` if it was changed; None outside of a git checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


_START = b'{"key": "'  # of every line
Fields = dict[str, Any]
Value = TypeVar("Value")


class KeyedLines(Generic[Value]):
    """Values in a JSON Lines file, held by one process at a time; threads share it.

    Lines are read on demand: memory holds only their positions.

    Args:
        path: created if missing.
        flag: the option that names the file, for messages.
        what: the kind of a line, for messages.
        read: fields of a line -> value. Raises ForeignError where a line is of the kind, and
            unusable: it counts as missing, and stderr reports the number of such lines; ValueError,
            TypeError or KeyError where its fields are something else.
        write: value -> fields.

    Raises:
        UserError: it cannot be written, another process holds it, or it holds something else.
    """

    def __init__(
        self,
        path: Path,
        flag: str,
        what: str,
        read: Callable[[Fields], Value],
        write: Callable[[Value], Fields],
    ) -> None:
        self.path = path = local_path(path, "a file that lines are added to under a lock")
        self._flag, self._what, self._read, self._write = flag, what, read, write
        self._lock = threading.Lock()
        self._places: dict[str, tuple[int, int]] = {}
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a regular file; pass another {flag}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - held as long as this
            taken = try_flock(self._file.fileno()) is False
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}; see {flag}") from None
        if taken:
            self._file.close()
            raise UserError(
                f"{path}: another process is adding answers to it; wait for it, or pass another "
                f"{flag}"
            )
        try:
            self._read_places()
        except UserError:
            self._file.close()
            raise

    def close(self) -> None:
        """Lets other processes have the file."""
        self._file.close()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._places))

    def get(self, key: str) -> Value | None:
        """Returns the value under this key, or None."""
        place = self._places.get(key)
        if place is None:
            return None
        fields = parse_object(os.pread(self._file.fileno(), place[1], place[0]))
        del fields["key"]
        return self._read(fields)

    def put(self, key: str, value: Value) -> None:
        """Stores a value; on the disk when this returns.

        Raises:
            UserError: the disk takes no more.
        """
        line = json.dumps({"key": key, **self._write(value)}).encode() + b"\n"
        with self._lock:
            start = os.fstat(self._file.fileno()).st_size
            try:
                written = self._file.write(line)
                if written != len(line):
                    raise OSError(0, "no space left")
                os.fsync(self._file.fileno())
            except OSError as error:
                self._file.truncate(start)
                raise UserError(f"{self.path}: cannot be written: {error.strerror}") from None
            self._places[key] = (start, len(line))

    def _read_places(self) -> None:
        start = 0
        unusable: set[str] = set()
        self._file.seek(0)
        with open(self._file.fileno(), "rb", closefd=False) as lines:
            read = functools.partial(lines.readline, foreign_files.LONGEST_LINE + 1)
            for number, line in enumerate(iter(read, b""), start=1):
                ours = number > 1 or line.startswith(_START) or _START.startswith(line)
                if ours and not line.endswith(b"\n") and len(line) <= foreign_files.LONGEST_LINE:
                    break  # the process that wrote it was killed
                key, usable = self._read_key(line)
                if key is None:
                    raise UserError(
                        f"{self.path}:{number}: no {self._what}; if this is the right file, "
                        f"delete the line, else pass another {self._flag}"
                    )
                if usable:
                    self._places[key] = (start, len(line))
                else:
                    unusable.add(key)
                start += len(line)
        self._file.truncate(start)
        if lost := len(unusable - self._places.keys()):
            print(
                f"{self.path}: {lost:,} lines, each a {self._what}, cannot be used (values of "
                "another type, or out of range) and count as not there",
                file=sys.stderr,
            )

    def _read_key(self, line: bytes) -> tuple[str | None, bool]:
        """The key, None where the line is something else, and whether the line can be used."""
        key = None
        try:
            fields = parse_object(line)
            key = fields.pop("key")
            if isinstance(key, str):
                self._read(fields)
                return key, True
        except ForeignError:
            return key, False
        except (ValueError, TypeError, KeyError):
            pass
        return None, False
