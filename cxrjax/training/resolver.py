"""Loads anything: finds the run or base that a path or a name means, and makes it where need be.

Runs and bases are taken as they are. What comes from elsewhere (a Hugging Face folder, a GGUF file,
a PEFT adapter, `hf://OWNER/NAME`) is converted once, into a cache by the content of its files. To
train from, a run with adapters becomes a base of merged weights in the same way.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.files import file_sha256, read_json_object, shipped
from cxrjax.lock import file_lock
from cxrjax.models.peft import ADAPTER_CONFIG
from cxrjax.paths import is_address, to_path, user_cache
from cxrjax.progress import waiting
from cxrjax.training import hub, interchange
from cxrjax.training.base_model import FORMAT, base_sha256
from cxrjax.training.checkpoint import best_step
from cxrjax.training.store import DIRECTORY
from cxrjax.training.workdir import CONFIG_FILE

_NAMES = {
    "hf": "a Hugging Face folder",
    "gguf": "a GGUF file",
    "peft": "a PEFT adapter",
    "run": "a training run",
    "base": "a base",
}


def resolve(source: str | Path, base: str | Path | None = None) -> Path:
    """Returns the folder of a run or a base of this project that `source` means.

    Args:
        source: a training run's workdir, a base, a Hugging Face folder, a GGUF file, a PEFT adapter
            or `hf://OWNER/NAME`, which is fetched into the hub's cache.
        base: of a PEFT adapter, in any of these forms; None: the one that it names.

    Raises:
        UserError: it is not there, is none of these, or cannot be converted.
    """
    path = _on_this_machine(source)
    kind = interchange.kind_of(path)
    address = hub.hub_address(source)
    if base is not None and kind != "peft":
        raise UserError(f"{source}: only a PEFT adapter has another base, and this is none")
    if kind == "base" and address:  # the hub's cache has links, which no base may hold
        files = [file for file in path.rglob("*") if file.is_file()]
        return _cached(path, files, lambda out: shutil.copytree(path, out))
    if kind in ("run", "base"):
        return path
    if kind == "gguf":
        return _cached(path, [path], lambda out: interchange.import_gguf(path, out))
    if kind == "hf":
        name = (
            address.partition("@")[0] if address else path.name
        )  # what adapters on it will call their base
        files = [file for pattern in hub.FILES for file in path.glob(pattern)]
        return _cached(path, files, lambda out: interchange.import_hf(path, out, name=name), name)
    under = resolve(base or _named_base(path)).absolute()
    if interchange.kind_of(under) == "run":
        raise UserError(f"{under}: is a training run, and an adapter belongs on a base")
    return _cached(
        path,
        path.glob("adapter_*"),
        lambda out: interchange.import_peft(path, under, out),
        base_sha256(under),
        f" --base={under}",
    )


def resolve_base(source: str | Path) -> Path:
    """Returns a base to train from: as `resolve`, and a run with its adapters merged."""
    found = resolve(source)
    if interchange.kind_of(found) == "base":
        return found
    step = best_step(found)
    parameters = (found / DIRECTORY / str(step) / "parameters").rglob("*")
    files = [found / CONFIG_FILE, *(file for file in parameters if file.is_file())]
    return _cached(found, files, lambda out: interchange.export_base(found, out, merge=True))


def _on_this_machine(source: str | Path) -> Path:
    if address := hub.hub_address(source):
        return hub.download(address)
    path = shipped(source)
    name = hub.hub_name(path)
    if name is not None:
        raise hub.how_to_get(name, Path("bases", path.name))
    return path


def _named_base(adapter: Path) -> str | Path:
    """The base that an adapter names: a folder, or a model in the hub's cache on this machine."""
    name = read_json_object(adapter / ADAPTER_CONFIG).get("base_model_name_or_path")
    if isinstance(name, str) and name and not is_address(name):  # no file says what we reach out to
        for folder in (to_path(name), adapter / name, adapter.parent / name):
            if folder.exists():
                return folder
        found = hub.cached(name)
        if found is not None:
            return found
    raise UserError(
        f"{adapter}: a PEFT adapter on {name or 'a base without a name'}, which is not here; give "
        "its base by --base=DIR (from Python base=DIR), or fetch it by --base=hf://OWNER/NAME"
    )


def _cached(
    source: Path,
    files: Iterable[Path],
    convert: Callable[[Path], object],
    more: str = "",
    flags: str = "",
) -> Path:
    """The folder that `convert(folder)` makes of the files, or made of this content before."""
    with waiting(f"reading {source}"):
        content = [f"{file.name} {file_sha256(file)}" for file in sorted(files)]
    key = hashlib.sha256("\n".join([str(FORMAT), more, *content]).encode()).hexdigest()
    out = user_cache() / "models" / f"{source.absolute().name}-{key[:16]}"
    if out.is_dir():
        return out
    told = f"{source}: {_NAMES[interchange.kind_of(source)]}, kept in our form as {out}"
    if interchange.kind_of(source) != "run":
        command = f"python -m cxrjax.convert --checkpoint={source}{flags} --out=DIR"
        told += f"; {command} keeps it elsewhere"
    print(told, file=sys.stderr)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f"{out.name}.part")
    with file_lock(unfinished, "wait until it has ended"), waiting(f"converting {source}"):
        if out.is_dir():  # another process was first
            return out
        shutil.rmtree(unfinished, ignore_errors=True)
        convert(unfinished)
        unfinished.rename(out)
    return out
