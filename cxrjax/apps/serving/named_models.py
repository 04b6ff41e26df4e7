"""The models that a server answers by: a base or a run, and adapters on it, each by its name."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from cxrjax.apps.serving.mixed_lora import AdapterParts, adapter_parts, mix_adapters
from cxrjax.apps.serving.programs import Programs, Shapes
from cxrjax.decoding.answer_forms import answer_grammar
from cxrjax.decoding.confidence import answer_word_tokens
from cxrjax.decoding.grammar import Grammar, join_grammars
from cxrjax.decoding.strategy import Strategy, read_decoding
from cxrjax.errors import UserError
from cxrjax.evaluation.conformal import Margins
from cxrjax.evaluation.systems.own_model import OwnModel, open_model
from cxrjax.input_pipeline.examples import ExampleConfig, QuestionEncoder
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.models import VLM, apply_lora, partition
from cxrjax.models.partition import path_of
from cxrjax.models.peft import ADAPTER_CONFIG, LOC_DELTA, adapter_parameters, read_peft
from cxrjax.models.presets import VLMConfig
from cxrjax.training.base_model import MODEL_FILE, base_sha256
from cxrjax.training.checkpoint import best_step
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.store import CheckpointStore

# Answer forms that a request may ask for, whatever the model's own is.
FORMS = ("yes_no", "option", "options", "located")
# Lengths that questions are padded to besides those that a model was trained with: most are short.
_SHORT = (16, 32)


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A model as requests name it."""

    name: str
    tokenizer: Tokenizer
    examples: ExampleConfig
    strategy: Strategy  # how it decodes where a request says nothing
    start: int  # where its own grammar begins
    free: bool  # it has none
    # Where the grammars of `FORMS` begin, and the fewest tokens of their answers.
    forms: Mapping[str, tuple[int, int]]
    shortest: int
    adapter: int  # its number; 0: none
    sizes: VLMConfig
    margins: Margins | None = None  # by which its boxes are made wider; None: as they are

    @property
    def needs_finding(self) -> bool:
        """Returns whether every question to the model must name one finding."""
        return PROMPTS[self.examples.prompt].needs_finding

    def image_tokens(self, pixels: np.ndarray) -> int:
        """Tokens of an image [H, W, 3], or of several [n, H, W, 3]."""
        several = pixels.reshape(-1, *pixels.shape[-3:])
        vision = self.sizes.of_batch(several).vision
        assert vision is not None
        return len(several) * vision.num_tokens

    def encoder(self) -> QuestionEncoder:
        """Records to prompts."""
        return QuestionEncoder(self.tokenizer, self.examples)


@dataclasses.dataclass(frozen=True)
class ServedModels:
    """Programs of a base with all adapters, and the models by name, the base first."""

    programs: Programs
    by_name: Mapping[str, NamedModel]
    stop_ids: tuple[int, ...]


def open_served(
    directory: Path,
    name: str,
    adapters: Mapping[str, Path],
    *,
    slots: int,
    longest_prompt: int,
    decoding: Mapping[str, Any],
    step: int | None = None,
    source: str | None = None,
    prompt: str | None = None,
    margins: Margins | None = None,
    least_bucket: int = 0,
    mesh: Mesh | None = None,
) -> ServedModels:
    """Opens a model and adapters on it.

    Args:
        adapters: name -> a run's workdir, or a PEFT adapter's folder.
        longest_prompt: tokens of a question, at most.
        decoding: `decoding.*` keys in place of each model's own.
        step, source, prompt: as in `open_model`; not of the adapters.
        margins: of the first model.
        least_bucket: tokens that shorter questions are padded to: fewer programs to compile.
        mesh: devices that the model is split over; None: one device.

    Raises:
        UserError: no such models, or models that do not go together.
    """
    opened = open_model(directory, step, source=source, prompt=prompt, decoding=decoding, mesh=mesh)
    base, models, parts = opened.generator.model, [(name, opened)], []
    if adapters and opened.config.lora.adapts:
        raise UserError(
            f"{directory}: has its own adapter, and --adapter adds adapters to a base; pass "
            "--checkpoint=BASE, and this one as --adapter too"
        )
    for other, folder in adapters.items():
        if other in dict(models):
            raise UserError(f"--adapter={other}={folder}: the name is taken; choose another")
        theirs, part = _open_adapter(folder, opened, directory, decoding)
        _check_alike(folder, opened, theirs)
        models.append((other, theirs))
        parts.append(part)
    if parts:
        base = nnx.merge(*nnx.split(base))
        mix_adapters(base, parts)
    buckets = _buckets(models, longest_prompt, least_bucket)
    return _serve(base, models, slots, buckets, margins, mesh)


