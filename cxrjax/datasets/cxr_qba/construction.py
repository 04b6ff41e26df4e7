"""One study in, its scene graph and its questions out: pure functions, in two passes.

The questions need counts over the corpus (negative_sampling.py), and those need all scene graphs;
so `construct_graph` runs over all studies first, `construct_questions` then. Both take what they
need as arguments and keep nothing: any engine may run them on any number of workers.
"""

import dataclasses

from cxrjax.datasets.cxr_qba.definitions import Definitions, load_definitions
from cxrjax.datasets.cxr_qba.entity_mapping import EntityMapper, LexicalMapper
from cxrjax.datasets.cxr_qba.extraction import Extractor
from cxrjax.datasets.cxr_qba.generation import generate_questions
from cxrjax.datasets.cxr_qba.graph_construction import build_scene_graph
from cxrjax.datasets.cxr_qba.negative_sampling import MentionCounts
from cxrjax.datasets.cxr_qba.questions import StudyQuestions
from cxrjax.datasets.cxr_qba.ratings import extraction_grade
from cxrjax.datasets.cxr_qba.regions import localize
from cxrjax.datasets.cxr_qba.rule_extractor import RuleExtractor
from cxrjax.datasets.cxr_qba.scene_graph import SceneGraph
from cxrjax.datasets.cxr_qba.study import Study
from cxrjax.datasets.cxr_qba.surrogate_rating import rate
from cxrjax.datasets.quality import QualityLog


@dataclasses.dataclass
class Construction:
    """How to construct.

    Attributes:
        surrogate: rate questions and answers by rules, in fields that say so.
    """

    extractor: Extractor = dataclasses.field(default_factory=RuleExtractor)
    mapper: EntityMapper = dataclasses.field(default_factory=LexicalMapper)
    definitions: Definitions = dataclasses.field(default_factory=load_definitions)
    seed: int = 0
    surrogate: bool = False


def construct_graph(study: Study, how: Construction, quality: QualityLog) -> SceneGraph:
    """A study's scene graph; what is dropped is set aside or counted in `quality`.

    Raises:
        Unusable: the report is too long or has nothing to read.
    """
    extraction = how.extractor.extract(study.report)
    quality.examined["sentences"] += len(extraction.sentences)
    quality.warnings["sentences of which no observation was read"] += len(extraction.silent)
    quality.warnings.update(extraction.left_out)
    images = {image.image_id: localize(image, how.definitions, quality) for image in study.images}
    localized = {image_id: regions for image_id, regions in images.items() if regions}
    built = build_scene_graph(study, extraction, localized, how.definitions, how.mapper)
    for clash in built.contradictions:
        quality.set_aside(
            "contradicted_observation",
            f"{study.study_id}/{clash.dropped.obs_id}",
            study.study_id,
            f"{clash.dropped.obs_entities} is denied, and {clash.kept.obs_entities} is there",
        )
    return built.graph


def construct_questions(
    graph: SceneGraph, counts: MentionCounts, how: Construction
) -> StudyQuestions:
    """A study's questions, rated as far as can be without a language model.

    `question_quality` holds `extraction_grade`, of the scene graph's criteria; the overall grade of
    the release also needs a language model's verdicts (ratings.py).
    """
    questions = generate_questions(graph, how.definitions, counts, how.seed)
    for question in questions.questions:
        question.question_quality = {"extraction_grade": extraction_grade(question)}
        if how.surrogate:
            rate(question)
    return questions
