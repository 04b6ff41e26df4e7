"""A training run: its records, model, evaluation and checkpoints, put together."""

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cxrjax.distributed import hosts
from cxrjax.errors import UserError
from cxrjax.lock import folder_lock
from cxrjax.paths import to_path
from cxrjax.progress import waiting
from cxrjax.training.tracking import check_installed

if TYPE_CHECKING:
    from flax import nnx
    from jax.sharding import Mesh

    from cxrjax.evaluation.benchmark import References
    from cxrjax.input_pipeline.mixture import Mixture
    from cxrjax.input_pipeline.sources import QuestionSource
    from cxrjax.input_pipeline.tokenizer import Tokenizer
    from cxrjax.records import QARecord
    from cxrjax.training import loop
    from cxrjax.training.config import ExperimentConfig
    from cxrjax.training.data import Features, OpenedRecords
    from cxrjax.training.observers import Observer
    from cxrjax.training.preemption import Preemption

# Records of each source that say of which data set they are.
_LOOKED_AT = 64
# Of the table of trained parameters on the run's card.
_PARAMETER_LINES = 60


def train_run(
    config: "ExperimentConfig",
    workdir: Path,
    preemption: "Preemption | None" = None,
    *,
    track: str | None = None,
    recipe: str | None = None,
    observers: "Sequence[Observer]" = (),
) -> None:
    """Trains a configuration, from its records to the last checkpoint.

    Args:
        observers: what else hears of its steps.
        recipe: FILE[:VARIANT] that the configuration came from, for the run's card.
    """
    from cxrjax.distributed.meshes import check_enough_images, host_rows
    from cxrjax.input_pipeline.loader import train_loader
    from cxrjax.models import presets
    from cxrjax.training import checkpoint, loop, run, store
    from cxrjax.training.base_model import model_sizes, tokenizer_path
    from cxrjax.training.data import (
        check_addresses,
        check_overlap,
        make_features,
        make_mixture,
        open_records,
        open_tokenizer,
        open_training,
        wording_variation,
    )
    from cxrjax.training.objectives import rollouts_of
    from cxrjax.training.workdir import make_writable

    config = _with_base(config)
    check_addresses(config)
    if track is not None and hosts.is_first():
        check_installed(track)  # at once: data and model take minutes
    if config.model.remat == "auto":
        import jax

        # By name: other runs need nothing of the planner.
        choice = importlib.import_module("cxrjax.apps.planner.choice")
        config = choice.resolved(config, jax.devices())
    mesh = run.checked_mesh(config)
    rows = host_rows(mesh, config.batch_images)
    check_benchmark(config)
    with waiting("reading and checking the records"):
        sources, quality = open_training(config)
        validation = references = None
        if config.data.validation is not None:
            validation = open_records(config, "validation")
            check_overlap(config, sources, validation.source)
            references = read_validation(config, validation.source)
    tokenizer_file = tokenizer_path(config)
    tokenizer = open_tokenizer(tokenizer_file, config)
    make_writable(workdir)
    presets.check_heads_divide(mesh.shape["tensor"], model_sizes(config))
    with contextlib.ExitStack() as stack:
        lock = folder_lock(workdir, "choose another --workdir")
        stack.enter_context(hosts.held_by_first(lock))
        with waiting(f"loading the model ({config.model.init_from or config.model.preset})"):
            model, base = checkpoint.build_model(config, mesh)
        features = make_features(config, model, base, mesh)
        mixture = make_mixture(config, sources, features)
        check_enough_images(len(mixture), "training")
        if hosts.is_first():
            print(describe(mixture))
        log_line = log_line_of(mixture)
        loader = train_loader(
            mixture,
            tokenizer,
            global_batch_size=config.batch_images,
            seed=config.training.seed,
            workers=config.data.workers,
            rows=rows,
            augment=config.data.augment,
            wording=wording_variation(config, sources),
        )
        batches = stack.enter_context(loader)
        if not store.has_checkpoints(workdir):  # else it goes on from another step
            batches.start()
        start = run.Start(model, base, tokenizer_file)
        named = (*config.train_files, config.data.validation, config.rl.pairs)
        files = [to_path(p) for p in named if p]
        data = run.TrainingData(batches, config.total_steps(len(mixture)), files, quality)
        evaluate = None
        if validation is not None and references is not None:
            evaluate = make_evaluate(
                config, validation, references, tokenizer, features, mesh, preemption
            )
        loop.train(
            config,
            workdir,
            start,
            data,
            mesh=mesh,
            evaluate=evaluate,
            make_rollouts=rollouts_of(config, tokenizer),
            preemption=preemption,
            track=track,
            log_line=log_line,
            observers=observers,
        )
        if hosts.is_first():
            _write_card(config, workdir, recipe, model, mixture, validation)


def _with_base(config: "ExperimentConfig") -> "ExperimentConfig":
    """The configuration with a base of ours in `model.init_from`, made where it names another.

    What is not there stays: whoever reads the base tells what to put where.
    """
    from cxrjax.training.base_model import MODEL_FILE

    named = config.model.init_from
    if named is None or (to_path(named) / MODEL_FILE).is_file():
        return config
    if not (to_path(named).exists() or named.startswith("hf:/")):
        return config
    # By name: most runs start from a base, and need nothing of conversions.
    resolver = importlib.import_module("cxrjax.training.resolver")
    model = dataclasses.replace(config.model, init_from=str(resolver.resolve_base(named)))
    return dataclasses.replace(config, model=model)


