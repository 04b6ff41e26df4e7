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
        raise UserError(
            f"{shown}: no {part} in this data set; {_page(named.id, 'dataset')}/tree/main"
        )
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
        more = {} if kind == "model" else {"repo_type": kind}
        more |= {} if revision is None else {"revision": revision}
        patterns = None if files is None else list(files)
        return to_path(hub.snapshot_download(name, allow_patterns=patterns, **more))


@contextlib.contextmanager
def refusals(name: str, kind: str, terms: str = "", what: str = "fetched") -> Iterator[None]:
    """Turns what the hub refuses into a line for the user; no token is in it."""
    from huggingface_hub import constants, errors

    page = _page(name, kind)
    words = {"model": "model", "dataset": "data set"}[kind]
    again = "what has come is kept, so give the same command again, or fetch it elsewhere"
    try:
        yield
    except errors.GatedRepoError:
        remedy = f"{terms} with your account at {page}, {_LOG_IN}, and give the same command again"
        raise UserError(f"{name}: gated. {remedy}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name}: no such {words} at {page}, or a private one and you are not logged in "
            "(`hf auth login`); check the name"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: no such revision at {page}; check what follows '@'") from None
    except errors.LocalTokenNotFoundError:
        raise UserError(f"{name}: cannot be {what}: no token; {_LOG_IN}") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError):
        kept = f", and the cache {constants.HF_HUB_CACHE} has no copy" * (what == "fetched")
        raise UserError(
            f"{name}: {page} cannot be reached (or HF_HUB_OFFLINE is set){kept}; give the command "
            "where there is a network"
        ) from None
    # Of the library's own kinds some are no HTTP errors, such as that of a broken connection.
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        why = first_line(error)[:300] + f"; {again}" * (what == "fetched")
        code = getattr(getattr(error, "response", None), "status_code", None)
        if code == 401:
            why = f"the token is not valid; {_LOG_IN}"
        elif code == 403:
            why = "no right to it; take a token with write access, or a name of your own"
        raise UserError(f"{name}: cannot be {what} ({page}): {why}") from None


def _page(name: str, kind: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'datasets/' * (kind == 'dataset')}{name}"
