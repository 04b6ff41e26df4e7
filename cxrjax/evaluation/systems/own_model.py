"""Our own models as systems: a training run's checkpoint or a base."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from cxrjax.cli import keep_compiled_programs
from cxrjax.decoding.confidence import answer_word_tokens
from cxrjax.decoding.generate import Generator
from cxrjax.decoding.predictor import predict_questions
from cxrjax.decoding.strategy import read_decoding
from cxrjax.distributed import meshes
from cxrjax.distributed.meshes import check_enough_images
from cxrjax.errors import UserError
from cxrjax.evaluation.flags import ModelFlags, RunnerFlags, SourceFlags, mesh_config
from cxrjax.evaluation.systems.base import Answer, Line, check_seeds
from cxrjax.evaluation.systems.stand_in_images import CHANGES, StandInImages
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.models import presets
from cxrjax.progress import waiting
from cxrjax.training.checkpoint import load_model, model_config
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.data import example_config, open_tokenizer
from cxrjax.training.resolver import resolve

# Questions may be longer than those the model was trained on; none is cut.
_LONGER = (32, 64, 128, 256, 512)


@dataclasses.dataclass(frozen=True)
class OwnModel:
    """A model of ours, ready to be asked."""

    generator: Generator
    tokenizer: Tokenizer
    config: ExperimentConfig  # of its run or base, with the changes that were asked for
    examples: ExampleConfig  # how questions become its input


def open_model(
    directory: Path,
    step: int | None = None,
    *,
    source: str | None = None,
    prompt: str | None = None,
    decoding: Mapping[str, Any] | None = None,
    mesh: Mesh | None = None,
) -> OwnModel:
    """Loads a training run's checkpoint or a base.

    Args:
        step: as in `load_model`.
        source: of a run on a mixture, the one whose prompt and codec are taken.
        prompt: another prompt format than the model's own.
        decoding: `decoding.*` keys in place of the model's own.
        mesh: devices that share the work; None: one device.

    Raises:
        UserError: no such model, or options that do not go together.
    """
    keep_compiled_programs()
    with waiting(f"loading {directory}"):
        model, config, tokenizer_path = load_model(directory, step, mesh)
    config = _as_asked(config, source, prompt, decoding or {})
    tokenizer = open_tokenizer(tokenizer_path, config)
    strategy, grammar = read_decoding(config.decoding, tokenizer, config.data.codec)
    if mesh is not None:
        presets.check_heads_divide(mesh.shape["tensor"], model.config)
    generator = Generator(model, strategy, grammar, mesh, answer_word_tokens(tokenizer))
    return OwnModel(generator, tokenizer, config, example_config(config))


def _as_asked(
    config: ExperimentConfig, source: str | None, prompt: str | None, decoding: Mapping[str, Any]
) -> ExperimentConfig:
    """The model's own configuration with what `open_model` is asked for in its place."""
    if source is not None:
        config = config.of_source(source)
    buckets = config.data.prefix_buckets
    return dataclasses.replace(
        config,
        data=dataclasses.replace(
            config.data,
            prompt=prompt or config.data.prompt,
            prefix_buckets=buckets + tuple(n for n in _LONGER if n > max(buckets)),
        ),
        decoding=dataclasses.replace(config.decoding, **decoding),
    )


def model_directory(flags: SourceFlags) -> Path:
    """Returns the run or base that `--workdir` or `--checkpoint` means (`resolver.resolve`)."""
    return _resolved(flags.named, flags.base)


@functools.cache  # what a command asks for twice is hashed once
def _resolved(named: Path, base: Path | None) -> Path:
    return resolve(named, base)


def model_settings(flags: ModelFlags) -> dict[str, Any]:
    """All that shapes the answers but the model, as the flags and its configuration make it.

    Raises:
        UserError: no such model, or options that do not go together.
    """
    directory = model_directory(flags)
    config = _as_asked(model_config(directory), flags.source, flags.prompt, flags.decoding())
    data = config.data
    described = {"prompt": data.prompt, "codec": data.codec, "geometry": data.geometry}
    return described | dataclasses.asdict(config.decoding) | CHANGES.get(flags.image, {})


def start_model(flags: ModelFlags) -> Answer:
    """Loads the model that `--workdir` or `--checkpoint` names, to answer a file of questions.

    Raises:
        UserError: no such model, or options that do not go together.
    """
    if flags.images_per_batch < 1:
        raise UserError(f"--images_per_batch={flags.images_per_batch}: expected at least 1")
    samples = model_settings(flags)["temperature"] > 0
    if samples and not isinstance(flags, RunnerFlags):
        raise UserError(
            "sampled answers differ from run to run, and this command answers once: give "
            "--temperature=0, or `predict` with --seeds=0,1,2 and `score` its files"
        )
    check_seeds(getattr(flags, "seeds", None), samples)
    opened = open_model(
        model_directory(flags),
        flags.step,
        source=flags.source,
        prompt=flags.prompt,
        decoding=flags.decoding(),
        mesh=meshes.make_mesh(mesh_config(flags.mesh)),
    )
    generator, config, examples = opened.generator, opened.config, opened.examples
    images_per_batch = generator.whole_batch(flags.images_per_batch)
    needs_finding = PROMPTS[config.data.prompt].needs_finding

    stand_ins: StandInImages | None = None

    def answer(questions: RecordSource) -> Iterable[Line]:
        nonlocal stand_ins
        unasked: set[int] = set()
        with waiting(f"grouping {questions.path} by image"):
            if needs_finding:
                unasked = {i for i, record in questions.records() if not record.finding}
            source = questions.regrouped(config.data.questions_per_image, unasked)
        check_enough_images(len(questions), str(questions.path))
        if flags.image != "shown":
            if stand_ins is None:
                everything = RecordSource(questions.path, questions.image_root)
                grids = (examples.image_hw, *examples.grids)
                stand_ins = StandInImages(flags.image, everything, grids, flags.seed or 0)
            source = source.showing(stand_ins.of, f"{stand_ins.kind}/{stand_ins.seed}")
        return predict_questions(
            generator, source, opened.tokenizer, examples, images_per_batch=images_per_batch
        )

    return answer