def _serve(
    model: VLM,
    models: Sequence[tuple[str, OwnModel]],
    slots: int,
    buckets: tuple[int, ...],
    margins: Margins | None,
    mesh: Mesh | None,
) -> ServedModels:
    first = models[0][1]
    grammars: list[Grammar] = []
    numbers: list[int | None] = []
    for _, opened in models:
        _, grammar = _decoding_of(opened)
        numbers.append(None if grammar is None else len(grammars))
        grammars += [] if grammar is None else [grammar]
    known = FORMS if model.config.loc_token_start >= 0 else FORMS[:-1]
    forms = [answer_grammar(form, first.tokenizer) for form in known]
    grammars += [form for form in forms if form is not None]
    joined, starts = join_grammars(grammars)
    of_forms = {
        form: (start, int(joined.shortest[start]))
        for form, start in zip(known, starts[-len(known) :], strict=True)
    }
    images = 2 if first.examples.earlier_images else 1
    by_name = {}
    for number, ((name, opened), grammar_number) in enumerate(zip(models, numbers, strict=True)):
        strategy, _ = _decoding_of(opened)
        start = 0 if grammar_number is None else starts[grammar_number]
        by_name[name] = NamedModel(
            name,
            first.tokenizer,
            dataclasses.replace(opened.examples, prefix_buckets=buckets, packed_buckets=()),
            strategy,
            start,
            free=grammar_number is None,
            forms=of_forms,
            shortest=0 if grammar_number is None else int(joined.shortest[start]),
            adapter=number,
            sizes=model.config,
            margins=margins if number == 0 else None,
        )
    strategy, _ = _decoding_of(first)
    longest = max(one.strategy.max_answer_tokens for one in by_name.values())
    shapes = Shapes(slots, buckets, longest, images, first.examples.grids)
    programs = Programs(
        model,
        shapes,
        joined,
        strategy.stop_ids,
        strategy.boxes,
        np.asarray(answer_word_tokens(first.tokenizer)),
        mesh=mesh,
    )
    return ServedModels(programs, by_name, strategy.stop_ids)


def _buckets(models: Sequence[tuple[str, OwnModel]], longest: int, least: int) -> tuple[int, ...]:
    every = {length for _, opened in models for length in opened.examples.prefix_buckets}
    every |= set(_SHORT)
    fitting = sorted(length for length in every if least <= length < longest)
    return (*fitting, longest)


def _decoding_of(opened: OwnModel) -> tuple[Strategy, Grammar | None]:
    """Returns the strategy and the grammar of a model.

    Raises:
        UserError: a strategy that slots do not support.
    """
    config = opened.config
    strategy, grammar = read_decoding(config.decoding, opened.tokenizer, config.data.codec)
    if strategy.beams > 1 or strategy.best_of > 1 or strategy.top_k > 0:
        raise UserError(
            f"decoding.beams={strategy.beams}, best_of={strategy.best_of}, "
            f"top_k={strategy.top_k}: a server takes the likeliest token or draws one; serve it "
            "with --beams=1 --best_of=1 --top_k=0"
        )
    return strategy, grammar


