"""Builds scene graphs from what was read out of a report and regions on images."""

from collections.abc import Mapping, Sequence
from typing import Any

from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct import extraction as read
from cxrjax.papers.cxr_qba.construct import phrases, ratings, wording
from cxrjax.papers.cxr_qba.construct.checks import Contradiction, drop_contradicted
from cxrjax.papers.cxr_qba.construct.entity_mapping import EntityMapper
from cxrjax.papers.cxr_qba.construct.extraction import SourceStudy
from cxrjax.papers.cxr_qba.construct.regions import LocalizedRegion
from cxrjax.radiology_text.definitions import Finding, load_definitions
from cxrjax.radiology_text.english import split_words

CHILD_TYPE = "interpretation"
PART_OF = "part_of"
# Image id -> region -> where it is.
LocalizedImages = Mapping[str, Mapping[str, LocalizedRegion]]


def build_scene_graph(
    study: SourceStudy, extraction: read.Extraction, images: LocalizedImages, mapper: EntityMapper
) -> tuple[native.StudySceneGraph, list[Contradiction]]:
    """Builds the scene graph of a study; returns what was dropped on the way, too."""
    every, parents, spoken = _read_nodes(extraction, mapper)
    nodes, contradictions = drop_contradicted(every)
    kept = {node.obs_id for node in nodes}
    # A child whose parent was dropped stands on its own.
    parents = {child: parent for child, parent in parents.items() if {child, parent} <= kept}
    _set_levels(nodes, parents)
    nodes += _default_negatives(nodes)
    for node in nodes:
        _locate(node, images)
    graph = native.StudySceneGraph(
        patient_id=study.patient_id,
        study_id=study.study_id,
        sentences={
            s.sent_id: native.NativeSentence(
                sent_id=s.sent_id, section=s.section, section_type=s.section_type, sentence=s.text
            )
            for s in extraction.sentences
        },
        top_level_obs_ids=[node.obs_id for node in nodes if node.obs_id not in parents],
        observations={node.obs_id: node for node in nodes},
        located_at_relations=[_located(node, entry) for node in nodes for entry in node.regions],
        obs_relations=[
            native.ObservationRelation(
                parent_observation_id=parent, child_observation_id=child, child_type=CHILD_TYPE
            )
            for child, parent in parents.items()
        ],
        obs_sent_relations=[edge for edge in spoken if edge.observation_id in kept],
    )
    graph.regions, graph.region_region_relations = _region_tree(nodes, images)
    graph.indication = build_indication(graph, extraction)
    graph.study_quality = {
        **ratings.worst_values(node.obs_quality for node in nodes),
        "contradictions_dropped": len(contradictions),
        "sentences_without_observation": len(extraction.silent),
    }
    graph.study_img_localization_quality = {
        image_id: ratings.localization_quality([node.localization.get(image_id) for node in nodes])
        for image_id in images
    }
    return graph, contradictions


def _read_nodes(
    extraction: read.Extraction, mapper: EntityMapper
) -> tuple[list[wording.Node], dict[str, str], list[native.SentenceRelation]]:
    """Returns nodes, parents before children; child's id -> parent's; which sentence says which."""
    nodes: list[wording.Node] = []
    parents: dict[str, str] = {}
    spoken: list[native.SentenceRelation] = []

    def add(observed: read.Observation, parent: str | None) -> None:
        node = _node(f"O{len(nodes) + 1:02d}", observed, mapper)
        nodes.append(node)
        if parent is not None:
            parents[node.obs_id] = parent
        spoken.extend(
            native.SentenceRelation(observation_id=node.obs_id, sentence_id=sent_id)
            for sent_id in observed.sentence_ids
        )
        for child in observed.children:
            add(child, node.obs_id)

    for observed in extraction.observations:
        add(observed, None)
    return nodes, parents, spoken


def _located(node: wording.Node, entry: native.ObservedRegion) -> native.LocatedAt:
    return native.LocatedAt(
        region=entry.region,
        observation_id=node.obs_id,
        distances=entry.distances,
        where_specified="default" if entry.region in node.default_regions else "report",
    )


def _set_levels(nodes: wording.Nodes, parents: Mapping[str, str]) -> None:
    levels: dict[str, int] = {}
    for node in nodes:
        parent = parents.get(node.obs_id)
        node.child_level = 0 if parent is None else levels[parent] + 1
        node.child_type = None if parent is None else CHILD_TYPE
        levels[node.obs_id] = node.child_level


