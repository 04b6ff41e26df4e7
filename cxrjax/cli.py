"""How every entry point ends: an exit code, and one line instead of a traceback for user errors."""

import sys
from collections.abc import Callable
from typing import NoReturn

from cxrjax.errors import UserError

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def run(main: Callable[[], object]) -> NoReturn:
    """Calls `main()` and leaves the process.

    Args:
        main: parses its own arguments (argparse leaves with code 2 on unusable ones) and does the
            work. An int it returns is the exit code; anything else means success.

    The process ends with 0 on success, 2 on a `UserError` (its message on stderr, one line) and 130
    on Ctrl-C. Any other exception is a bug of ours and keeps its traceback.
    """
    try:
        code = main()
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)