def _open_adapter(
    folder: Path, base: OwnModel, directory: Path, decoding: Mapping[str, Any]
) -> tuple[OwnModel, AdapterParts]:
    if (folder / ADAPTER_CONFIG).is_file():
        return base, _peft_parts(folder, base.generator.model, directory)
    opened = open_model(folder, decoding=decoding)
    if (folder / MODEL_FILE).is_file():
        raise UserError(f"--adapter={folder}: a base; expected a training run or a PEFT adapter")
    _check_trained(folder, opened.generator.model, opened.config)
    store = CheckpointStore(folder, opened.config.training.best_metric, writing=False)
    told = store.restore_json(best_step(folder), "base").get("sha256")
    store.close()
    if told != base_sha256(directory):
        raise UserError(
            f"--adapter={folder}: trained on another base than {directory}; serve it with the base "
            "that it was trained on"
        )
    model = opened.generator.model
    return dataclasses.replace(opened, generator=base.generator), adapter_parts(model)


def _peft_parts(folder: Path, model: VLM, directory: Path) -> AdapterParts:
    adapter = read_peft(folder, model.config)
    if adapter.base_sha256 not in (None, base_sha256(directory)):
        raise UserError(f"--adapter={folder}: trained on another base than {directory}")
    own = nnx.merge(*nnx.split(model))
    trained = adapter_parameters(own, adapter)
    _check_only_adapter(folder, trained)
    apply_lora(own, adapter.config, nnx.Rngs(0))
    if LOC_DELTA in trained:
        own.decoder.embedder.add_loc_delta()
    filled = [
        (path, leaf.replace(jnp.asarray(trained[path_of(path)])))
        for path, leaf in nnx.to_flat_state(nnx.state(own))
        if path_of(path) in trained
    ]
    nnx.update(own, nnx.from_flat_state(filled))
    return adapter_parts(own)


def _check_trained(folder: Path, model: VLM, config: ExperimentConfig) -> None:
    _, trainable, _ = partition(model, config.trainable)
    _check_only_adapter(folder, (path_of(path) for path, _ in nnx.to_flat_state(trainable)))


def _check_only_adapter(folder: Path, paths: Iterable[str]) -> None:
    other = [path for path in paths if "/lora/" not in path and path != LOC_DELTA]
    if other:
        raise UserError(
            f"--adapter={folder}: trained {len(other)} parameters besides its adapter, such as "
            f"{other[0]}; serve it alone, of a PEFT adapter what `convert --base` makes of it"
        )


def _check_alike(folder: Path, base: OwnModel, other: OwnModel) -> None:
    """Refuses an adapter that would not answer as it does alone."""
    ours, theirs = base.config, other.config
    pairs = {
        f"model.{name}": (getattr(ours.model, name), getattr(theirs.model, name))
        for name in ("share", "dtype", "frozen_dtype")
    }
    # Sizes of images too: embeddings of their places are the base's.
    pairs["the model's sizes (model.preset)"] = (
        base.generator.model.config,
        other.generator.model.config,
    )
    pairs["the sizes of images (model.preset)"] = (base.examples.grids, other.examples.grids)
    pairs["decoding.boxes"] = (ours.decoding.boxes, theirs.decoding.boxes)
    pairs["data.earlier_images"] = (ours.data.earlier_images, theirs.data.earlier_images)
    stops = (_decoding_of(base)[0].stop_ids, _decoding_of(other)[0].stop_ids)
    pairs["decoding.stop_tokens"] = stops
    pairs["the tokenizer"] = (base.tokenizer.model, other.tokenizer.model)
    differ = [name for name, (mine, its) in pairs.items() if mine != its]
    if differ:
        raise UserError(
            f"--adapter={folder}: {', '.join(differ)} differ from the base's; serve it alone with "
            "--workdir (or pass --boxes, if only that differs)"
        )
