"""Checks the consistency of a study: contradicted denials are dropped, ids and edges checked.

Reports say "the lungs are clear" and name a granuloma. What is said to be there stays; the denial
that it contradicts is dropped and counted.
"""

import graphlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cxrjax.papers.cxr_qba.native import NativeObservation, StudyQuestions, StudySceneGraph
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import Unusable


class Contradiction(NamedTuple):
    """An observation that was dropped, and the one that it contradicts."""

    dropped: NativeObservation
    kept: NativeObservation


def drop_contradicted(
    nodes: Sequence[NativeObservation],
) -> tuple[list[NativeObservation], list[Contradiction]]:
    """Returns observations without contradictions, and what was dropped.

    A denial is dropped where the same finding, or a more special one, is there in a region that it
    is about. The one that stays is marked as fixed.
    """
    kept = []
    dropped = []
    for node in nodes:
        rivals = (other for other in nodes if not node.positive and other.positive)
        rival = next((other for other in rivals if _denies(node, other)), None)
        if rival is None:
            kept.append(node)
        else:
            rival.obs_quality["issue_level"] = "FIXABLE"
            dropped.append(Contradiction(node, rival))
    return kept, dropped


def _denies(negative: NativeObservation, positive: NativeObservation) -> bool:
    acute = ["acute" in node.modifiers.get("temporal", []) for node in (negative, positive)]
    if acute == [True, False]:
        return False  # it denies what is acute, and nothing else
    there = {*positive.obs_entities, *positive.obs_entities_parents}
    return bool(there & {*negative.obs_entities}) and overlap(
        negative.region_names, positive.region_names
    )


def overlap(first: Sequence[str], second: Sequence[str]) -> bool:
    """Returns true for regions that lie in one another; no region means everywhere."""
    if not first or not second:
        return True
    known = load_definitions()
    # A region of both sides is its sides, too.
    one, other = (
        {*names, *(side for name in names for side in known.sides.get(name, {}).values())}
        for names in (first, second)
    )
    above, other_above = (
        names.union(*(known.region_ancestors(name) for name in names)) for names in (one, other)
    )
    return bool(above & other or one & other_above)


def check_graph(graph: StudySceneGraph, key: tuple[str, str]) -> None:
    """Checks ids and edges.

    Args:
        key: (patient, study) as the path says.

    Raises:
        Unusable: `invalid_graph` (another study's, a cycle), `dangling_id`.
    """
    _check_key(graph.patient_id, graph.study_id, key)
    _check_ids(graph)
    _check_cycles(
        ((e.parent_observation_id, e.child_observation_id) for e in graph.obs_relations),
        "obs_relations",
    )
    # Several kinds of edges may run between regions; each by itself is free of cycles.
    kinds = {edge.relation_type for edge in graph.region_region_relations}
    for kind in kinds:
        edges = graph.region_region_relations
        _check_cycles(
            ((e.related_region, e.region) for e in edges if e.relation_type == kind),
            f"region_region_relations of type {kind}",
        )


def check_questions(questions: StudyQuestions, key: tuple[str, str]) -> None:
    """Checks ids.

    Raises:
        Unusable: `invalid_graph`, `duplicate_id`.
    """
    _check_key(questions.patient_id, questions.study_id, key)
    seen: set[str] = set()
    for question in questions.questions:
        if question.question_id in seen:
            raise Unusable("duplicate_id", f"question {question.question_id} stands there twice")
        seen.add(question.question_id)


def dangling_questions(graph: StudySceneGraph, questions: StudyQuestions) -> int:
    """Counts questions that name observations which the scene graph does not have."""
    known = set(graph.observations)
    if graph.indication is not None and graph.indication.answer_for_indication is not None:
        known.add(graph.indication.answer_for_indication.obs_id)
    return sum(not known.issuperset(question.obs_ids) for question in questions.questions)


def _check_key(patient_id: str, study_id: str, key: tuple[str, str]) -> None:
    if (patient_id, study_id) != key:
        raise Unusable("invalid_graph", f"it is of {patient_id}/{study_id}, its path says {key}")


# Lists of edges, a field of theirs, and what it names.
_EDGES = (
    ("located_at_relations", "observation_id", "observation"),
    ("obs_relations", "parent_observation_id", "observation"),
    ("obs_relations", "child_observation_id", "observation"),
    ("obs_sent_relations", "observation_id", "observation"),
    ("obs_sent_relations", "sentence_id", "sentence"),
    ("located_at_relations", "region", "region"),
    ("region_region_relations", "region", "region"),
    ("region_region_relations", "related_region", "region"),
)


def _check_ids(graph: StudySceneGraph) -> None:
    observations = {*graph.observations}
    used: list[tuple[str, str, Iterable[str]]] = [
        ("top_level_obs_ids", "observation", graph.top_level_obs_ids)
    ]
    for edges, field, kind in _EDGES:
        used.append((edges, kind, [getattr(edge, field) for edge in getattr(graph, edges)]))
    if graph.indication is not None:
        answer = graph.indication.answer_for_indication
        observations |= {answer.obs_id} if answer else set()
        used += [
            ("indication", "observation", graph.indication.associated_obs_ids),
            ("indication", "sentence", graph.indication.associated_sentence_ids),
        ]
    known = {
        "observation": observations,
        "sentence": set(graph.sentences),
        "region": set(graph.regions),
    }
    for where, kind, ids in used:
        for name in ids:
            if name not in known[kind]:
                raise Unusable("dangling_id", f"{where}: there is no {kind} {name!r}")


def _check_cycles(edges: Iterable[tuple[str, str]], where: str) -> None:
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for parent, child in edges:
        sorter.add(child, parent)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise Unusable("invalid_graph", f"{where}: a cycle: {' -> '.join(error.args[1])}") from None
