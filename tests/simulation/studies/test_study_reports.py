"""A report says what is there: words, sides and places agree with the truth that is kept."""

import datetime
import random
import string

import numpy as np
import pytest

from cxrjax.simulation import anatomy
from cxrjax.simulation.regions import REGIONS
from cxrjax.simulation.studies import plan
from cxrjax.simulation.studies.layouts import CHEXPERT, chexpert_labels, image_folder
from cxrjax.simulation.studies.report import KINDS, PhantomReport, grammar, write_report
from cxrjax.simulation.studies.views import TERMS, Item, RenderedLesion, change_since, items

ZONES = ("upper lung zone", "mid lung zone", "lower lung zone")
LONGITUDINAL = ("unchanged", "stable", "persistent", "interval", "prior", "previous", "new ")


def lesion(number: int, draw: random.Random) -> RenderedLesion:
    label, kind = draw.choice(list(TERMS))
    side = draw.choice((-1, 1))
    name = {-1: "right", 1: "left"}[side]
    start = draw.randrange(3)
    regions = tuple(f"{name} {zone}" for zone in ZONES[start : start + draw.randint(1, 2)])
    if label == "Pleural effusion":
        regions = (f"{name} lower lung zone", f"{name} costophrenic angle")
    if label == "Cardiomegaly":
        side, regions = 0, ("cardiac silhouette",)
    elif label == "Aortic enlargement" or kind == "hiatal hernia":
        side, regions = 0, ("mediastinum",)
    corner = np.array([draw.uniform(0, 0.5), draw.uniform(0, 0.5)])
    box = np.concatenate([corner, corner + draw.uniform(0.05, 0.4)]).astype(np.float32)
    return RenderedLesion(number, label, kind, side, regions, (0.1, 0.4), box)


def study(number: int, order: int = 1) -> plan.PhantomStudy:
    body = anatomy.draw_patient(np.random.default_rng(number))
    view = plan.View("00000000-1", "PA", body, 0)
    time = datetime.datetime(2150, 3, 4, 5, 6)
    return plan.PhantomStudy(
        10000001, 50000000 + number, "train", order, time, 60, 0, 0, body, [], [view]
    )


@pytest.fixture(scope="module")
def reports() -> list[tuple[PhantomReport, list[Item], list[Item] | None]]:
    found = []
    for number in range(400):
        draw = random.Random(number)
        one = study(number, 1 + number % 2)
        seen = [lesion(k, draw) for k in range(draw.choice((0, 1, 2, 3)))]
        present = items(seen, one.body)
        before = items([lesion(k, draw) for k in range(2)], one.body) if number % 2 else None
        found.append((write_report(7, one, present, before), present, before))
    return found


def sentences(reports):
    """Each sentence with what is there."""
    return [(one, present) for report, present, _ in reports for one in report.sentences]


def test_same_arguments_same_report_and_change_compares_areas():
    present = items([lesion(0, random.Random(3))], study(3).body)
    assert write_report(7, study(3), present, None) == write_report(7, study(3), present, None)
    others = {write_report(seed, study(3), present, None).text for seed in range(8)}
    assert len(others) == 8
    old = Item("nodule", "left", (), (), None, 0.10, (0,))
    sizes = {0.10: "no change", 0.2: "worsened", 0.05: "improved"}
    for area, expected in sizes.items():
        now = Item("nodule", "left", (), (), None, area, (0,))
        assert change_since(now, [old]) == expected
    assert change_since(Item("nodule", "right", (), (), None, 0.1, (0,)), [old]) == "new"


def test_sentences_are_the_text_and_normal_is_said_of_what_is(reports):
    for report, _, _ in reports:
        flat = " ".join(report.text.split())
        said = " ".join(one.text for one in report.sentences if one.section == "findings")
        assert said in flat
        for sentence in report.sentences:
            assert sentence.text[0].isupper() and sentence.text.endswith(".")
            assert "{" not in sentence.text and "  " not in sentence.text
            assert sentence.facts
    for sentence, present in sentences(reports):
        taken = {region for item in present for region in item.regions}
        if "device" not in " ".join(item.term for item in present):  # over the lung, not in it
            taken |= {f"{region.split()[0]} lung" for region in taken if "zone" in region}
        for fact in sentence.facts:
            if fact.polarity == "normal":
                assert not set(fact.regions) & taken, (sentence, present)


def test_positive_facts_are_what_is_there(reports):
    for sentence, present in sentences(reports):
        there = {(item.term, item.regions) for item in present}
        for fact in sentence.facts:
            assert set(fact.regions) <= set(REGIONS)
            if fact.polarity == "positive":
                assert (fact.finding, fact.regions) in there and fact.lesions
            if fact.polarity == "negative":
                assert not fact.lesions
                places = {place for term, at in there if term == fact.finding for place in at}
                assert not places & set(fact.regions), sentence


