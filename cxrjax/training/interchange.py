"""Models from elsewhere as base directories and runs, and ours as files for elsewhere.

A base that came from Hugging Face keeps `hf.json` beside its `model.json`: the `config.json` that
it came with, what its files called the parts of the model, and its name. With that the same model
can go back out.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import optax
from flax import nnx

from cxrjax.codecs.resize_rules import RESIZE_RULES
from cxrjax.decoding.strategy import DecodingConfig
from cxrjax.errors import UserError
from cxrjax.files import read_json_object, read_packaged, reading
from cxrjax.input_pipeline import chat
from cxrjax.input_pipeline.data_config import DataConfig
from cxrjax.input_pipeline.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from cxrjax.models import hf_import, partition
from cxrjax.models.families import FAMILIES
from cxrjax.models.gguf import GGUFFile
from cxrjax.models.hf_config import MOST_CONFIG_BYTES, complete_config, read_config
from cxrjax.models.hf_export import hf_tensors, write_shards
from cxrjax.models.hf_layout import found_prefixes, published_prefixes, unasked, vlm_config
from cxrjax.models.lora import AdapterConfig, merge_lora
from cxrjax.models.partition import path_of
from cxrjax.models.peft import ADAPTER_CONFIG, LOC_ROWS, read_peft, save_peft, saved_modules
from cxrjax.models.presets import IMAGE, VLMConfig
from cxrjax.paths import to_path
from cxrjax.training.base_model import (
    HF_FILE,
    MODEL_FILE,
    TOKENIZER_FILE,
    TOKENIZER_JSON,
    base_config,
    base_sha256,
    copy_tokenizer,
    model_sizes,
    preset_of,
    read_model_json,
    save_base,
    tokenizer_path,
)
from cxrjax.training.checkpoint import build_model, load_model
from cxrjax.training.config import ExperimentConfig, ModelConfig
from cxrjax.training.step import init_state
from cxrjax.training.store import CheckpointStore
from cxrjax.training.workdir import CONFIG_FILE, write_json
from cxrjax.untrusted.foreign_files import MIB, open_foreign, read_bytes

Kind = Literal["base", "run", "hf", "gguf", "peft"]
# Beside the tokenizer itself: what transformers reads with a model, and we keep for the way back.
_SIDE_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
)
_TOKENIZERS = (TOKENIZER_FILE, TOKENIZER_JSON)
_MOST_SIDE_BYTES = 64 * MIB


def kind_of(source: str | Path) -> Kind:
    """Returns the kind of a checkpoint.

    Raises:
        UserError: nothing that can be converted.
    """
    source = to_path(source)
    if source.is_file():
        with reading(source), open_foreign(source) as file:
            if file.read(4) != b"GGUF":
                raise UserError(f"{source}: not a GGUF file; name the folder of a model")
        return "gguf"
    if (source / MODEL_FILE).is_file():
        return "base"
    if (source / ADAPTER_CONFIG).is_file():
        return "peft"
    if (source / CONFIG_FILE).is_file():
        return "hf" if "model_type" in read_json_object(source / CONFIG_FILE) else "run"
    if not source.exists():
        raise UserError(
            f"{source}: not there; expected a folder, a GGUF file, or the name of a model on the "
            "Hugging Face hub alone, such as google/medgemma-4b-it"
        )
    raise UserError(
        f"{source}: nothing to convert; expected a Hugging Face directory (config.json), a GGUF "
        f"file, a PEFT adapter ({ADAPTER_CONFIG}), a base ({MODEL_FILE}) or a training workdir"
    )


def import_hf(
    source: str | Path, out: str | Path, dtype: str | None = None, name: str | None = None
) -> VLMConfig:
    """A Hugging Face directory as a base directory.

    Args:
        dtype: of the parameters; None: bfloat16 where all tensors are, else float32.
        name: of the model on the hub; None: the directory's.

    Returns:
        The model's sizes.

    Raises:
        UserError: anything that does not fit together, in one line.
    """
    source, out = to_path(source), to_path(out)
    _refuse_existing(out)
    stated = read_json_object(source / CONFIG_FILE, MOST_CONFIG_BYTES)
    config = read_config(source)
    family = FAMILIES[config["model_type"]]
    files = hf_import.open_checkpoint(source)
    if family.tied_without_head and "tie_word_embeddings" not in stated:
        config["tie_word_embeddings"] = "lm_head.weight" not in files.tensors
    tokenizer = load_tokenizer(source)
    form = family.form(config)
    sizes = _sizes(config, str(source / CONFIG_FILE), tokenizer, form)
    if form is not None:
        chat.check_template(source, chat.CHAT_FORMS[form])
    for what, names in unasked(files.tensors, sizes).items():
        print(f"{source}: {len(names):,} tensors are left out, of {what}")
        files.leave_out(names)
    # So that what goes out again is whole.
    stated = stated | {key: None for key in family.left_out_keys if stated.get(key)}
    sizes = hf_import.with_own_head(sizes, files)
    says_untied = config.get("tie_word_embeddings") is False and sizes.decoder.tied
    if says_untied and "lm_head.weight" not in files.tensors:
        raise UserError(
            f"{source / CONFIG_FILE}: tie_word_embeddings is False, and the weights have no output "
            "layer: transformers would draw one at random; set it to true if the embedding is meant"
        )
    arrays = hf_import.read_parameters(files, sizes, dtype, where=str(source))
    prefixes = found_prefixes(tensor.name for tensor in files.tensors.values())
    _copy_files(source, out, (*_SIDE_FILES, *_TOKENIZERS))
    notes = _hf_notes(stated, prefixes, name or source.name)
    _write_base(out, sizes, arrays, to_path(tokenizer.name), notes, form)
    return sizes


def import_gguf(source: str | Path, out: str | Path, dtype: str | None = None) -> VLMConfig:
    """A GGUF file of Gemma 3 as a base directory, dequantised; as `import_hf`, float32 if None."""
    source, out = to_path(source), to_path(out)
    _refuse_existing(out)
    file = GGUFFile(source)
    stated = file.config()
    config = complete_config(stated, str(source))
    tokenizer = file.tokenizer()
    form = FAMILIES[config["model_type"]].form(config)
    sizes = _sizes(config, str(source), tokenizer, form)
    hf_import.check_tensors(file.shapes, sizes, str(source))
    arrays = hf_import.parameters_of_stream(file.tensors(), sizes, dtype or "float32", str(source))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer_file = out / tokenizer.file_name
    tokenizer_file.write_bytes(tokenizer.model)
    notes = _hf_notes(stated, published_prefixes(sizes), source.name)
    _write_base(out, sizes, arrays, tokenizer_file, notes, form)
    return sizes


def import_peft(adapter: str | Path, base: str | Path, out: str | Path) -> list[str]:
    """A PEFT adapter on a base of ours as a run's workdir, for `load_model` and `--workdir`.

    Returns:
        The paths of the maps that have an adapter.

    Raises:
        UserError: an adapter that cannot be read, or of another base.
    """
    out, base = to_path(out), to_path(base)
    _refuse_file(out)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: not empty; write elsewhere")
    config = base_config(base)
    sizes = model_sizes(config)
    found = read_peft(adapter, sizes)
    lora = dataclasses.asdict(found.config)
    for key in ("rank_pattern", "alpha_pattern"):
        lora[key] = tuple(f"{rule}={value}" for rule, value in lora[key].items())
    rows = LOC_ROWS in found.arrays
    whole = (f"^{path}$" for path in found.arrays if "/lora/" not in path and path != LOC_ROWS)
    trained = ("/lora/", *(("loc_delta$",) if rows else ()), *whole)
    config = dataclasses.replace(
        config,
        lora=AdapterConfig(**lora, loc_rows=rows, untied=found.untied, init_from=str(adapter)),
        trainable=trained,
        training=dataclasses.replace(config.training, batch_images=1, steps=1),
    )
    model, reference = build_model(config)
    # The run holds what it has read.
    config = dataclasses.replace(config, lora=dataclasses.replace(config.lora, init_from=None))
    _, trainable, _ = partition(model, config.trainable)
    # No moments: whole tables of MedGemma would have 11 GB of zeros.
    state = init_state(trainable, optax.set_to_zero())
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / CONFIG_FILE, config.to_json())
    copy_tokenizer(tokenizer_path(config), out)
    store = CheckpointStore(out, config.training.best_metric)
    store.save(1, state, {}, reference, {})
    store.close()
    return sorted(path.removesuffix("/lora/a") for path in found.arrays if path.endswith("/lora/a"))


def export_base(
    source: str | Path, out: str | Path, dtype: str = "float32", *, merge: bool = False
) -> None:
    """A run without adapters, or another base, as a base directory.

    Args:
        merge: fold adapters and trained `<loc>` rows in; without, a run that has some is refused.

    Raises:
        UserError: the run has adapters, and no `merge`.
    """
    source, out = to_path(source), to_path(out)
    model, config, tokenizer = load_model(source)
    if config.lora.adapts:
        if not merge:
            raise UserError(
                f"{source}: has adapters, and a base has none; use it by --workdir as it is, or "
                "write it with --to=peft or --to=merged"
            )
        merge_lora(model)
        untied = config.lora.untied or config.lora.box_rank > 0
        config = dataclasses.replace(config, lora=AdapterConfig(untied=untied))
    _refuse_existing(out)
    is_base = kind_of(source) == "base"
    base = source if is_base else config.model.init_from
    if base is not None and (to_path(base) / HF_FILE).is_file():
        _copy_files(to_path(base), out, (HF_FILE, *_SIDE_FILES, *_TOKENIZERS))
    notes = {"data": ", ".join(config.train_files) or None, "findings": list(config.data.findings)}
    if is_base:
        found = read_model_json(source).get("notes")
        notes = found if isinstance(found, dict) else {}
    save_base(out, model, config, tokenizer, dtype=dtype, notes=notes)


def export_hf(
    source: str | Path, out: str | Path, *, merge: bool = False, dtype: str | None = None
) -> list[str]:
    """A base or a run as a Hugging Face directory.

    Args:
        source: whose base came from Hugging Face or GGUF.
        merge: fold adapters and trained `<loc>` rows in; without, a model that has some is refused.
        dtype: of the tensors; None: of a base as it is stored, of a run as it computes.

    Returns:
        The paths of the maps whose adapter was merged.

    Raises:
        UserError: adapters and no `merge`, or a model that did not come from Hugging Face.
    """
    source, out = to_path(source), to_path(out)
    _refuse_existing(out)
    if kind_of(source) == "base":
        notes, base = _read_hf_notes(source), source
        model = build_model(base_config(source))[0]
    else:
        loaded = load_model(source)
        base, model = _base_of(loaded.config, source), loaded.model
        notes = _read_hf_notes(base)
        if not merge and loaded.config.lora.adapts:
            raise UserError(
                f"{source}: has adapters; --to=merged folds them in, --to=peft writes them alone"
            )
    published = published_prefixes(model.config)
    prefixes = {part: published[part] for part in published if part == "lm_head."} | notes[
        "prefixes"
    ]
    lacking = published.keys() - prefixes.keys()
    if lacking:
        raise UserError(
            f"{base / HF_FILE}: does not say what {', '.join(sorted(lacking))} is called; convert "
            "the model again"
        )
    merged = merge_lora(model) if merge else []
    tensors = hf_tensors(model, model.config, prefixes, dtype)
    _copy_files(base, out, (*_SIDE_FILES, *_TOKENIZERS))
    write_shards(out, tensors)
    kinds = {tensor.dtype for tensor in tensors}
    config = {key: value for key, value in notes["config"].items() if key != "torch_dtype"}
    config["dtype"] = kinds.pop() if len(kinds) == 1 else "float32"
    tied = model.config.decoder.tied
    family = FAMILIES[model.config.family]
    is_stated = family.settings["tie_word_embeddings"].default is False or family.tied_without_head
    for part in (config, config.get("text_config") or {}):
        # Stated otherwise where the file had the embedding again, or an adapter untied them.
        if "tie_word_embeddings" in part or not (part is not config or tied or is_stated):
            part["tie_word_embeddings"] = tied
    # Last, since it is what makes the directory a model.
    text = json.dumps(config, indent=2) + "\n"
    (out / CONFIG_FILE).write_text(text, encoding="utf-8")
    return merged


def export_peft(source: str | Path, out: str | Path, base_name: str | None = None) -> list[str]:
    """A run's adapters as a PEFT adapter directory, with a README.md that names their base.

    Args:
        base_name: of the Hugging Face model that they belong to; None: as the base was called.

    Returns:
        The paths of the maps that have an adapter.

    Raises:
        UserError: not a run with adapters, or one that trained other parameters as well.
    """
    source, out = to_path(source), to_path(out)
    _refuse_file(out)
    if (out / ADAPTER_CONFIG).exists():
        raise UserError(f"{out}: holds an adapter already; remove it or write elsewhere")
    if kind_of(source) != "run":
        raise UserError(f"{source}: expected a training workdir, whose adapters to write")
    loaded = load_model(source)
    _, trainable, _ = partition(loaded.model, loaded.config.trainable)
    paths = [path_of(path) for path, _ in nnx.to_flat_state(trainable)]
    other = [p for p in paths if "/lora/" not in p]
    other = sorted(set(other) - {"decoder/embedder/loc_delta"})
    modules = [
        {rule.path for rule in rules} for rules in saved_modules(loaded.model.config).values()
    ]
    whole = set().union(*(module for module in modules if module <= set(other)))
    other = [path for path in other if path not in whole]
    if other:
        raise UserError(
            f"{source}: trained {len(other)} parameters besides adapters, such as {other[0]}, and "
            "a PEFT adapter has no place for them; use --to=merged"
        )
    base_model, sha256 = base_name, None
    if loaded.config.model.init_from is not None:
        base = to_path(loaded.config.model.init_from)
        sha256 = base_sha256(base)
        if base_name is None and (base / HF_FILE).is_file():
            base_model = _read_hf_notes(base).get("source")
    written = save_peft(
        out,
        loaded.model,
        base_model,
        use_rslora=loaded.config.lora.use_rslora,
        base_sha256=sha256,
        whole=whole,
    )
    named = base_model or "the base that the run began with"
    text = read_packaged("cxrjax.training", "adapter_card.txt").format(
        base=json.dumps(named), name=named, prompt=loaded.config.data.prompt
    )
    (out / "README.md").write_text(text, encoding="utf-8")
    return written


def _sizes(
    config: Mapping[str, Any], where: str, tokenizer: Tokenizer, form: str | None
) -> VLMConfig:
    contexts: tuple[tuple[int, ...], ...] = ((IMAGE,), (IMAGE,))
    if form is not None and "vision_config" in config:
        contexts = chat.contexts(chat.CHAT_FORMS[form], tokenizer, IMAGE)
    sizes = vlm_config(config, where, tokenizer.loc_token_start, *contexts)
    check_vocabulary(tokenizer, sizes.decoder.vocab_size)
    return sizes


def _settings(sizes: VLMConfig, form: str | None) -> ExperimentConfig:
    """Returns settings by which a model wants to be asked, as far as its family says."""
    model = ModelConfig(preset=preset_of(sizes))
    family = FAMILIES[sizes.family]
    if form is None or family.resize is None:
        return ExperimentConfig(model=model)
    # Conversations, in which sharing the image's tokens changes nothing.
    rule, prompt = RESIZE_RULES[family.resize], chat.CHAT_FORMS[form].prompt or form
    return ExperimentConfig(
        model=dataclasses.replace(model, share="image"),
        data=DataConfig(prompt=prompt, codec=rule.codec, geometry=rule.placing),
        decoding=DecodingConfig(grammar="none"),
    )


def _write_base(
    out: Path,
    sizes: VLMConfig,
    arrays: dict[str, jax.Array],
    tokenizer_file: Path,
    notes: Mapping[str, Any],
    form: str | None,
) -> None:
    config = _settings(sizes, form)
    write_json(out / HF_FILE, dict(notes))
    model = hf_import.make_model(sizes, arrays, share=config.model.share)
    save_base(out, model, config, tokenizer_file, dtype=None, notes={"source": notes["source"]})


def _hf_notes(
    stated: Mapping[str, Any], prefixes: Mapping[str, str], source: str
) -> dict[str, Any]:
    return {"source": source, "prefixes": dict(prefixes), "config": dict(stated)}


def _read_hf_notes(base: Path) -> dict[str, Any]:
    if not (base / HF_FILE).is_file():
        raise UserError(
            f"{base}: has no {HF_FILE}: it was not imported from Hugging Face or GGUF, and no "
            "configuration is known to give it back with; only imported models can be exported"
        )
    notes = read_json_object(base / HF_FILE, MOST_CONFIG_BYTES)
    prefixes, config = notes.get("prefixes"), notes.get("config")
    named = isinstance(prefixes, dict) and all(isinstance(x, str) for x in prefixes.values())
    if not named or not isinstance(config, dict):
        raise UserError(
            f"{base / HF_FILE}: expected prefixes and config as an import writes them; convert the "
            "model again"
        )
    return notes


def _base_of(config: ExperimentConfig, source: Path) -> Path:
    if config.model.init_from is None:
        raise UserError(
            f"{source}: was trained from random parameters, not from a Hugging Face model"
        )
    return to_path(config.model.init_from)


def _copy_files(source: Path, out: Path, names: Iterable[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (source / name).is_file():
            with reading(source / name):
                (out / name).write_bytes(read_bytes(source / name, _MOST_SIDE_BYTES))


def _refuse_existing(out: Path) -> None:
    _refuse_file(out)
    for name in (MODEL_FILE, CONFIG_FILE):
        if (out / name).exists():
            raise UserError(f"{out}: holds a model already ({name}); remove it or write elsewhere")


def _refuse_file(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file, expected a folder to write to; choose another --out")
