"""Addresses of the Hugging Face hub, `hf://[datasets/]OWNER/NAME[@REVISION][/PATH]`.

What they name is fetched into the hub's cache, whole, and read from there; without a network the
cache answers. huggingface_hub is loaded by the first address.
"""

import contextlib
import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cxrjax.errors import UserError, first_line
from cxrjax.paths import to_path

DATA = re.compile(r"hf:/{1,2}datasets/(.*)", re.DOTALL)  # pathlib makes one slash of two
_SNAPSHOT = re.compile(r"datasets--(.+?)--(.+?)/snapshots/([0-9a-f]+)(/.+)?$")
_LOG_IN = "log in by `hf auth login` or HF_TOKEN"


def fetch_data(address: str) -> Path:
    """Returns the local copy of a data set, or of a file or folder in one.

    Raises:
        UserError: not an address of a data set, none that can be fetched, or nothing of that path.
    """
    from huggingface_hub.utils import parse_hf_uri

    inner = (DATA.match(address) or [""])[1]
    shown = f"hf://datasets/{inner}"
    try:
        named = parse_hf_uri(shown)
    except ValueError:
        raise UserError(
            f"{shown}: not an address of a data set on the hub; expected "
            "hf://datasets/OWNER/NAME[@REVISION][/PATH]"
        ) from None
    part = named.path_in_repo.strip("/")
    files = [glob.escape(part), f"{glob.escape(part)}/*"] if part else None
    folder = snapshot(named.id, files, kind="dataset", revision=named.revision)
    if not (folder / part).exists():
        page = f"{_page(named.id, 'dataset')}/tree/{named.revision or 'main'}"
        raise UserError(f"{shown}: no {part} in this data set; {page} shows what there is")
    return folder / part


def origin(copy: Path) -> str | None:
    """Returns the address of a local copy, with its commit; None of any other path."""
    found = _SNAPSHOT.search(copy.as_posix())
    return found and f"hf://datasets/{found[1]}/{found[2]}@{found[3]}{found[4] or ''}"


def snapshot(
    name: str,
    files: Sequence[str] | None,
    *,
    kind: str = "model",
    revision: str | None = None,
    terms: str = "Read its terms, and accept them",
) -> Path:
    """Fetches files of a repository into the hub's cache, or finds them there.

    Args:
        files: patterns of names; None: all.
        kind: `model` or `dataset`.
        terms: what a person has to do where it is gated.

    Raises:
        UserError: no such repository or revision, a gated one, or no way to the hub.
    """
    import huggingface_hub as hub

    with refusals(name, kind, terms):
        patterns = None if files is None else list(files)
        return to_path(
            hub.snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=patterns)
        )


@contextlib.contextmanager
def refusals(name: str, kind: str, terms: str = "", what: str = "fetched") -> Iterator[None]:
    """Turns what the hub refuses into a line for the user; no token is in it."""
    from huggingface_hub import constants, errors

    page, fetches = _page(name, kind), what == "fetched"
    thing = {"model": "model", "dataset": "data set"}[kind]
    kept = f", and the cache {constants.HF_HUB_CACHE} has no copy" * fetches
    said: dict[type[Exception], str] = {
        errors.GatedRepoError: f"gated. {terms} with your account at {page}, {_LOG_IN}, and give "
        "the same command again",
        errors.RepositoryNotFoundError: f"no such {thing} at {page}, or a private one and you are "
        "not logged in (`hf auth login`); check the name",
        errors.RevisionNotFoundError: f"no such revision at {page}; check what follows '@'",
        errors.LocalTokenNotFoundError: f"cannot be {what}: no token; {_LOG_IN}",
        **dict.fromkeys(
            (errors.LocalEntryNotFoundError, ConnectionError),
            f"{page} cannot be reached (or HF_HUB_OFFLINE is set){kept}; give the command where "
            "there is a network",
        ),
    }
    try:
        yield
    except (OSError, ValueError) as error:  # all of the library's are of these kinds
        again = "what has come is kept, so give the same command again, or fetch it elsewhere"
        codes = {
            401: f"the token is not valid; {_LOG_IN}",
            403: "no right to it; take a token with write access, or a name of your own",
            None: first_line(error)[:300] + f"; {again}" * fetches,
        }
        code = getattr(getattr(error, "response", None), "status_code", None)
        other = f"cannot be {what} ({page}): {codes.get(code, codes[None])}"
        known = (words for kind_, words in said.items() if isinstance(error, kind_))
        raise UserError(f"{name}: {next(known, other)}") from None


def _page(name: str, kind: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'datasets/' * (kind == 'dataset')}{name}"