def _node(obs_id: str, observed: read.Observation, mapper: EntityMapper) -> wording.Node:
    """Resolves the free values of an observation into a node."""
    known = load_definitions()
    mapped = {name: mapper(name) for name in observed.entity}
    findings = [known.findings[name] for name in dict.fromkeys(filter(None, mapped.values()))]
    regions, unknown = known.resolve_regions(observed.regions, observed.side)
    defaults: list[str] = []
    if not regions:
        usual = [region for finding in findings for region in finding.regions]
        defaults, _ = known.resolve_regions(usual, observed.side)
    modifiers: dict[str, list[str]] = {}
    for kind, value in phrases.one_severity(observed.modifiers, list(mapped)):
        modifiers.setdefault(kind, []).append(value)
    return _make(
        obs_id,
        findings,
        regions or defaults,
        observed.distances,
        name=observed.name,
        summary_sentence=observed.summary_sentence,
        non_resolved_regions=unknown,
        default_regions=defaults,
        non_resolved_obs_entities=[name for name, found in mapped.items() if not found],
        probability=observed.probability or None,
        certainty=observed.certainty,
        positiveness="pos" if observed.positive else "neg",
        modifiers=modifiers,
        changes=list(observed.change),
        change_sentence=observed.change_sentence or None,
        from_report=True,
    )


def _make(
    obs_id: str,
    findings: Sequence[Finding],
    regions: Sequence[str],
    distances: Sequence[str] = (),
    **fields: Any,
) -> wording.Node:
    known = load_definitions()
    above = [up for finding in findings for up in known.finding_ancestors(finding.name)]
    sides = {known.regions[region].side for region in regions} - {""}
    node = native.NativeObservation(
        obs_id=obs_id,
        regions=[native.ObservedRegion(region=name, distances=list(distances)) for name in regions],
        laterality="bilateral" if len(sides) > 1 else next(iter(sides), None),
        obs_entities=[finding.name for finding in findings],
        obs_entities_parents=list(dict.fromkeys(above)),
        obs_categories=list(dict.fromkeys(finding.category for finding in findings)),
        obs_subcategories=list(dict.fromkeys(finding.subcategory for finding in findings)),
        **fields,
    )
    node.obs_quality = ratings.rate_observation(node)
    return node


def _default_negatives(nodes: wording.Nodes) -> list[wording.Node]:
    """Returns findings that a report would have named, as absent, unless they or kin are there.

    Their certainty is "not mentioned", as that of the answers made of them.
    """
    known = load_definitions()
    present = {name for node in nodes if node.positive for name in node.obs_entities}
    mentioned = {name for node in nodes for name in node.obs_entities}
    # A more special finding that is there has this one among its parents.
    mentioned |= {name for node in nodes if node.positive for name in node.obs_entities_parents}
    assumed = [
        finding
        for name, finding in known.findings.items()
        if finding.default_negative
        and name not in mentioned
        and present.isdisjoint(known.finding_ancestors(name))
    ]
    added = []
    for number, finding in enumerate(assumed, start=1):
        name, summary = phrases.describe_unmentioned([finding])
        node = _make(
            f"D{number:02d}",
            [finding],
            finding.regions,
            name=name,
            summary_sentence=summary,
            default_regions=list(finding.regions),
            certainty=phrases.NOT_MENTIONED,
            positiveness="neg",
            from_report=False,
        )
        added.append(node)
    return added


def _locate(node: wording.Node, images: LocalizedImages) -> None:
    """Sets the node's boxes on every image; of a more general region where there are none."""
    names = node.region_names
    for image_id, localized in images.items():
        general: list[str] = []
        if not any(name in localized for name in names):
            nearest = (
                next(filter(localized.__contains__, wording.around(name)), "") for name in names
            )
            general = list(dict.fromkeys(filter(None, nearest)))
        node.localization[image_id] = _place(image_id, localized, names, general)
    node.obs_quality["localization_quality"] = _over_images(node.localization)


