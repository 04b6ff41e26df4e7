"""Errors that are no bugs: what the user can mend, and what a restart takes up."""

import importlib
from types import ModuleType


class UserError(Exception):
    """Bad input, arguments or environment, told in one line.

    The message names the file, the line or the id, what was found, what was expected and what to
    do. Entry points print it without a traceback and exit with code 2.
    """


class Preempted(BaseException):
    """The run was told to stop, has saved what it had to, and can be taken up again.

    Like KeyboardInterrupt no `Exception`, so that nothing on its way mistakes it for an error.
    """


def first_line(error: BaseException) -> str:
    """What a library's error says first, for a message of one line."""
    return (str(error).splitlines() or [repr(error)])[0]


def optional(module: str, extra: str) -> ModuleType:
    """Imports what one feature alone needs.

    Raises:
        UserError: it is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{module} cannot be imported ({first_line(error)}): pip install 'cxrjax[{extra}]'"
        ) from None
