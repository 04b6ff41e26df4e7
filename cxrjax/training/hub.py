"""Names on the Hugging Face hub in the place of folders: how to get a model, and getting it."""

import fnmatch
import re
import shlex
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.family_tables import family_tables
from cxrjax.models.hf_config import CONFIG_FILE, read_config
from cxrjax.models.peft import ADAPTER_CONFIG
from cxrjax.paths import to_path
from cxrjax.paths.hub import snapshot
from cxrjax.training.base_model import MODEL_FILE, PARAMS

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_ADDRESS = re.compile(r"hf:/{1,2}(.+)")  # pathlib makes one slash of two
# What a conversion reads: no pickles, no images, no weights in other forms.
_WEIGHTS = "*.safetensors"
_SMALL = ("*.json", "tokenizer.model", "*.jinja")
FILES = (*_SMALL, _WEIGHTS)
_BASE = (*_SMALL, f"{PARAMS}/*")


def hub_name(source: Path) -> str | None:
    """The name that `source` can be on the hub; None for a path.

    What begins with a folder that is there is a path, also where the rest of it is not.
    """
    name = source.as_posix()
    if source.exists() or source.parent.is_dir() or not NAME.fullmatch(name):
        return None
    return name


def hub_address(source: str | Path) -> str | None:
    """Returns what follows `hf://` in the address of a model; None of a path.

    Raises:
        UserError: the address of a data set.
    """
    named = _ADDRESS.fullmatch(str(source))
    if named and named[1].startswith("datasets/"):
        raise UserError(f"hf://{named[1]}: a data set; expected a model, hf://OWNER/NAME")
    return named[1] if named else None


def how_to_get(name: str, out: Path) -> UserError:
    """The error that tells how to get a model of this name: page, licence and command."""
    page = f"https://huggingface.co/{name}"
    command = shlex.join(
        ["python", "-m", "cxrjax.convert", f"--checkpoint={name}", f"--out={out}", "--download"]
    )
    terms = f"Accept {licence(name)}" if licence(name) else _READ
    patterns = " ".join(f"--include={shlex.quote(pattern)}" for pattern in FILES)
    return UserError(
        f"{name}: no such folder; on the Hugging Face hub it would be {page}. {terms}, "
        f"log in by `hf auth login` where the page asks for it, then: {command} (or name "
        f"the model hf://{name}); or fetch it yourself by `hf download {name} {patterns} "
        "--local-dir=DIR` and give --checkpoint=DIR"
    )


def download(name: str) -> Path:
    """Fetches a model's files into the hub's cache on this machine, or finds them there.

    Args:
        name: OWNER/NAME, with @REVISION where it is not the newest.

    The weights come last, gigabytes that nobody could use of a model that we do not have.

    Returns:
        The folder of the files.

    Raises:
        UserError: no such model, one whose licence is not accepted yet, or no way to the hub; not
            a base or a model in transformers' form, or one that we do not have (`read_config`).
    """
    name, _, revision = name.partition("@")
    if not NAME.fullmatch(name):
        raise UserError(f"hf://{name}: expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    folder = _fetch(name, _SMALL, revision)
    if (folder / MODEL_FILE).is_file():
        return _fetch(name, _BASE, revision)
    if (folder / ADAPTER_CONFIG).is_file():
        return _fetch(name, FILES, revision)
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(
            f"{name}: has no {CONFIG_FILE}, so it is no model in transformers' form; expected one "
            "with config.json and safetensors (of a GGUF file, fetch it and give its path)"
        )
    try:
        read_config(folder)
    except UserError as error:
        raise UserError(f"{name}: its weights were not fetched: {error}") from None
    return _fetch(name, FILES, revision)


def cached(name: str) -> Path | None:
    """The folder of a model that was fetched before; None where it is not on this machine."""
    import huggingface_hub as hub

    try:
        return to_path(hub.snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):  # not there, or no name
        return None


def _fetch(name: str, files: tuple[str, ...], revision: str) -> Path:
    terms = f"Accept {licence(name)}" if licence(name) else _READ
    return snapshot(name, files, revision=revision or None, terms=terms)


_READ = "Read its licence, and accept it"


def licence(name: str) -> str | None:
    """Returns the terms of a model on the hub, where its family has them."""
    licences = family_tables("licence")
    # The longest pattern is the most special.
    known = (key for key in sorted(licences, key=len, reverse=True) if fnmatch.fnmatch(name, key))
    return licences.get(next(known, ""))
