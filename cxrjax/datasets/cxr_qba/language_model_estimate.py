"""What reading and rating by a language model would send and cost; sends nothing."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from cxrjax.datasets.cxr_qba.construction import (
    Construction,
    construct_graph,
    construct_questions,
)
from cxrjax.datasets.cxr_qba.language_model_extractor import (
    LanguageModelExtractor,
    planned_requests,
)
from cxrjax.datasets.cxr_qba.language_model_rater import LanguageModelRater, rating_requests
from cxrjax.datasets.cxr_qba.negative_sampling import MentionCounts
from cxrjax.datasets.cxr_qba.scene_graph import SceneGraph
from cxrjax.datasets.cxr_qba.sources import read_studies
from cxrjax.datasets.quality import QualityLog, Unusable
from cxrjax.language_model import Request


def estimate_language_model(
    source: Path,
    seed: int,
    extractor: LanguageModelExtractor | None = None,
    rater: LanguageModelRater | None = None,
) -> str:
    """The dry run: about what a build would ask a language model, with the rules' sentences and
    questions in place of the model's. Sends and writes nothing.

    Of reading, a sentence that stands in several reports counts once; of rating, what is the same
    in several studies counts each time, though it is sent once.

    Raises:
        UserError: the source cannot be read.
    """
    lines = []
    if extractor:
        reports = (study.report for study in read_studies(source, QualityLog()))
        lines.append(f"reading: {extractor.client.estimate(planned_requests(reports))}")
    if rater:
        estimate = rater.client.estimate(_planned_ratings(source, seed))
        lines.append(f"rating, repetitions included: {estimate}")
    return "\n".join(lines)


def _planned_ratings(source: Path, seed: int) -> Iterator[Request]:
    how = Construction(seed=seed)
    counts = MentionCounts()

    def graphs() -> Iterator[SceneGraph]:
        quality = QualityLog()
        for study in tqdm(read_studies(source, quality), "counting", unit=" studies"):
            with contextlib.suppress(Unusable):
                yield construct_graph(study, how, quality)

    for graph in graphs():
        counts.add(graph, how.definitions)
    for graph in graphs():
        yield from rating_requests(graph, construct_questions(graph, counts, how))
