"""Converted models on the Hugging Face hub: the right to write, the card, the upload."""

import json
from collections.abc import Iterator
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.files import read_json_object, read_packaged
from cxrjax.models.peft import ADAPTER_CONFIG
from cxrjax.paths import in_bucket, to_path
from cxrjax.paths.hub import refusals
from cxrjax.training import hub
from cxrjax.training.base_model import HF_FILE, MODEL_FILE
from cxrjax.training.workdir import CONFIG_FILE
from cxrjax.untrusted.foreign_files import read_text

_CARD, _METRICS = "README.md", "metrics.json"
_LOAD = {
    "hf": '`cxrjax.load("hf://{name}")`, or by transformers: `from_pretrained("{name}")`.',
    "peft": '`cxrjax.load("hf://{name}")`, or `PeftModel.from_pretrained(base, "{name}")`.',
    "orbax": '`cxrjax.load("hf://{name}")`.',
}


def claim(name: str, public: bool, out: Path) -> None:
    """Makes the repository, private unless `public`, and shows that it may be written.

    Raises:
        UserError: not a name, no token, no right to write, or a public one that was to be private.
    """
    import huggingface_hub

    if not hub.NAME.fullmatch(name):
        raise UserError(f"--push={name}: expected OWNER/NAME, as on the Hugging Face hub")
    if in_bucket(out):
        raise UserError(f"--push={name}: {out} is in a bucket; convert into a local folder")
    with refusals(name, "model", what="pushed"):
        huggingface_hub.whoami()
        huggingface_hub.create_repo(name, private=not public, exist_ok=True)
        huggingface_hub.auth_check(name, write=True)
        if not public and not huggingface_hub.model_info(name).private:
            raise UserError(f"--push={name}: is public already; add --public if it is to be")


def push(folder: Path, name: str, source: Path) -> str:
    """Writes the card of a converted model, uploads the folder, and returns the model's page.

    Args:
        source: what was converted; its metrics.json goes into the card.

    Raises:
        UserError: the hub refuses it; the folder is whole then.
    """
    import huggingface_hub

    _write_card(folder, name, source)
    try:
        with refusals(name, "model", what="pushed"):
            made = huggingface_hub.upload_folder(
                repo_id=name, folder_path=str(folder), commit_message="Add a model of cxrjax"
            )
    except UserError as error:
        raise UserError(f"{error}; {folder} is whole: `hf upload {name} {folder}`") from None
    return str(made.commit_url).partition("/commit/")[0]


def _write_card(folder: Path, name: str, source: Path) -> None:
    """Writes README.md; to that of an adapter, which is there already, it adds what is missing."""
    files = {file.name for file in folder.iterdir()}
    kind = "hf" if CONFIG_FILE in files and not {MODEL_FILE, "checkpoints"} & files else "orbax"
    kind = "peft" if ADAPTER_CONFIG in files else kind
    base = _base(folder, source)
    text = read_packaged("cxrjax.training", "model_card.txt").format(
        library="transformers" if kind == "hf" else "cxrjax",
        base=base or "a base without a name on the hub",
        base_yaml=json.dumps(base or []),
    )
    if kind == "peft":
        text = read_text(folder / _CARD)
    terms = base and hub.licence(base)
    text += f"\nLicence: {terms or 'the terms of the base'}; it and the data's terms hold here.\n"
    text += f"\nTo load it: {_LOAD[kind].format(name=name)}\n\n"
    text += "\n".join(_measured(source / _METRICS))
    (folder / _CARD).write_text(text, encoding="utf-8")


def _base(folder: Path, source: Path) -> str | None:
    """The hub's name of the model that a folder was made from, as far as its files say."""
    run = source / CONFIG_FILE
    start = read_json_object(run).get("model", {}).get("init_from") if run.is_file() else None
    places = (folder / HF_FILE, source / HF_FILE, to_path(start or "") / HF_FILE)
    for file in (folder / ADAPTER_CONFIG, *places):
        if file.is_file():
            content = read_json_object(file)
            name = content.get("base_model_name_or_path") or content.get("source")
            if isinstance(name, str) and hub.NAME.fullmatch(name):
                return name
    return None


def _measured(file: Path) -> Iterator[str]:
    """A table of what `score` measured, or that nothing is known."""
    if not file.is_file():
        yield "Nothing was measured that this card knows of.\n"
        return
    yield "Measured (`score`, strict protocol, 95 % intervals):\n"
    yield from ("| system | figure | value | interval | n |", "| --- | --- | --- | --- | --- |")
    try:
        for system, protocols in read_json_object(file).items():
            for figure, of in protocols["strict"].items():
                if of["value"] is not None:  # defined
                    between = f"{of['ci_low']} to {of['ci_high']}"
                    yield f"| {system} | {figure} | {of['value']:.4g} | {between} | {of['n']} |"
    except (KeyError, TypeError, AttributeError, ValueError):
        raise UserError(f"{file}: not what `score` writes; remove it or score again") from None
