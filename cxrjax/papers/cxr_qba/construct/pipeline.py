"""Construction of CXR-QBA from reports as an Apache Beam pipeline."""

import argparse
import collections
import contextlib
import threading
from collections.abc import Collection, Iterator, Sequence

from cxrjax.errors import UserError, optional
from cxrjax.flags import options_of
from cxrjax.language_model.flags import ClientFlags
from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions, is_release, refuse_ungraded
from cxrjax.papers.cxr_qba.construct.construction import CorpusFacts, merge_facts
from cxrjax.papers.cxr_qba.construct.shards import (
    ShardedBuild,
    build_graphs,
    build_questions,
    finish,
    note_failure,
    prepare,
    questions_done,
    read_facts,
)
from cxrjax.papers.cxr_qba.construct.tfds_builder import write_qba_tfds
from cxrjax.progress import progress_bar

# By name: "DirectRunner" may fetch a program from the internet.
LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def graphs_of(number: int, job: ShardedBuild, again: Collection[int]) -> CorpusFacts:
    """A shard's facts: its scene graphs are built unless that is done."""
    facts = None if number in again else read_facts(job, number)
    if facts is not None:
        return facts
    # One shard's fault shall not stop the others; the run ends with what it was.
    try:
        return build_graphs(job, number)
    except Exception as error:
        note_failure(job, number, error)
        return CorpusFacts(failed=1)


def questions_of(
    number: int, facts: CorpusFacts, job: ShardedBuild, again: Collection[int]
) -> None:
    """Builds a shard's questions unless that is done, or the corpus is not whole."""
    if facts.failed or (number not in again and questions_done(job, number, facts)):
        return
    try:
        build_questions(job, number, facts)
    except Exception as error:
        note_failure(job, number, error)


def run_pipeline(job: ShardedBuild, again: Collection[int], beam_options: Sequence[str]) -> None:
    """Builds all shards that are not done, and those in `again`; then merges what they counted.

    Args:
        beam_options: flags of Beam, with the runner.

    Raises:
        UserError: shards failed (the message names them).
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    numbers = list(range(job.shards))
    prepare(job)
    with _progress(job), beam.Pipeline(options=PipelineOptions(list(beam_options))) as pipeline:
        facts = (
            pipeline
            | "shards" >> beam.Create(numbers)
            | "spread shards" >> beam.Reshuffle()
            | "scene graphs" >> beam.Map(graphs_of, job, again)
            | "corpus" >> beam.CombineGlobally(merge_facts)
        )
        _ = (
            pipeline
            | "shards again" >> beam.Create(numbers)
            | "spread shards again" >> beam.Reshuffle()
            | "questions" >> beam.Map(questions_of, beam.pvalue.AsSingleton(facts), job, again)
        )
    finish(job)


@contextlib.contextmanager
def _progress(job: ShardedBuild) -> Iterator[None]:
    """A bar of passes over shards that are done, as DIR shows them, whoever does them."""
    ended = threading.Event()

    def watch() -> None:
        with progress_bar(total=2 * job.shards, desc="passes over shards", unit="pass") as bar:
            while not ended.wait(1):
                bar.update(sum(1 for _ in job.done()) - bar.n)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def beam_flags(unknown: Sequence[str], unasked: Sequence[str], processes: int) -> list[str]:
    """The flags that Beam gets.

    Args:
        unknown: those that the command does not know.
        unasked: those for the engine alone.
        processes: workers of the local runner, which runs where no other is named.

    Raises:
        UserError: Beam is not installed, or has no such flag: it would pass over it in silence.
    """
    options = optional(
        "apache_beam.options.pipeline_options",
        "beam",
        "Beam cannot be beside cxrjax's pinned versions: `make beam` makes an environment for it",
    )
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    groups = collections.deque(options.PipelineOptions.__subclasses__())
    while groups:
        group = groups.popleft()
        group._add_argparse_args(parser)
        groups += group.__subclasses__()
    known, left = parser.parse_known_args(list(unknown))
    if left:
        raise UserError(
            f"{left[0]}: neither this command nor Beam has such a flag; see --help (one that only "
            "an engine's job server knows stands after --)"
        )
    flags = [*unknown, *unasked]
    if known.runner is None:
        flags.insert(0, f"--runner={LOCAL_RUNNER}")
    if processes > 1:
        flags += [f"--direct_num_workers={processes}", "--direct_running_mode=multi_processing"]
    return flags


def construct(
    flags: argparse.Namespace, unknown: Sequence[str], unasked: Sequence[str]
) -> Iterator[str]:
    """Constructs what the flags of `build_cxr_qba_shards` request.

    Args:
        unknown, unasked: flags for Beam, as in `beam_flags`.

    Yields:
        Lines to print.

    Raises:
        UserError: unusable flags or reports, or shards that failed.
    """
    build = _options(flags)
    refuse_ungraded(build, build.rate_with != "none")
    if flags.dry_run:
        yield QbaBuilder(build).estimate() or "nothing asks a language model"
        return
    again = _shard_numbers(flags.shards, flags.num_shards)
    options = beam_flags(unknown, unasked, flags.processes)
    run_pipeline(ShardedBuild(build, flags.num_shards), again, options)
    yield (
        f"{flags.out}: records/, qa/, scene_graphs/, metadata/, statistics.json, quality.json, "
        "manifest.json"
    )
    if flags.tfds:
        folder = write_qba_tfds(flags.out, flags.tfds, flags.image_root, options)
        yield f"{folder}: for tfds.builder_from_directory"


def _options(flags: argparse.Namespace) -> QbaOptions:
    if not flags.source.exists():
        raise UserError(f"--source={flags.source}: not there")
    if is_release(flags.source):
        raise UserError(
            f"--source={flags.source} is the release, with its questions; the pipeline constructs "
            "from reports: use python -m cxrjax.build --dataset=cxr_qba"
        )
    if flags.num_shards < 1 or flags.processes < 1:
        raise UserError("--num_shards and --processes: expected at least 1")
    return QbaOptions(
        flags.source,
        flags.out,
        seed=flags.seed,
        rate_with=flags.rate_with,
        least_grade=flags.least_grade,
        entity_model=flags.entity_model,
        regions_cache=flags.regions_cache,
        generator=flags.generator,
        client=options_of(flags, ClientFlags),
    )


def _shard_numbers(text: str, shards: int) -> frozenset[int]:
    try:
        numbers = frozenset(int(number) for number in text.split(",") if number)
    except ValueError:
        raise UserError(f"--shards={text}: expected numbers such as 3,7") from None
    if outside := [number for number in numbers if not 0 <= number < shards]:
        raise UserError(f"--shards={text}: {outside[0]} is not in 0 to {shards - 1}")
    return numbers
