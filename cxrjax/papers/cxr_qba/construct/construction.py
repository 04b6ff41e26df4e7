"""Makes a study's scene graph and its questions: pure functions, in two passes.

The questions need counts over the corpus (`MentionCounts`), and those need all scene graphs;
so `construct_graph` runs over all studies first, then `construct_questions`. Any engine may run
them on any number of workers.
"""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from cxrjax.papers.cxr_qba.construct.comparison import Comparer
from cxrjax.papers.cxr_qba.construct.entity_mapping import EntityMapper, map_by_wording
from cxrjax.papers.cxr_qba.construct.extraction import Extractor, SourceStudy, StudyImage
from cxrjax.papers.cxr_qba.construct.generation import generate_questions
from cxrjax.papers.cxr_qba.construct.graph_construction import build_scene_graph
from cxrjax.papers.cxr_qba.construct.ratings import extraction_grade, rate_by_rules
from cxrjax.papers.cxr_qba.construct.read_back import ReadBack
from cxrjax.papers.cxr_qba.construct.region_cache import RegionCache
from cxrjax.papers.cxr_qba.construct.regions import localize
from cxrjax.papers.cxr_qba.construct.rule_extractor import RuleExtractor
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.papers.cxr_qba.construct.wording import number_answers
from cxrjax.papers.cxr_qba.native import NativeQuestion, StudyQuestions, StudySceneGraph
from cxrjax.records_io.quality import QualityLog


@dataclasses.dataclass
class CxrQbaConstruction:
    """The parts and settings of a construction."""

    extractor: Extractor = dataclasses.field(default_factory=RuleExtractor)
    mapper: EntityMapper = map_by_wording
    seed: int = 0
    surrogate: bool = False  # rate questions and answers by rules, in fields that say so
    regions: RegionCache | None = None


def construct_graph(
    study: SourceStudy, how: CxrQbaConstruction, quality: QualityLog
) -> StudySceneGraph:
    """Returns a study's scene graph; what is dropped is rejected or counted in `quality`.

    Raises:
        Unusable: the report is too long or has nothing to read.
    """
    extraction = how.extractor.extract(study.report)
    quality.examined["sentences"] += len(extraction.sentences)
    quality.warnings["sentences of which no observation was read"] += len(extraction.silent)
    quality.warnings.update(extraction.left_out)
    find = how.regions.localize if how.regions else localize
    images = {image.image_id: find(image, quality) for image in study.images}
    localized = {image_id: regions for image_id, regions in images.items() if regions}
    graph, contradictions = build_scene_graph(study, extraction, localized, how.mapper)
    for dropped, kept in contradictions:
        item = f"{study.study_id}/{dropped.obs_id}"
        found = f"{dropped.obs_entities} is denied, and {kept.obs_entities} is there"
        quality.set_aside("contradicted_observation", item, study.study_id, found)
    return graph


def construct_questions(
    graph: StudySceneGraph, counts: MentionCounts, how: CxrQbaConstruction
) -> StudyQuestions:
    """Returns a study's questions, rated as far as possible without a language model.

    `question_quality` holds `extraction_grade`, of the scene graph's criteria; the overall grade of
    the release also needs a language model's verdicts (ratings.py).
    """
    questions = generate_questions(graph, counts, how.seed)
    read_back = ReadBack(graph)
    for question in questions.questions:
        _grade(question, how, read_back)
    return questions


def add_comparisons(
    made: StudyQuestions,
    graph: StudySceneGraph,
    earlier: StudySceneGraph,
    images: Sequence[StudyImage],
    how: CxrQbaConstruction,
    quality: QualityLog,
) -> None:
    """Adds questions on what has changed since the patient's earlier study.

    Args:
        images: of the earlier study; the first frontal one is named by the questions.
    """
    frontal = [one for one in images if one.frontal] or images[:1]
    about = {"earlier_study": earlier.study_id}
    about |= {"earlier_image": frontal[0].image_id} if frontal else {}
    comparer = Comparer(earlier, graph, how.seed, about)
    read_back, before = ReadBack(graph), len(made.questions)
    for number, question in enumerate(comparer.questions(quality.warnings), start=before + 1):
        question.question_id = f"Q{number:04d}"
        number_answers(question.answers, f"{question.question_id}_A")
        _grade(question, how, read_back)
        made.questions.append(question)


def _grade(question: NativeQuestion, how: CxrQbaConstruction, read_back: ReadBack) -> None:
    question.question_quality = {"extraction_grade": extraction_grade(question)}
    if how.surrogate:
        rate_by_rules(question, read_back.verdicts)


@dataclasses.dataclass
class CorpusFacts:
    """Counts over a part of the corpus, or over all of it."""

    counts: MentionCounts = dataclasses.field(default_factory=MentionCounts)
    # all, to divide them where the source has no splits.
    patients: set[str] = dataclasses.field(default_factory=set)
    without_split: int = 0  # studies that the source puts into no split
    failed: int = 0  # shards without facts

    def to_json(self) -> dict[str, Any]:
        """Positive and negative mentions, patients and studies without split."""
        return {
            "positive": dict(sorted(self.counts.positive.items())),
            "negative": dict(sorted(self.counts.negative.items())),
            "patients": sorted(self.patients),
            "without_split": self.without_split,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "CorpusFacts":
        """Reads what `to_json` gave."""
        counts = (collections.Counter(content[n]) for n in ("positive", "negative"))
        return cls(MentionCounts(*counts), set(content["patients"]), content["without_split"])

    @property
    def sha256(self) -> str:
        """Hash of the facts, the same for the same corpus, however it was cut."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()


def merge_facts(parts: Iterable[CorpusFacts]) -> CorpusFacts:
    """Merges facts of several parts of a corpus; associative, and in any order the same."""
    merged = CorpusFacts()
    for part in parts:
        merged.counts.merge(part.counts)
        merged.patients |= part.patients
        merged.without_split += part.without_split
        merged.failed += part.failed
    return merged
