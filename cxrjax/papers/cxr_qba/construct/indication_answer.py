"""The indication's node, OIND: what in a report answers why the study was made."""

from cxrjax.papers.cxr_qba.construct import extraction as read
from cxrjax.papers.cxr_qba.construct.ratings import merged, worst_values
from cxrjax.papers.cxr_qba.native import NativeIndication, NativeObservation, StudySceneGraph
from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.phrases import split_words

OBS_ID = "OIND"


def build_indication(
    graph: StudySceneGraph, extraction: read.Extraction, definitions: Definitions
) -> NativeIndication | None:
    """The indication with the observations that answer it; None where the report has none.

    Where the extractor names sentences, what they say answers it. Else, where the indication names
    findings and the report says something of them, that; otherwise everything abnormal that is
    there; otherwise the denial of abnormality as such.
    Without any of these it has no answer.
    """
    given = extraction.indication
    if given is None:
        return None
    reported = [o for o in graph.observations.values() if o.from_report]
    answering = _said_by(given.answer_sentence_ids, reported, graph)
    in_words = given.answer if answering else ""
    answering = answering or _chosen_by_rule(given, reported, definitions)
    ids = [o.obs_id for o in answering]
    sentences = [
        edge.sentence_id for edge in graph.obs_sent_relations if edge.observation_id in ids
    ]
    return NativeIndication(
        indication_summary=given.indication_summary,
        patient_info=given.patient_info or None,
        indication=given.indication or None,
        evaluation=given.evaluation or None,
        associated_sentence_ids=list(dict.fromkeys(given.answer_sentence_ids or sentences)),
        associated_obs_ids=ids,
        answer_for_indication=_answer(answering, in_words) if answering else None,
    )


def _said_by(
    sentence_ids: tuple[str, ...], reported: list[NativeObservation], graph: StudySceneGraph
) -> list[NativeObservation]:
    ids = {e.observation_id for e in graph.obs_sent_relations if e.sentence_id in sentence_ids}
    return [o for o in reported if o.obs_id in ids]


def _chosen_by_rule(
    given: read.Indication, reported: list[NativeObservation], definitions: Definitions
) -> list[NativeObservation]:
    asked = {
        match.payload
        for match in definitions.finding_names.find(
            split_words(f"{given.indication} {given.evaluation}".lower())
        )
    }
    answering = [o for o in reported if asked & {*o.obs_entities, *o.obs_entities_parents}]
    abnormal = [
        o
        for o in reported
        if o.positive and "abnormality" in o.obs_categories and o.child_level == 0
    ]
    answering += [o for o in abnormal if o not in answering]
    return answering or [o for o in reported if "general" in o.obs_subcategories]


def _answer(answering: list[NativeObservation], in_words: str) -> NativeObservation:
    def union(lists: list[list[str]]) -> list[str]:
        return list(dict.fromkeys(value for values in lists for value in values))

    regions = {entry.region: entry for o in answering for entry in o.regions}
    quality = worst_values(o.obs_quality for o in answering)
    return NativeObservation(
        obs_id=OBS_ID,
        name="Answer to the indication",
        summary_sentence=in_words or " ".join(o.summary_sentence for o in answering),
        regions=list(regions.values()),
        obs_entities=union([o.obs_entities for o in answering]),
        obs_entities_parents=union([o.obs_entities_parents for o in answering]),
        obs_categories=union([o.obs_categories for o in answering]),
        obs_subcategories=union([o.obs_subcategories for o in answering]),
        certainty=max(
            (o.certainty or "certain" for o in answering),
            key=("certain", "likely", "uncertain").index,
        ),
        positiveness="pos" if any(o.positive for o in answering) else "neg",
        from_report=True,
        obs_quality=quality,
        localization=merged([o.localization for o in answering]),
    )
