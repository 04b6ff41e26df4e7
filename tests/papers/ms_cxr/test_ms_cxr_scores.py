"""MS-CXR's figures against values by hand and against NumPy."""

import csv

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.metrics.localization import contrast_to_noise, region_mask
from cxrjax.records import write_records
from tests.evaluation import made

CASES = made.cases_of(__file__)
# Question id -> finding, patient, true boxes in pixels of an image of height 100, width 200.
TRUE = {
    "a": ("Edema", "p1", [[0, 0, 100, 50]]),
    "b": ("Edema", "p2", [[0, 0, 40, 100], [20, 0, 60, 100]]),
    "c": ("Pneumonia", "p3", [[100, 0, 200, 100]]),
}


@pytest.fixture
def folder(tmp_path):
    """A folder with the references."""
    records = []
    for name, (finding, patient, boxes) in TRUE.items():
        own = {"question_id": name, "patient_id": patient, "gt_finding": finding}
        own |= {"kind": "grounding", "dataset": "ms_cxr"}
        records.append(made.record_of(f"image-{name}", 0, finding, boxes, **own))
    write_records(tmp_path / "records.jsonl", records)
    return tmp_path


def scored(folder, lines):
    """Protocol -> metric -> value of one system."""
    made.write_lines(folder / "p.jsonl", ({"text": "", **line} for line in lines))
    metrics, _ = made.run_score(folder, "p", benchmark="ms_cxr")
    of = metrics["p"].items()
    return {p: {name: f["value"] for name, f in named.items()} for p, named in of}


def problems_of(folder):
    return made.read_json(folder, "out", "score.json")["problems"]["p"]


def maps(names):
    return [{"question_id": name, "heat_map": f"{name}.npy"} for name in names]


def test_regions_of_boxes_by_hand(folder):
    # a: the true 100 x 50 and twice as much, 1/2. b: the union is x 0 to 60 of which 0 to 30 twice,
    # 1/2 (by boxes counted apart it would be 60 * 100 / (80 * 100)). c: no line.
    lines = [
        {"question_id": "a", "boxes": [[0, 0, 0.5, 1]]},
        {"question_id": "b", "boxes": [[0, 0, 0.15, 1], [0, 0, 0.15, 0.5]]},
    ]
    figures = scored(folder, lines)
    expected = (("paper", None, 0.5, 0.5), ("strict", 0.0, 0.25, 1 / 3))
    for protocol, pneumonia, mean, phrases in expected:
        named = figures[protocol]
        assert named["miou/Edema"] == pytest.approx(0.5)
        assert named["miou/Pneumonia"] == pneumonia
        assert named["miou/Atelectasis"] is None
        assert named["miou"] == pytest.approx(mean)
        assert named["miou_phrases"] == pytest.approx(phrases)
        assert named["cnr"] is None
    assert problems_of(folder)["missing_prediction"] == 1
    assert "| p | strict |" in (folder / "out" / "tables.md").read_text()
    rows = list(csv.DictReader((folder / "out" / "tables.csv").open()))
    assert {row["table"] for row in rows} == {"miou", "cnr", "cnr_signed"}


def test_heat_maps_against_numpy(folder):
    rng = np.random.default_rng(0)
    heat = rng.normal(size=(10, 20))
    heat[:, :6] -= 2  # darker within b's boxes
    for name in "ab":
        np.save(folder / f"{name}.npy", heat)
    figures = scored(folder, maps("ab"))
    a, b = np.zeros((2, 10, 20), bool)
    a[:5, :10] = True
    b[:, :6] = True
    signed = [
        (heat[m].mean() - heat[~m].mean()) / np.sqrt(heat[m].var() + heat[~m].var()) for m in (a, b)
    ]
    assert signed[1] < 0
    for protocol in ("paper", "strict"):
        named = figures[protocol]
        assert named["cnr_signed/Edema"] == pytest.approx(np.mean(signed))
        assert named["cnr/Edema"] == pytest.approx(np.mean(np.abs(signed)))
        assert named["miou"] is None  # a system without boxes
    assert figures["paper"]["cnr/Pneumonia"] is None
    assert figures["strict"]["cnr/Pneumonia"] == 0


def test_maps_without_noise_and_unusable_ones_are_counted(folder):
    heat = np.zeros((10, 20))
    heat[:, 10:] = 1
    np.save(folder / "c.npy", heat)
    np.save(folder / "a.npy", np.full((10, 20), np.nan))
    np.save(folder / "b.npy", np.ones((10, 20)))
    figures, problems = scored(folder, maps("abc")), problems_of(folder)
    assert (problems["noiseless_map"], problems["unusable_map"]) == (1, 1)
    assert figures["strict"]["cnr/Edema"] == 0
    assert figures["strict"]["cnr/Pneumonia"] is None


def test_a_heat_map_leaves_no_boxes_out(folder):
    """Only a system of heat maps alone has no mIoU; one that gives no box where it could has 0."""
    np.save(folder / "a.npy", np.random.default_rng(0).normal(size=(10, 20)))
    empty = [{"question_id": name, "boxes": []} for name in "bc"]
    figures = scored(folder, [*maps("a"), *empty])
    assert figures["strict"]["miou"] == figures["strict"]["miou/Edema"] == 0
    assert figures["strict"]["cnr/Edema"] > 0
    assert scored(folder, maps("a"))["strict"]["miou"] is None


def test_contrast_of_plain_maps():
    inside = np.array([[True, False]])
    assert contrast_to_noise(np.array([[0.1, 0.1]]), inside) == 0
    assert contrast_to_noise(np.array([[0.0, 1.0]]), inside) == -np.inf


def test_a_cell_is_inside_where_its_centre_is():
    mask = region_mask(np.array([[0.0, 0.0, 26.0, 24.0]]), (100, 100), (2, 2))
    assert not mask.any()  # a centre at 25 below the box's edge
    mask = region_mask(np.array([[0.0, 0.0, 26.0, 26.0]]), (100, 100), (2, 2))
    assert mask.tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize(("heat_map", "message"), CASES["refused_maps"])
def test_heat_maps_that_are_refused(folder, heat_map, message):
    np.save(folder / "flat.npy", np.ones(4))
    with pytest.raises(UserError, match=message):
        scored(folder, [{"question_id": "a", "heat_map": heat_map}])


def test_references_of_another_data_set_are_refused(folder):
    references = folder / "records.jsonl"
    references.write_text(references.read_text().replace("Edema", "ILD"))
    with pytest.raises(UserError, match="expected one of MS-CXR's findings"):
        scored(folder, [{"question_id": "a", "boxes": []}])
