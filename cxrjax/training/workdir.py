"""A run's directory, and what is said when its storage fails.

A full disk, a storage that became read-only or a directory that went away are the user's to mend:
the run stops with one line, and the last whole checkpoint stays.
"""

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import jax

from cxrjax.errors import UserError

# The run's configuration.
CONFIG_FILE = "config.json"
# As TensorStore, which writes the arrays, tells what the operating system said.
_OS_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")
# As TensorFlow, which writes the event files, does: in words alone.
_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ESTALE)


def make_writable(workdir: Path) -> None:
    """Creates the workdir.

    Raises:
        UserError: it cannot be created or written.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        # Hosts may have processes of the same number.
        probe = workdir / f".writable.{jax.process_index()}.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"--workdir={workdir}: cannot be written: {error.strerror}") from None


def check_present(workdir: Path, file: str) -> None:
    """Whether the workdir is still the one with this file, before more is written to it.

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
        UserError: instead of an OSError, or of what TensorStore and TensorFlow make of one.
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


def _reason(error: BaseException | None) -> str | None:
    """What the operating system said, at the root of an error; None: it has another root."""
    while error is not None and not isinstance(error, UserError):
        if isinstance(error, OSError):
            return error.strerror or str(error)
        code = _OS_ERROR_CODE.search(str(error))
        if code is not None:
            return os.strerror(int(code[1]))
        for number in _STORAGE_ERRORS:
            if os.strerror(number) in str(error):
                return os.strerror(number)
        error = error.__cause__ or error.__context__
    return None


def silence_writers() -> None:
    """Keeps Orbax and CLU from logging tracebacks of errors that they raise as well."""
    logger = logging.getLogger("absl")
    if not any(isinstance(each, _NotOfWriters) for each in logger.filters):
        logger.addFilter(_NotOfWriters())


class _NotOfWriters(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        of_writers = any(f"{os.sep}{name}{os.sep}" in record.pathname for name in ("orbax", "clu"))
        return not (of_writers and record.exc_info is not None and record.levelno >= logging.ERROR)
