"""Verdicts that a judge has given: a JSON Lines file, replayed without a judge.

A line has the key (SHA-256 of the prompt, the judge's name and what was judged), the judge, the
task, the prompt's hash, and the verdict. Texts that were judged are not in it, only their hash;
facts are, and hold what the texts say.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.files import KeyedLines

Verdict = dict[str, Any]
_FIELDS = ("judge", "task", "prompt", "verdict")


def verdict_key(prompt: str, judge: str, sample: Mapping[str, Any]) -> str:
    """SHA-256 of what decides a verdict.

    Args:
        prompt: all that the judge is told besides the sample.
        judge: its name.
        sample: what is judged.
    """
    text = json.dumps([prompt, judge, sample], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class VerdictStore:
    """The file, held by one process at a time; threads share it.

    Args:
        path: made where it isn't there, unless `replay`.
        replay: whether it must be there already.

    Raises:
        UserError: it cannot be used, or holds something else.
    """

    def __init__(self, path: Path, replay: bool = False) -> None:
        if replay and not path.is_file():
            raise UserError(
                f"{path}: no such file; --judge=replay needs the verdicts of an earlier "
                "--judge=language_model"
            )
        self.path = path
        self._lines = KeyedLines(path, "--verdicts", "verdict", _check)

    def close(self) -> None:
        """Lets other processes have the file."""
        self._lines.close()

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Verdict | None:
        """The verdict under this key, None where there is none yet."""
        fields = self._lines.get(key)
        return None if fields is None else fields["verdict"]

    def put(self, key: str, judge: str, task: str, prompt: str, verdict: Verdict) -> None:
        """Keeps a verdict; on the disk when this returns.

        Raises:
            UserError: the disk takes no more.
        """
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        self._lines.put(key, {"judge": judge, "task": task, "prompt": digest, "verdict": verdict})

    def judges(self) -> list[str]:
        """Names of the judges whose verdicts are here, in order of their first."""
        lines = (self._lines.get(key) for key in self._lines)
        return list(dict.fromkeys(line["judge"] for line in lines if line))


def _check(fields: Mapping[str, Any]) -> None:
    if not isinstance(fields["verdict"], dict):
        raise ValueError("the verdict is no object")
    if not all(isinstance(fields[name], str) for name in _FIELDS[:3]):
        raise ValueError("not a line of verdicts")
