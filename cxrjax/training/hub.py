"""Names on the Hugging Face hub in the place of folders: how to get a model, and getting it."""

import fnmatch
import re
import shlex
from pathlib import Path

from cxrjax.errors import UserError, first_line
from cxrjax.family_tables import family_tables
from cxrjax.models.hf_config import CONFIG_FILE, read_config
from cxrjax.paths import to_path

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
# What a conversion reads: no pickles, no images, no weights in other forms.
_WEIGHTS = "*.safetensors"
_SMALL = ("*.json", "tokenizer.model", "*.jinja")
FILES = (*_SMALL, _WEIGHTS)


def hub_name(source: Path) -> str | None:
    """The name that `source` can be on the hub; None for a path.

    What begins with a folder that is there is a path, also where the rest of it is not.
    """
    name = source.as_posix()
    if source.exists() or source.parent.is_dir() or not _NAME.fullmatch(name):
        return None
    return name


def how_to_get(name: str, out: Path) -> UserError:
    """The error that tells how to get a model of this name: page, licence and command."""
    page = f"https://huggingface.co/{name}"
    command = shlex.join(
        ["python", "-m", "cxrjax.convert", f"--checkpoint={name}", f"--out={out}", "--download"]
    )
    patterns = " ".join(f"--include={shlex.quote(pattern)}" for pattern in FILES)
    return UserError(
        f"{name}: no such folder; on the Hugging Face hub it would be {page}. {_licence(name)}, "
        f"log in by `hf auth login` where the page asks for it, then: {command} (or name "
        f"the model hf://{name}); or fetch it yourself by `hf download {name} {patterns} "
        "--local-dir=DIR` and give --checkpoint=DIR"
    )


def download(name: str) -> Path:
    """Fetches a model's files into the hub's cache on this machine, or finds them there.

    The weights come last, gigabytes that nobody could use of a model that we do not have.

    Returns:
        The folder of the files.

    Raises:
        UserError: no such model, one whose licence is not accepted yet, or no way to the hub; not
            a model in transformers' form, or one that we do not have (`read_config`).
    """
    folder = _fetch(name, _SMALL)
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(
            f"{name}: has no {CONFIG_FILE}, so it is no model in transformers' form; expected one "
            "with config.json and safetensors (of a GGUF file, fetch it and give its path)"
        )
    try:
        read_config(folder)
    except UserError as error:
        raise UserError(f"{name}: its weights were not fetched: {error}") from None
    return _fetch(name, FILES)


def cached(name: str) -> Path | None:
    """The folder of a model that was fetched before; None where it is not on this machine."""
    import huggingface_hub as hub

    try:
        return to_path(hub.snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # not there, or no name
        return None


def _fetch(name: str, files: tuple[str, ...]) -> Path:
    import huggingface_hub as hub
    from huggingface_hub import errors

    page = f"https://huggingface.co/{name}"
    try:
        return to_path(hub.snapshot_download(name, allow_patterns=list(files)))
    except errors.GatedRepoError:
        raise UserError(
            f"{name}: gated. {_licence(name)} with your account at {page}, log in by "
            "`hf auth login`, and give the same command again"
        ) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name}: no such model at {page}, or a private one and you are not logged in "
            "(`hf auth login`); check the name"
        ) from None
    # Of the library's own kinds some are no HTTP errors, such as that of a broken connection.
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(
            f"{name}: cannot be fetched ({first_line(error)[:300]}); what has come is kept, so "
            "give the same command again, or fetch it elsewhere and give the folder"
        ) from None


def _licence(name: str) -> str:
    # A licence is accepted by a person, on the page; the longest pattern is the most special.
    licences = family_tables("licence")
    known = (key for key in sorted(licences, key=len, reverse=True) if fnmatch.fnmatch(name, key))
    found = licences.get(next(known, ""))
    return f"Accept {found}" if found else "Read its licence, and accept it"