def test_full_reports_name_every_finding_on_its_side(reports):
    for report, present, _ in reports:
        if report.kind == "full":
            facts = [f for s in report.sentences if s.section == "findings" for f in s.facts]
            said = {number for fact in facts for number in fact.lesions}
            assert said == {number for item in present for number in item.lesions}
    for sentence, _ in sentences(reports):
        words = sentence.text.lower().replace(".", "").split()
        named = {region.split()[0] for fact in sentence.facts for region in fact.regions}
        for side, other in (("right", "left"), ("left", "right")):
            if side in words and other not in words:
                assert side in named and other not in named, sentence


def test_longitudinal_words_and_facts_go_together(reports):
    seen = 0
    for report, _, before in reports:
        for sentence in report.sentences:
            words = f"{sentence.text.lower()} "
            assert sentence.longitudinal == any(cue in words for cue in LONGITUDINAL), sentence
            seen += sentence.longitudinal
            assert before is not None or not sentence.longitudinal
    assert seen > 50


def test_kinds(reports):
    by_kind = {kind: [r for r, _, _ in reports if r.kind == kind] for kind in KINDS}
    assert all(len(found) > 10 for found in by_kind.values())
    for report in by_kind["short"]:
        assert len(report.sentences) == 1 and "IMPRESSION" not in report.text
    for report in by_kind["empty_findings"]:
        assert "FINDINGS:\n \n IMPRESSION:" in report.text
    for report in by_kind["impression_only"]:
        assert "FINDINGS" not in report.text and report.sentences
    polarities = {f.polarity for r, _, _ in reports for s in r.sentences for f in s.facts}
    assert polarities == {"positive", "negative", "uncertain", "normal"}


def test_grammar_is_complete():
    words = grammar()
    assert set(TERMS.values()) <= set(words["findings"])
    slots = {"side", "where", "severity", "Severity", "severity_adverb"}
    for entry in words["findings"].values():
        assert set(entry["chexpert"]) <= set(CHEXPERT)
        assert len(entry["attribute"].split("|")) == 2
        for template in entry["noun"] + entry["positive"] + entry.get("plural", []):
            used = {name for _, name, _, _ in string.Formatter().parse(template) if name}
            assert used <= slots, template
    for term in set(TERMS.values()):
        positive = words["findings"][term]["positive"]
        assert len(positive) == len(set(positive)) >= 3


def fact(finding, polarity, regions=("right lung",)):
    return {"finding": finding, "polarity": polarity, "regions": regions}


def test_chexpert_labels():
    both = [fact("consolidation", "negative"), fact("consolidation", "positive")]
    normal = {"No Finding": "1.0"}
    for facts, expected in (
        ([fact(None, "normal", ["cardiac silhouette"])], {"Cardiomegaly": "0.0"} | normal),
        ([fact("pneumothorax", "negative")], {"Pneumothorax": "0.0"} | normal),
        ([fact("pleural effusion", "uncertain")], {"Pleural Effusion": "-1.0"}),
        (both, {"Consolidation": "1.0"}),
        ([fact("cardiac device", "positive")], {"Support Devices": "1.0"} | normal),
    ):
        assert chexpert_labels([{"facts": facts}]) == expected


def test_reports_on_disk(built, truth):
    for one in truth:
        folder = image_folder(one["subject_id"], one["study_id"])
        text = (built / f"{folder}.txt").read_text(encoding="utf-8")
        flat = " ".join(text.split())
        assert all(sentence["text"] in flat for sentence in one["sentences"])
        lesions = {found["lesion"] for found in one["images"][0]["lesions"]}
        for sentence in one["sentences"]:
            assert {n for f in sentence["facts"] for n in f["lesions"]} <= lesions


def test_the_plan_is_a_prefix_with_its_statistics():
    few = [s for studies in plan.plan_patients(3, 9) for s in studies]
    many = [s for studies in plan.plan_patients(3, 30) for s in studies]
    assert len(few) == 9 and [s.study_id for s in many[:9]] == [s.study_id for s in few]
    assert len({s.study_id for s in many}) == 30
    ids = [view.dicom_id for s in many for view in s.views]
    assert len(set(ids)) == len(ids) and all(i.startswith("00000000-") for i in ids)
    other = {v.dicom_id for s in plan.patient_studies(4, 0) for v in s.views}
    assert not other & set(ids)
    for studies in plan.plan_patients(3, 30):
        times = [s.time for s in studies]
        assert times == sorted(set(times)) and len({s.split for s in studies}) == 1
    studies = [s for patient in plan.plan_patients(5, 600) for s in patient]
    sets = [tuple(view.position for view in s.views) for s in studies]
    assert 0.5 < np.mean(["LATERAL" in found for found in sets]) < 0.62
    assert 0.08 < np.mean([sum(p != "LATERAL" for p in f) == 2 for f in sets]) < 0.26
    shares = {name: np.mean([s.split == name for s in studies]) for name in ("validate", "test")}
    assert all(0.04 < share < 0.17 for share in shares.values())
    assert 0.1 < np.mean([not s.presences for s in studies]) < 0.35
