"""Answers that were received, kept so that they are never paid for twice.

A JSON Lines file, one `Completion` a line with the key of its request. Each line is on the disk
before the answer is used. What a killed process was writing at that moment is cut off when the file
is opened again; every line before it stays. Prompts and images are not in the file, only their
hash; answers are, and hold what the prompt told of its subject.
"""

import dataclasses
import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError

_START = b'{"key": "'  # of every line


@dataclasses.dataclass(frozen=True)
class Completion:
    """What a server sent.

    Attributes:
        finish_reason: "stop", "length" (the token limit), "content_filter", or the server's own.
        refusal: the model's words where it declines in a field of its own.
        model: the name that the server gives itself.
        input_tokens, output_tokens: as the server counts them; None where it doesn't.
        logprob: sum over the answer's tokens, where it was asked for and the server told it.
    """

    text: str
    finish_reason: str
    refusal: str | None
    model: str
    input_tokens: int | None
    output_tokens: int | None
    logprob: float | None = None


class AnswerCache:
    """The file, held by one process at a time; threads may share it.

    Lines are read when asked for: memory holds their positions alone.

    Args:
        path: made where it isn't there.

    Raises:
        UserError: it cannot be written, another process holds it, or it holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._places: dict[str, tuple[int, int]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - held as long as the cache
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}; see --cache") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError(
                f"{path}: another process is adding answers to it; wait for it, or give another "
                "--cache"
            ) from None
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

    def get(self, key: str) -> Completion | None:
        """The answer to the request of this key, None where there is none yet."""
        place = self._places.get(key)
        if place is None:
            return None
        line = os.pread(self._file.fileno(), place[1], place[0])
        fields = json.loads(line)
        del fields["key"]
        return Completion(**fields)

    def put(self, key: str, completion: Completion) -> None:
        """Keeps an answer; on the disk when this returns.

        Raises:
            UserError: the disk takes no more.
        """
        line = json.dumps({"key": key, **dataclasses.asdict(completion)}).encode() + b"\n"
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
        self._file.seek(0)
        with open(self._file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, start=1):
                ours = number > 1 or line.startswith(_START) or _START.startswith(line)
                if ours and not line.endswith(b"\n"):
                    break  # the process that wrote it was killed
                fields = _fields(line)
                if fields is None:
                    raise UserError(
                        f"{self.path}:{number}: no cached answer; if this is the right file, "
                        "delete the line, else give another --cache"
                    )
                self._places[fields["key"]] = (start, len(line))
                start += len(line)
        self._file.truncate(start)


def _fields(line: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(line)
        Completion(**{name: value for name, value in fields.items() if name != "key"})
        return fields if isinstance(fields["key"], str) else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
