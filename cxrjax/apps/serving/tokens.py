"""Tokens of clients, from flags and files."""

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.files import reading
from cxrjax.untrusted.foreign_files import read_text

_SHORTEST_TOKEN = 16


def read_tokens(given: Sequence[str], file: Path | None) -> dict[str, str]:
    """Returns tokens by the names of their clients.

    Raises:
        UserError: the file has other lines than NAME=TOKEN, or a token can be guessed.
    """
    tokens = {f"token{number}": token for number, token in enumerate(given, 1)}
    if file is not None:
        with reading(file):
            lines = read_text(file, 2**20).splitlines()
        for number, line in enumerate(lines, 1):
            name, equals, token = (part.strip() for part in line.partition("="))
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not equals or not re.fullmatch(r"[\w.-]{1,40}", name) or name in tokens:
                raise UserError(f"{file}:{number}: expected NAME=TOKEN, each name once")
            tokens[name] = token
        if not tokens:
            raise UserError(f"{file}: no token; expected lines NAME=TOKEN")
    for name, token in tokens.items():
        if not re.fullmatch(rf"[!-~]{{{_SHORTEST_TOKEN},200}}", token):
            raise UserError(
                f"{name}: a token of {len(token)} characters; expected {_SHORTEST_TOKEN} to 200 "
                'visible ones, as of `python -c "import secrets; print(secrets.token_hex())"`'
            )
    return tokens


def check_token(host: str, address: str, tokens: dict[str, str]) -> None:
    """Refuses an address that others reach without a token.

    Raises:
        UserError: there is no token and the address is not of this machine only.
    """
    if not tokens and not ipaddress.ip_address(address).is_loopback:
        raise UserError(
            f"--host={host}: others can reach it; give --token_file=FILE, or leave --host out"
        )
