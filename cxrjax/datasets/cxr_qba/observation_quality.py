"""Criteria of the scene graph, of one observation."""

import functools
from collections.abc import Mapping, Sequence

from cxrjax.datasets.cxr_qba.definitions import load_language
from cxrjax.datasets.cxr_qba.phrases import split_words
from cxrjax.datasets.cxr_qba.ratings import SCENE_GRAPH_CRITERIA
from cxrjax.datasets.cxr_qba.scene_graph import Localization, Observation

_KNOWN_CHANGES = ("no change", "new", "increased", "decreased", "resolved")
# From worst to best, as the criteria's table on the release's page has them.
_LOCALIZATION = list(SCENE_GRAPH_CRITERIA["localization_quality"])


def rate_observation(observation: Observation) -> dict[str, str]:
    """All criteria but localization, which depends on images."""
    return {
        "region_quality": _regions(observation),
        "entity_quality": _entities(observation),
        "sentence_name_quality": _sentence(observation),
        "change_quality": _change(observation),
        "issue_level": _issues(observation),
    }


def localization_quality(places: Sequence[Localization | None]) -> str:
    """The worst of some localizations on one image; None stands for one that is not there."""

    def value(place: Localization | None) -> str:
        if place is None or not place.bboxes:
            return "NO_LOCALIZATION"
        if place.is_fallback:
            return "FALLBACK_LOCALIZATION"
        if place.missing_localization:
            return "INCOMPLETE_LOCALIZATION"
        masked = len(place.instance_mask_ids) == len(place.localization_reference_ids)
        return "BBOX_AND_MASK_LOCALIZATION" if masked else "BBOX_LOCALIZATION"

    return min(map(value, places), key=_LOCALIZATION.index, default="NO_LOCALIZATION")


def merged(places: Sequence[Mapping[str, Localization]]) -> dict[str, Localization]:
    """Where several things are, taken together: image id -> localization."""
    found = {}
    for image_id in dict.fromkeys(image_id for place in places for image_id in place):
        own = [place[image_id] for place in places if image_id in place]
        boxes: dict[tuple, list] = {tuple(box): box for place in own for box in place.bboxes}

        def union(name: str, own: list[Localization] = own) -> list:
            return list(dict.fromkeys(value for place in own for value in getattr(place, name)))

        found[image_id] = Localization(
            image_id=image_id,
            localization_reference_ids=union("localization_reference_ids"),
            bboxes=list(boxes.values()),
            instance_mask_ids=union("instance_mask_ids"),
            missing_localization=union("missing_localization"),
            is_fallback=any(place.is_fallback for place in own),
            localization_quality=localization_quality(own),
        )
    return found


def _regions(observation: Observation) -> str:
    names = observation.region_names
    if not names:
        return "NO_REGIONS"
    if set(names) <= set(observation.default_regions):
        return "DEFAULT_REGIONS_ONLY"
    if observation.non_resolved_regions:
        return "CONTAINS_NON_RESOLVED_REGIONS"
    if observation.default_regions:
        return "CONTAINS_DEFAULT_REGIONS"
    return "RESOLVED_REGIONS_ONLY"


def _entities(observation: Observation) -> str:
    if not observation.obs_entities:
        return "NO_ENTITIES"
    if observation.non_resolved_obs_entities:
        return "CONTAINS_NON_RESOLVED_ENTITIES"
    return "RESOLVED_ENTITIES_ONLY"


def _sentence(observation: Observation) -> str:
    text = f"{observation.name} {observation.summary_sentence}"
    if mentions_change(text):
        return "CHANGE_IN_SENTENCE_OR_NAME"
    # De-identified reports have underscores (MIMIC) or a run of X (OpenI) for what was taken out.
    if "_" in text or "XXX" in text:
        return "UNDERSCORES_IN_SENTENCE_OR_NAME"
    return "NO_ISSUES"


@functools.lru_cache(maxsize=1 << 15)
def mentions_change(text: str) -> bool:
    """Whether words compare with an earlier study."""
    language = load_language()
    words = split_words(text.lower())
    if any(word.lemma == "new" for word in words):
        return True
    return bool(language.change.find(words) or language.change_context.find(words))


def _change(observation: Observation) -> str:
    if observation.changes and not observation.change_sentence:
        return "CHANGE_SENTENCE_REMOVED"
    if "_" in (observation.change_sentence or ""):
        return "UNDERSCORES_IN_CHANGE_SENTENCE"
    if any(change not in _KNOWN_CHANGES for change in observation.changes):
        return "CONTAINS_NON_RESOLVED_CHANGES"
    return "NO_ISSUES"


def _issues(observation: Observation) -> str:
    if not observation.name and not observation.summary_sentence:
        return "DISCARDED"
    if not observation.obs_entities and not observation.non_resolved_obs_entities:
        return "NON_INTERPRETABLE"
    if not observation.obs_entities:
        return "MOSTLY_INTERPRETABLE"
    return "NO_ISSUES"