def _place(
    image_id: str,
    localized: Mapping[str, LocalizedRegion],
    names: Sequence[str],
    fallback: Sequence[str] = (),
) -> native.NativeLocalization:
    """Returns boxes and masks of the regions that the image has, else of `fallback`; rated."""
    there = list(fallback) or [name for name in names if name in localized]
    place = native.NativeLocalization(
        image_id=image_id,
        localization_reference_ids=there,
        bboxes=[list(box) for name in there for box in localized[name].boxes],
        instance_mask_ids=[f"{image_id}/{name}" for name in there if localized[name].has_mask],
        missing_localization=[name for name in names if name not in localized],
        is_fallback=bool(fallback),
    )
    place.localization_quality = ratings.localization_quality([place])
    return place


def _over_images(localization: Mapping[str, native.NativeLocalization]) -> str:
    """Returns the worst quality over all images."""
    worst = ratings.worst_values(
        {"localization_quality": place.localization_quality} for place in localization.values()
    )
    return worst.get("localization_quality", "NO_LOCALIZATION")


def _region_tree(
    nodes: wording.Nodes, images: LocalizedImages
) -> tuple[dict[str, native.NativeRegion], list[native.RegionRelation]]:
    """Returns regions of observations, their two sides and every region that they lie in, and the
    edges between."""
    known = load_definitions()
    said = dict.fromkeys(name for node in nodes for name in node.region_names)
    own = dict.fromkeys(one for name in said for one in (name, *known.on_side(name, "both")))
    names = dict.fromkeys(one for name in own for one in (name, *known.region_ancestors(name)))
    regions = {}
    edges = []
    for name in names:
        region = known.regions[name]
        places = {image_id: _place(image_id, here, [name]) for image_id, here in images.items()}
        regions[name] = native.NativeRegion(
            region=name,
            laterality=region.side or None,
            localization=places,
            region_localization_quality=_over_images(places),
        )
        if region.parent:
            edge = {"region": name, "related_region": region.parent, "relation_type": PART_OF}
            edges.append(native.RegionRelation(**edge))
    return regions, edges


def build_indication(
    graph: native.StudySceneGraph, extraction: read.Extraction
) -> native.NativeIndication | None:
    """Returns the indication with the observations that answer it; None where there is none.

    Where the extractor names sentences, what they say answers it; else what `_chosen_by_rule`
    finds. Without either it has no answer.
    """
    given = extraction.indication
    if given is None:
        return None
    edges = graph.obs_sent_relations
    reported = [o for o in graph.observations.values() if o.from_report]
    said = {e.observation_id for e in edges if e.sentence_id in given.answer_sentence_ids}
    answering = [o for o in reported if o.obs_id in said]
    in_words = given.answer if answering else ""
    answering = answering or _chosen_by_rule(given, reported)
    ids = [o.obs_id for o in answering]
    sentences = [edge.sentence_id for edge in edges if edge.observation_id in ids]
    return native.NativeIndication(
        indication_summary=given.indication_summary,
        patient_info=given.patient_info or None,
        indication=given.indication or None,
        evaluation=given.evaluation or None,
        associated_sentence_ids=list(dict.fromkeys(given.answer_sentence_ids or sentences)),
        associated_obs_ids=ids,
        answer_for_indication=_answer(answering, in_words) if answering else None,
    )


def _chosen_by_rule(given: read.Indication, reported: wording.Nodes) -> list[wording.Node]:
    """Returns what the report says of findings that the indication names, and everything abnormal
    that is there; without any of these, the denial of abnormality as such."""
    words = split_words(f"{given.indication} {given.evaluation}".lower())
    asked = {match.payload for match in load_definitions().finding_names.find(words)}
    named = [o for o in reported if asked & {*o.obs_entities, *o.obs_entities_parents}]
    abnormal = [
        o
        for o in reported
        if o.positive and "abnormality" in o.obs_categories and o.child_level == 0
    ]
    answering = named + [o for o in abnormal if o not in named]
    return answering or [o for o in reported if "general" in o.obs_subcategories]


def _answer(answering: wording.Nodes, in_words: str) -> wording.Node:
    regions = {entry.region: entry for o in answering for entry in o.regions}
    return native.NativeObservation(
        obs_id="OIND",
        name="Answer to the indication",
        summary_sentence=in_words or " ".join(o.summary_sentence for o in answering),
        **{**wording.united(answering, wording.TAGS), "regions": list(regions.values())},
        certainty=wording.least_sure(o.certainty for o in answering),
        positiveness="pos" if any(o.positive for o in answering) else "neg",
        from_report=True,
        obs_quality=ratings.worst_values(o.obs_quality for o in answering),
        localization=ratings.merged([o.localization for o in answering]),
    )
