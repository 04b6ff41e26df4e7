"""Estimates a whole corpus's construction from a sample: core-hours, memory and bytes.

    python -m cxrjax.papers.cxr_qba.construct.estimate --source=SAMPLE
    python -m cxrjax.papers.cxr_qba.construct.estimate ... --masks=158 --images=377110

SAMPLE is anything that the construction reads. Each step is timed by itself, in processor time of
this machine, and multiplied by the corpus's studies, images and questions; masks by their number on
an image, where --masks says how many the corpus has. Figures of MIMIC-CXR are the defaults.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct.construction import CxrQbaConstruction, construct_questions
from cxrjax.papers.cxr_qba.construct.extraction import SourceStudy
from cxrjax.papers.cxr_qba.construct.graph_construction import build_scene_graph
from cxrjax.papers.cxr_qba.construct.regions import localize
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.papers.cxr_qba.records import to_records
from cxrjax.papers.cxr_qba.statistics import RELEASE
from cxrjax.records import format_record
from cxrjax.records_io.quality import QualityLog, Unusable

STUDIES, IMAGES = 227_827, 377_110  # MIMIC-CXR's reports and images


@dataclass
class SampleCost:
    """Seconds of processor time and counts over a sample."""

    studies: int = 0
    images: int = 0
    masks: int = 0
    questions: int = 0
    records: int = 0
    record_bytes: int = 0
    masked_seconds: float = 0.0
    boxed_seconds: float = 0.0
    graph_seconds: float = 0.0
    question_seconds: float = 0.0
    record_seconds: float = 0.0
    slowest_image: float = 0.0


def measure(source: Path, how: CxrQbaConstruction) -> tuple[SampleCost, float]:
    """Runs the construction over a sample without writing, and returns what it took.

    Returns:
        counts and seconds; MB that the process grew by.

    Raises:
        UserError: the source cannot be read or has no study to use.
    """
    done, quality, counts = SampleCost(), QualityLog(), MentionCounts()
    graphs: list[tuple[SourceStudy, StudySceneGraph]] = []
    before = _peak()
    for study in read_studies(source, quality):
        images = {}
        for image in study.images:
            start = time.process_time()
            found = localize(image, how.definitions, quality)
            taken = time.process_time() - start
            masks = len(image.masks)
            done.masks += masks
            if masks:
                done.masked_seconds += taken
            else:
                done.boxed_seconds += taken
            done.slowest_image = max(done.slowest_image, taken)
            done.images += 1
            if found:
                images[image.image_id] = found
        start = time.process_time()
        try:
            read = how.extractor.extract(study.report)
        except Unusable:
            continue
        built = build_scene_graph(study, read, images, how.definitions, how.mapper)
        done.graph_seconds += time.process_time() - start
        counts.add(built.graph, how.definitions)
        graphs.append((study, built.graph))
        done.studies += 1
    if not graphs:
        raise UserError(f"{source}: no study that can be used")
    for study, graph in graphs:
        start = time.process_time()
        made = construct_questions(graph, counts, how)
        middle = time.process_time()
        shown = [image for image in study.images if image.frontal] or study.images[:1]
        for record in to_records(made, shown, "train", keep_native=False):
            done.records += 1
            done.record_bytes += len(format_record(record).encode()) + 1
        done.record_seconds += time.process_time() - middle
        done.question_seconds += middle - start
        done.questions += len(made.questions)
    return done, _peak() - before


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def table(done: SampleCost, grown: float, studies: int, images: int, masks: int) -> str:
    """What was measured, and what it makes of the corpus, as Markdown.

    Args:
        masks: on an image of the corpus; 0: as many as in the sample.
    """
    per_image = (done.masked_seconds + done.boxed_seconds) / max(done.images, 1)
    if masks and done.masks:
        per_image = done.masked_seconds / done.masks * masks
    questions = RELEASE["questions"][3] / RELEASE["studies"][3] * studies
    steps = (
        ("regions of an image", per_image, images),
        ("scene graph of a study", done.graph_seconds / done.studies, studies),
        ("a question with its grade", done.question_seconds / done.questions, questions),
        ("a record", done.record_seconds / max(done.records, 1), questions * images / studies),
    )
    lines = ["| step | seconds each | how often | core-hours |", "|---|---|---|---|"]
    total = 0.0
    for name, seconds, times in steps:
        hours = seconds * times / 3600
        total += hours
        lines.append(f"| {name} | {seconds:.4f} | {times:,.0f} | {hours:.1f} |")
    lines += [f"| all | | | {total:.1f} |", ""]
    lines += [
        f"Sample: {done.studies} studies, {done.images} images with {done.masks} masks, "
        f"{done.questions} questions; the slowest image took {done.slowest_image:.2f} s.",
        f"The process grew by {grown:.0f} MB, all scene graphs of the sample held.",
        f"A record has {done.record_bytes / max(done.records, 1):,.0f} bytes as JSON.",
        "Questions as many a study as the release's, one record for each image of a study.",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the estimate."""
    parser = command_parser("papers.cxr_qba.construct.estimate", __doc__)
    add = parser.add_argument
    add("--source", required=True, type=Path, help="a sample, as data/cxr_qba/README.md lists them")
    add("--studies", type=int, default=STUDIES, help=f"of the corpus (default {STUDIES})")
    add("--images", type=int, default=IMAGES, help=f"of the corpus (default {IMAGES})")
    add("--masks", type=int, default=0, help="on an image of the corpus (default: as the sample)")
    flags = parser.parse_args(argv)
    if flags.studies < 1 or flags.images < 1 or flags.masks < 0:
        parser.error("--studies and --images: expected at least 1; --masks: at least 0")
    done, grown = measure(flags.source, CxrQbaConstruction(surrogate=True))
    print(table(done, grown, flags.studies, flags.images, flags.masks))


if __name__ == "__main__":
    cli.run(main)
