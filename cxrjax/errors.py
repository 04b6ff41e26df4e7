"""The one exception class that means: the user can mend this."""


class UserError(Exception):
    """Bad input, arguments or environment, told in one line.

    The message names the file, the line or the id, what was found, what was expected and what to
    do. Entry points print it without a traceback and exit with code 2.
    """
