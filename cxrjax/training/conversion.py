"""The work of `convert`: what a checkpoint is, and what becomes of it."""

import argparse
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.lock import file_lock
from cxrjax.paths import to_path
from cxrjax.progress import waiting
from cxrjax.training import hub, interchange


def convert(flags: argparse.Namespace) -> None:
    """Converts what the flags of `convert` name.

    Raises:
        UserError: flags that do not go together, a name on the hub that was not downloaded, or
            files that cannot be used.
    """
    out = flags.out
    source, name = _source(flags)
    kind = interchange.kind_of(source)
    if (kind == "peft") != (flags.base is not None):
        raise UserError(
            f"{source}: is a PEFT adapter and needs --base, a base directory of ours"
            if kind == "peft"
            else f"--base={flags.base}: only a PEFT adapter needs one, and {source} is none"
        )
    if flags.base_name is not None and flags.to != "peft":
        raise UserError(f"--base_name={flags.base_name}: only --to=peft writes a base's name")
    if kind in ("hf", "gguf", "peft") and flags.to != "orbax":
        raise UserError(f"--to={flags.to}: {source} is not ours; convert it to a base first")
    try:
        with file_lock(out), waiting(f"converting {source}"):
            _convert(flags, kind, source, name)
    except OSError as error:
        if error.filename is None or not to_path(error.filename).absolute().is_relative_to(
            out.absolute()
        ):
            raise
        raise UserError(f"--out={out}: cannot be written: {error.strerror}") from None


def _source(flags: argparse.Namespace) -> tuple[Path, str | None]:
    """Returns the folder or file to convert, and its name on the hub."""
    name = hub.hub_name(flags.checkpoint)
    if name is not None:
        if not flags.download:
            raise hub.how_to_get(name, flags.out)
        return hub.download(name), name
    if flags.download:
        raise UserError(
            f"--download: {flags.checkpoint} is no name on the hub, or a folder of this machine; "
            "leave the flag out"
        )
    return flags.checkpoint, None


def _convert(flags: argparse.Namespace, kind: str, source: Path, name: str | None) -> None:
    out = flags.out
    if kind == "hf":
        interchange.import_hf(source, out, flags.dtype, name)
    elif kind == "gguf":
        interchange.import_gguf(source, out, flags.dtype)
    elif kind == "peft":
        interchange.import_peft(source, flags.base, out)
    elif flags.to == "peft":
        interchange.export_peft(source, out, flags.base_name)
    elif flags.to in ("hf", "merged"):
        interchange.export_hf(source, out, merge=flags.to == "merged", dtype=flags.dtype)
    else:
        interchange.export_base(source, out, flags.dtype or "float32")
