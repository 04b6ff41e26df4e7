"""The indication's node, OIND: what in a report answers why the study was made (Q05, Q09)."""

from cxrjax.datasets.cxr_qba.definitions import Definitions
from cxrjax.datasets.cxr_qba.extraction import Extraction
from cxrjax.datasets.cxr_qba.observation_quality import merged
from cxrjax.datasets.cxr_qba.phrases import split_words
from cxrjax.datasets.cxr_qba.ratings import worst_values
from cxrjax.datasets.cxr_qba.scene_graph import Indication, Observation, SceneGraph

OBS_ID = "OIND"


def build_indication(
    graph: SceneGraph, extraction: Extraction, definitions: Definitions
) -> Indication | None:
    """The indication with the observations that answer it; None where the report has none.

    Where the indication names findings and the report says something of them, that answers it;
    otherwise everything abnormal that is there; otherwise the denial of abnormality as such.
    Without any of these it has no answer.
    """
    given = extraction.indication
    if given is None:
        return None
    asked = {
        match.payload
        for match in definitions.finding_names.find(
            split_words(f"{given.indication} {given.evaluation}".lower())
        )
    }
    reported = [o for o in graph.observations.values() if o.from_report]
    answering = [o for o in reported if asked & {*o.obs_entities, *o.obs_entities_parents}]
    abnormal = [
        o
        for o in reported
        if o.positive and "abnormality" in o.obs_categories and o.child_level == 0
    ]
    answering += [o for o in abnormal if o not in answering]
    if not answering:
        answering = [o for o in reported if "general" in o.obs_subcategories]
    ids = [o.obs_id for o in answering]
    sentences = [
        edge.sentence_id for edge in graph.obs_sent_relations if edge.observation_id in ids
    ]
    return Indication(
        indication_summary=given.indication_summary,
        patient_info=given.patient_info or None,
        indication=given.indication or None,
        evaluation=given.evaluation or None,
        associated_sentence_ids=list(dict.fromkeys(sentences)),
        associated_obs_ids=ids,
        answer_for_indication=_answer(answering) if answering else None,
    )


def _answer(answering: list[Observation]) -> Observation:
    def union(lists: list[list[str]]) -> list[str]:
        return list(dict.fromkeys(value for values in lists for value in values))

    regions = {entry.region: entry for o in answering for entry in o.regions}
    quality = worst_values(o.obs_quality for o in answering)
    return Observation(
        obs_id=OBS_ID,
        name="Answer to the indication",
        summary_sentence=" ".join(o.summary_sentence for o in answering),
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
