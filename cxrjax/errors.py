"""Errors that are no bugs: what the user can mend, and what a restart takes up."""

import importlib
from types import ModuleType


class UserError(Exception):
    """Bad input, arguments or environment, told in one line.

    The message names the file, the line or the id, what was found, what was expected and what to
    do. Entry points print it without a traceback and exit with code 2.
    """


class BucketError(UserError, OSError):
    """A bucket that does not answer, or refuses: one line, wherever it is met.

    Whoever takes an OSError for a fault of the file lets this one pass.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class ForeignError(ValueError):
    """Untrusted input is unusable: a one-line message without the file's name.

    Whoever knows where it stood turns it into a UserError or sets it aside and counts it.

    Attributes:
        line: its number in the file, where it is about one.
    """

    def __init__(self, found: str, line: int | None = None) -> None:
        super().__init__(found)
        self.line = line


class Preempted(BaseException):
    """The run was told to stop, has saved what it had to, and can be taken up again.

    Like KeyboardInterrupt no `Exception`, so that nothing on its way mistakes it for an error.
    """


def first_line(error: BaseException) -> str:
    """The first line of a library's error, for a message of one line."""
    return (str(error).splitlines() or [repr(error)])[0]


def optional(module: str, extra: str, remedy: str = "") -> ModuleType:
    """Imports what one feature alone needs.

    Args:
        extra: of this package, which brings it.
        remedy: what to do where that is not to install the extra, or not that alone.

    Raises:
        UserError: it is not installed; says the remedy, else the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{module} cannot be imported ({first_line(error)}): "
            + (remedy or f"pip install 'cxrjax[{extra}]'")
        ) from None
