"""Scene graphs out of reports."""

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct import extraction
from cxrjax.papers.cxr_qba.construct.checks import check_graph
from cxrjax.papers.cxr_qba.construct.construction import construct_graph
from cxrjax.papers.cxr_qba.construct.entity_mapping import embedding_mapper, map_by_wording
from cxrjax.papers.cxr_qba.construct.graph_construction import build_scene_graph
from cxrjax.papers.cxr_qba.study_files import fit_study_boxes
from cxrjax.records_io.quality import QualityLog
from tests.papers.cases import cases


def node(graph, entity, positive=None):
    named = [node for node in graph.observations.values() if entity in node.obs_entities]
    (found,) = [node for node in named if positive in (None, node.positive)]
    return found


def test_every_edge_leads_somewhere(studies, how):
    for study in studies:
        graph = construct_graph(study, how, QualityLog())
        sizes = {image.image_id: image.image_hw for image in study.images}
        check_graph(graph, (study.patient_id, study.study_id))
        before, quality = graph.to_json(whole=True), QualityLog()
        fit_study_boxes(graph, None, sizes, "", quality)
        assert graph.to_json(whole=True) == before and quality == QualityLog()


def test_regions_come_with_all_that_they_lie_in_and_children_with_sentences(graph_of):
    graph = graph_of("Small left effusion.")
    assert {"left pleural space", "pleural spaces", "thorax"} <= set(graph.regions)
    edges = {(e.region, e.related_region) for e in graph.region_region_relations}
    assert {("left pleural space", "pleural spaces"), ("pleural spaces", "thorax")} <= edges
    graph = graph_of("Left basilar opacity may represent pneumonia.", "Left basilar opacity.")
    opacity, pneumonia = node(graph, "lung opacity"), node(graph, "pneumonia")
    assert graph.children(opacity.obs_id) == [pneumonia.obs_id]
    assert (pneumonia.child_level, pneumonia.child_type) == (1, "interpretation")
    assert pneumonia.obs_id not in graph.top_level_obs_ids
    said = {e.sentence_id for e in graph.obs_sent_relations if e.observation_id == opacity.obs_id}
    assert said == {"S01", "S02"}


def test_default_regions_are_told_from_reported_ones(graph_of):
    graph = graph_of("Cardiomegaly. Opacity in the left lower lobe.")
    heart, opacity = node(graph, "cardiomegaly"), node(graph, "lung opacity")
    assert heart.region_names == heart.default_regions == ["cardiac silhouette"]
    assert opacity.default_regions == [] and opacity.laterality == "left"
    assert heart.obs_quality["region_quality"] == "DEFAULT_REGIONS_ONLY"
    assert opacity.obs_quality["region_quality"] == "RESOLVED_REGIONS_ONLY"
    own = (heart.obs_id, opacity.obs_id)
    places = [edge for edge in graph.located_at_relations if edge.observation_id in own]
    where = {edge.region: edge.where_specified for edge in places}
    assert where == {"cardiac silhouette": "default", "left lower lobe": "report"}


def test_contradictions_are_dropped_and_denials_of_other_places_stand(graph_of):
    quality = QualityLog()
    graph = graph_of("The lungs are clear. Left lower lobe consolidation.", quality=quality)
    assert node(graph, "consolidation").positive
    assert not [o for o in graph.observations.values() if o.name == "Normal lungs"]
    assert quality.counts()["contradicted_observation"] == 1
    assert node(graph, "consolidation").obs_quality["issue_level"] == "FIXABLE"
    quality = QualityLog()
    graph = graph_of("Small left effusion. No right effusion.", quality=quality)
    assert node(graph, "pleural effusion", True).laterality == "left"
    assert node(graph, "pleural effusion", False).laterality == "right"
    assert quality.counts()["contradicted_observation"] == 0
    quality = QualityLog()
    graph = graph_of("Mild emphysema.", "No acute cardiopulmonary abnormality.", quality=quality)
    denial = node(graph, "cardiopulmonary abnormality", False)
    assert denial.summary_sentence == "There is no acute cardiopulmonary abnormality."
    assert node(graph, "emphysema").positive
    assert quality.counts()["contradicted_observation"] == 0


def test_children_of_what_was_dropped_move_up(how):
    def said(entity, positive=True, *children):
        told = {"name": entity, "summary_sentence": f"There is {entity}.", "entity": (entity,)}
        return extraction.Observation(**told, positive=positive, children=children)

    denied = said("lung opacity", False, said("pneumonia", True, said("aspiration")))
    read = extraction.Extraction((), (said("consolidation"), denied))
    study = extraction.SourceStudy("p1", "s1", extraction.ReportSections({}))
    graph, _ = build_scene_graph(study, read, {}, how.mapper)
    own = [node for node in graph.observations.values() if node.from_report]
    levels = {node.obs_entities[0]: node.child_level for node in own}
    assert levels == {"consolidation": 0, "pneumonia": 0, "aspiration": 1}


BOXES = {"left lung": ((500, 100, 900, 800),), "right lung": ((100, 100, 450, 800),)}


@cases("findings, entity, expected")
def test_localization(graph_of, findings, entity, expected):
    found = node(graph_of(findings, boxes=BOXES), entity)
    assert found.localization["i"].localization_quality == expected


@cases("name, finding")
def test_names_are_mapped_by_wording_then_spelling(name, finding):
    assert map_by_wording(name) == finding


def test_embeddings_say_what_they_need_and_indications_are_answered(tmp_path, graph_of):
    with pytest.raises(UserError, match=r"sentence-transformers|not a folder"):
        embedding_mapper(tmp_path / "none")
    graph = graph_of("No pneumonia. Mild scoliosis.", indication="Fever. Rule out pneumonia.")
    given = graph.indication
    assert given.answer_for_indication.obs_id == "OIND"
    assert given.answer_for_indication.summary_sentence.startswith("There is no pneumonia.")
    assert graph_of("Clear lungs.").indication is None
    graph = graph_of("Left pneumothorax. Possible lung opacity.")
    assumed = {o.obs_entities[0] for o in graph.observations.values() if not o.from_report}
    assert "pleural effusion" in assumed
    # It is there; and under an opacity, consolidation and pneumonia are open.
    assert not {"pneumothorax", "lung opacity", "consolidation"} & assumed