def describe(mixture: "Mixture") -> str:
    """A line of what there is to learn from each source."""
    counts = [
        f"{source.records.num_images:,} images of {source.records.num_questions:,} questions"
        for source in mixture.sources
    ]
    if len(counts) == 1:
        return f"{counts[0]} to learn"
    named = zip(mixture.names, counts, mixture.shares, strict=True)
    return "\n".join(f"{name}: {count}, {share:.1%} of the run" for name, count, share in named)


def log_line_of(mixture: "Mixture") -> Callable[[str], None]:
    """Returns a printer of lines, which adds to those of a step what of the data is simulated."""
    from cxrjax.paper import what_is_made
    from cxrjax.training.run import print_at_once

    made = what_is_made(sorted({record.dataset for record in _some_records(mixture)}))

    def log_line(line: str) -> None:
        print_at_once(f"{line} ({made})" if made and line.startswith("step ") else line)

    return log_line


def _some_records(mixture: "Mixture") -> list["QARecord"]:
    """Records of each source, which say of which data set and in which language they are."""
    return [
        records.record(index * records.num_records // _LOOKED_AT)
        for records in (source.records for source in mixture.sources)
        for index in range(_LOOKED_AT)
    ]


def _write_card(
    config: "ExperimentConfig",
    workdir: Path,
    recipe: str | None,
    model: "nnx.Module",
    mixture: "Mixture",
    validation: "OpenedRecords | None",
) -> None:
    import jax
    from clu import parameter_overview
    from flax import nnx

    from cxrjax.apps.run_card import Data, write_card
    from cxrjax.models import partition
    from cxrjax.training.step import cast_params

    _, trainable, _ = partition(model, config.trainable)
    shapes = jax.eval_shape(lambda state: cast_params(state, "float32"), trainable)
    overview = parameter_overview.get_parameter_overview(
        nnx.to_pure_dict(shapes), include_stats=False, max_lines=_PARAMETER_LINES
    )
    kind = "training" if len(mixture.sources) == 1 else "training, {}"
    data = [
        Data(
            kind.format(source.name),
            str(config.of_source(source.name).data.train if source.name else config.data.train),
            source.records.num_images,
            source.records.num_questions,
        )
        for source in mixture.sources
    ]
    if validation is not None:
        source = validation.source
        files = str(config.data.validation)
        data.append(Data("validation", files, source.num_images, source.num_questions))
    some = _some_records(mixture)
    written = write_card(
        workdir,
        config,
        recipe=recipe,
        data=data,
        datasets=sorted({record.dataset for record in some}),
        languages=sorted({record.lang for record in some}),
        parameters=overview,
    )
    print(f"card of the run: {', '.join(map(str, written))}")


def check_benchmark(config: "ExperimentConfig") -> None:
    """Validates the names of the benchmark and of the figure that picks the best checkpoint.

    Raises:
        UserError: no such benchmark, or a figure that is better the lower it is.
    """
    from cxrjax.evaluation.figure_lines import direction_of, shared_lines
    from cxrjax.paper import load_benchmark

    lines = [*load_benchmark(config.benchmark).layout.lines, *shared_lines("training")]
    metric = config.training.best_metric
    if metric and direction_of(lines, metric) < 0:
        raise UserError(
            f"training.best_metric={metric!r}: lower is better, and the checkpoint with the "
            "highest figure is kept; name another, such as detection/f1@0.3"
        )


def read_validation(config: "ExperimentConfig", source: "QuestionSource") -> "References[Any]":
    """The truth of the validation records, as the configured benchmark scores against it.

    Before the first step: a record that cannot be scored would end the run in its evaluation.

    Raises:
        UserError: the benchmark cannot score a record; names file, question and remedies.
    """
    from cxrjax.paper import benchmark_places, load_benchmark

    benchmark = load_benchmark(config.benchmark)
    records = (record for _, record in source.records())
    try:
        return benchmark.read(records, str(config.data.validation), benchmark.gt_modes[0])
    except UserError as error:
        others = ", ".join(name for name in benchmark_places() if name != config.benchmark)
        raise UserError(
            f"{error}; or, as benchmark={config.benchmark!r} is to score data.validation, set "
            f"--config.benchmark to the one of these records ({others}), or train without "
            "evaluations: --config.data.validation=None"
        ) from None


def make_evaluate(
    config: "ExperimentConfig",
    records: "OpenedRecords",
    references: "References[Any]",
    tokenizer: "Tokenizer",
    features: "Features",
    mesh: "Mesh",
    preemption: "Preemption | None" = None,
) -> "loop.Evaluate":
    """The evaluation during training, on validation records."""
    from cxrjax.decoding.strategy import read_decoding
    from cxrjax.evaluation import validation
    from cxrjax.paper import load_benchmark
    from cxrjax.training.coordinate_report import make_coordinate_report, named_figures
    from cxrjax.training.data import training_examples

    for reason, count in records.quality.counts().items():
        if count and hosts.is_first():
            print(f"validation: {count} records rejected: {reason}")
    strategy, grammar = read_decoding(config.decoding, tokenizer, config.data.codec)
    examples = training_examples(config, features(records.source))
    check = preemption.check if preemption is not None else None
    answers = validation.make_evaluate(
        records.source,
        tokenizer,
        examples,
        benchmark=load_benchmark(config.benchmark),
        references=references,
        strategy=strategy,
        grammar=grammar,
        images_per_batch=config.batch_images,
        mesh=mesh,
        each_answer=check,
    )
    coordinates = make_coordinate_report(
        records.source,
        tokenizer,
        examples,
        images_per_batch=config.batch_images,
        mesh=mesh,
        each_batch=check,
    )
    if coordinates is None:
        return answers
    return lambda step, model: answers(step, model) | named_figures(coordinates(model))
