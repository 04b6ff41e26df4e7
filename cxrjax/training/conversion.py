"""Conversion of models: Hugging Face, GGUF and PEFT in, Hugging Face and PEFT out."""

from pathlib import Path
from typing import Annotated, Literal

from cxrjax.errors import UserError
from cxrjax.files import shipped
from cxrjax.flags import Flag
from cxrjax.paths import AnyPath, out_path, to_path


def convert(
    checkpoint: Annotated[AnyPath, Flag("PATH", shipped)],
    out: Annotated[AnyPath, Flag("DIR", out_path)],
    *,
    to: Literal["orbax", "hf", "peft", "merged"] = "orbax",
    base: Annotated[AnyPath | None, Flag("DIR", shipped)] = None,
    base_name: Annotated[str | None, Flag("NAME")] = None,
    download: bool = False,
    push: Annotated[str | None, Flag("OWNER/NAME")] = None,
    public: bool = False,
    dtype: Literal["float32", "bfloat16"] | None = None,
) -> None:
    """Converts a model; what it is, is recognised.

    Args:
        checkpoint: a Hugging Face folder, a GGUF file of Gemma 3, a PEFT adapter, a base, a
            training run, hf://OWNER/NAME, or with `download` the name of a model on the hub.
        out: folder to write.
        to: "orbax" (default): a base to train from, of an adapter a workdir; "hf": a Hugging Face
            folder; "peft": the adapters of a run; "merged": as "hf", adapters in the weights.
        base: of a PEFT adapter, a base directory.
        base_name: of "peft", the base's name in its files; None: its published name.
        download: fetch the model into the hub's cache.
        push: name on the hub to upload the converted folder to, with a model card.
        public: make it readable for all; else it is private.
        dtype: of the parameters; None: as they are, of a run float32.

    Raises:
        UserError: options that do not go together, a name on the hub without `download`, or files
            that cannot be used.
    """
    # Here, as elsewhere in this file: --help of the command loads no library.
    from cxrjax.lock import file_lock
    from cxrjax.progress import waiting
    from cxrjax.training import interchange, publishing

    place = to_path(out)
    if public and push is None:
        raise UserError("--public: is about --push=OWNER/NAME, which is not given")
    if push is not None:
        publishing.claim(push, public, place)
    source, name = _source(shipped(checkpoint), place, download)
    kind = interchange.kind_of(source)
    if (kind == "peft") != (base is not None):
        raise UserError(
            f"{source}: is a PEFT adapter and needs --base, a base directory of ours"
            if kind == "peft"
            else f"--base={base}: only a PEFT adapter needs one, and {source} is none"
        )
    if base_name is not None and to != "peft":
        raise UserError(f"--base_name={base_name}: only --to=peft writes a base's name")
    if kind in ("hf", "gguf", "peft") and to != "orbax":
        raise UserError(f"--to={to}: {source} is not ours; convert it to a base first")
    try:
        with file_lock(place), waiting(f"converting {source}"):
            if kind == "hf":
                interchange.import_hf(source, place, dtype, name)
            elif kind == "gguf":
                interchange.import_gguf(source, place, dtype)
            elif base is not None:
                interchange.import_peft(source, shipped(base), place)
            elif to == "peft":
                interchange.export_peft(source, place, base_name)
            elif to in ("hf", "merged"):
                interchange.export_hf(source, place, merge=to == "merged", dtype=dtype)
            elif to == "orbax":
                interchange.export_base(source, place, dtype or "float32")
            else:
                raise UserError(f"--to={to}: expected orbax, hf, peft or merged")
    except OSError as error:
        if error.filename is None or not to_path(error.filename).absolute().is_relative_to(
            place.absolute()
        ):
            raise
        raise UserError(f"--out={out}: cannot be written: {error.strerror}") from None
    if push is not None:
        print(publishing.push(place, push, source))


def _source(checkpoint: Path, out: Path, download: bool) -> tuple[Path, str | None]:
    """Returns the folder or file to convert, and its name on the hub."""
    from cxrjax.training import hub, interchange, resolver

    if address := hub.hub_address(checkpoint):
        found = hub.download(address)
        ours = interchange.kind_of(found) == "base"
        return resolver.resolve(checkpoint) if ours else found, address.partition("@")[0]
    name = hub.hub_name(checkpoint)
    if name is not None:
        if not download:
            raise hub.how_to_get(name, out)
        return hub.download(name), name
    if download:
        raise UserError(
            f"--download: {checkpoint} is no name on the hub, or a folder of this machine; "
            "leave the flag out"
        )
    return checkpoint, None
