"""A run's directory, and what is said when its storage fails.

A full disk, a storage that became read-only or a directory that went away are the user's to mend:
the run stops with one line, and the last whole checkpoint stays.
"""

import contextlib
import errno
import json
import logging
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from cxrjax.errors import UserError
from cxrjax.files import (
    file_sha256,
    git_commit,
    package_versions,
    read_json_object,
    reading,
    replace_text,
)
from cxrjax.paths import truncate
from cxrjax.untrusted.foreign_files import open_stream

# The run's configuration.
CONFIG_FILE = "config.json"
# Named with their versions in run.json.
_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "numpy",
    "ml_collections",
)
# As TensorStore, which writes the arrays, tells what the operating system said.
_OS_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")


def make_writable(directory: Path, flag: str = "--workdir") -> None:
    """Creates the directory that a flag names.

    Raises:
        UserError: it cannot be created or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Hosts may have processes of the same number.
        probe = directory / f".writable.{jax.process_index()}.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{flag}={directory}: cannot be written: {error.strerror}") from None


def check_present(workdir: Path, file: str) -> None:
    """Checks that the workdir is still the one with this file, before more is written to it.

    Raises:
        UserError: it was removed, renamed or unmounted under the run.
    """
    if not (workdir / file).is_file():
        raise UserError(
            f"{workdir}: {file} is no longer there: the directory was removed, moved or unmounted "
            "during the run; bring it back and start the same command again"
        )


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Errors of the storage within become one line.

    Args:
        what: is being written.

    Raises:
        UserError: instead of an OSError, or of what TensorStore makes of one.
    """
    try:
        yield
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise UserError(
            f"{what} cannot be written: {reason}; what was saved before it is unharmed: mend the "
            "storage and start the same command again"
        ) from error


def drop_torn_line(path: Path) -> None:
    """Cuts off what a process that was killed has written of a last line, if there is any.

    Raises:
        UserError: it is no file, or cannot be written.
    """
    if not path.exists():
        return
    with reading(path), open_stream(path) as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 2**16)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            end = start
            if newline >= 0:
                end += newline + 1
                break
    with storage_errors(str(path)):
        truncate(path, end)


def _reason(error: BaseException | None) -> str | None:
    """The operating system's words at the root of an error; None: it has another root."""
    while error is not None and not isinstance(error, UserError):
        if isinstance(error, OSError):
            return error.strerror or str(error)
        code = _OS_ERROR_CODE.search(str(error))
        if code is not None:
            return os.strerror(int(code[1]))
        if isinstance(error, ValueError) and str(error).startswith("NOT_FOUND: "):
            return os.strerror(errno.ENOENT)  # TensorStore, of what it has written: it is gone
        error = error.__cause__ or error.__context__
    return None


def silence_writers() -> None:
    """Keeps Orbax and CLU from showing tracebacks of errors that they raise as well."""
    for name in ("absl", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _NotOfWriters) for each in logger.filters):
            logger.addFilter(_NotOfWriters())
    if not isinstance(sys.unraisablehook, _NotOfLateWrites):
        sys.unraisablehook = _NotOfLateWrites(sys.unraisablehook)


class _NotOfWriters(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR or record.exc_info is None:
            return True
        # Of what nobody waits for any more, asyncio's message has the file or the trace the writer.
        where = [record.pathname, record.getMessage()]
        where += [frame.filename for frame in traceback.extract_tb(record.exc_info[2])]
        names = (f"{os.sep}orbax{os.sep}", f"{os.sep}clu{os.sep}", ".orbax-checkpoint-tmp")
        return not any(name in each for each in where for name in names)


class _NotOfLateWrites:
    """Hides late failures: of several arrays, the later ones find no loop that would listen."""

    def __init__(self, show: Callable[[Any], object]) -> None:
        self._show = show

    def __call__(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._show(unraisable)


def describe_run(
    *,
    seed: int,
    steps: int,
    resumed_from: int,
    parameters: Mapping[str, int],
    base: Mapping[str, Any],
    data_files: Iterable[Path],
) -> dict[str, Any]:
    """Versions, hashes, seed, device and sizes of a run, fit for JSON.

    Args:
        steps: of the whole run.
        resumed_from: the checkpoint's step, 0 for a new run.
        parameters: counts by name.
        base: the frozen base's reference.
        data_files: records files, or folders of TFDS data sets or of shards; the `manifest.json` of
            their data set is hashed too, and the hashes of its splits are repeated.
    """
    files = [
        file
        for path in data_files
        for file in (sorted(path.glob("records/*.jsonl")) if path.is_dir() else [path])
        if file.is_file()
    ]
    manifests = {path.parent.parent / "manifest.json" for path in files}
    manifests |= {path / "manifest.json" for path in data_files}  # of shards, hashed in it
    files += sorted(path for path in manifests if path.is_file())
    return {
        "command": sys.argv,
        "seed": seed,
        "steps": steps,
        "resumed_from": resumed_from,
        "parameters": dict(parameters),
        "base": dict(base),
        "data_sha256": {str(path): file_sha256(path) for path in files},
        "split_sha256": {str(path): _split_hashes(path) for path in files if path in manifests},
        "git_commit": git_commit(),
        "versions": package_versions(_PACKAGES),
        "devices": {
            "kind": jax.devices()[0].device_kind,
            "count": jax.device_count(),
            "processes": jax.process_count(),
        },
    }


def _split_hashes(manifest: Path) -> dict[str, str]:
    """Split -> hash of its image ids, as the data set's manifest has them; empty without any.

    A file of this name beside records that `build` did not write may say anything.
    """
    try:
        splits = read_json_object(manifest)["splits"]
        return {name: split["split_sha256"] for name, split in splits.items()}
    except (UserError, KeyError, TypeError, AttributeError):
        return {}


def write_json(path: Path, content: Any) -> None:
    """Replaces a JSON file of a run; what JSON has no form for is written as text."""
    with storage_errors(str(path)):
        replace_text(path, json.dumps(content, indent=2, default=str) + "\n")


def peak_memory_gb() -> float:
    """The most memory that this process, or the largest of its finished workers, has held."""
    kibibytes = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return kibibytes * 1024 / 1e9
