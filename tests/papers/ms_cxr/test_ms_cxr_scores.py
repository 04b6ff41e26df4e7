"""MS-CXR's figures against values by hand and against NumPy."""

import csv
import json

import numpy as np
import pytest

from cxrjax import score
from cxrjax.errors import UserError
from cxrjax.metrics.localization import contrast_to_noise, region_mask
from cxrjax.records import Answer, QARecord, write_records

# Question id -> finding, patient, true boxes in pixels of an image of height 100, width 200.
TRUE = {
    "a": ("Edema", "p1", [[0, 0, 100, 50]]),
    "b": ("Edema", "p2", [[0, 0, 40, 100], [20, 0, 60, 100]]),
    "c": ("Pneumonia", "p3", [[100, 0, 200, 100]]),
}


@pytest.fixture
def references(tmp_path):
    path = tmp_path / "test.jsonl"
    write_records(
        path,
        (
            QARecord(
                dataset="ms_cxr",
                split="test",
                patient_id=patient,
                image_id=f"image-{name}",
                image_path="x.jpg",
                image_hw=(100, 200),
                question_id=name,
                question="Where?",
                question_type="grounding",
                answers=[Answer(text="x", labels=[finding], boxes_by_image={f"image-{name}": box})],
                gt_finding=finding,
            )
            for name, (finding, patient, box) in TRUE.items()
        ),
    )
    return path


def scored(references, lines):
    """Protocol -> metric -> value of one system, and the folder of the scores."""
    folder = references.parent
    path = folder / "p.jsonl"
    path.write_text("".join(json.dumps({"text": "", **line}) + "\n" for line in lines))
    out = folder / "out"
    flags = [f"--references={references}", f"--predictions={path}", f"--out={out}"]
    score.main(["--benchmark=ms_cxr", "--resamples=20", *flags])
    metrics = json.loads((out / "metrics.json").read_text())["p"]
    return {p: {name: f["value"] for name, f in named.items()} for p, named in metrics.items()}, out


def test_regions_of_boxes_by_hand(references):
    # a: the true 100 x 50 and twice as much, 1/2. b: the union is x 0 to 60 of which 0 to 30 twice,
    # 1/2 (by boxes counted apart it would be 60 * 100 / (80 * 100)). c: no line.
    figures, out = scored(
        references,
        [
            {"question_id": "a", "boxes": [[0, 0, 0.5, 1]]},
            {"question_id": "b", "boxes": [[0, 0, 0.15, 1], [0, 0, 0.15, 0.5]]},
        ],
    )
    for protocol, pneumonia, mean, phrases in (
        ("paper", None, 0.5, 0.5),
        ("strict", 0.0, 0.25, 1 / 3),
    ):
        named = figures[protocol]
        assert named["miou/Edema"] == pytest.approx(0.5)
        assert named["miou/Pneumonia"] == pneumonia
        assert named["miou/Atelectasis"] is None
        assert named["miou"] == pytest.approx(mean)
        assert named["miou_phrases"] == pytest.approx(phrases)
        assert named["cnr"] is None
    problems = json.loads((out / "score.json").read_text())["problems"]["p"]
    assert problems["missing_prediction"] == 1
    assert "| p | strict |" in (out / "tables.md").read_text()
    rows = list(csv.DictReader((out / "tables.csv").open()))
    assert {row["table"] for row in rows} == {"miou", "cnr", "cnr_signed"}


def test_heat_maps_against_numpy(references):
    rng = np.random.default_rng(0)
    heat = rng.normal(size=(10, 20))
    heat[:, :6] -= 2  # darker within b's boxes
    for name in "ab":
        np.save(references.parent / f"{name}.npy", heat)
    figures, _ = scored(
        references, [{"question_id": name, "heat_map": f"{name}.npy"} for name in "ab"]
    )
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


def test_maps_without_noise_and_unusable_ones_are_counted(references):
    heat = np.zeros((10, 20))
    heat[:, 10:] = 1
    np.save(references.parent / "c.npy", heat)
    np.save(references.parent / "a.npy", np.full((10, 20), np.nan))
    np.save(references.parent / "b.npy", np.ones((10, 20)))
    figures, out = scored(
        references, [{"question_id": name, "heat_map": f"{name}.npy"} for name in "abc"]
    )
    problems = json.loads((out / "score.json").read_text())["problems"]["p"]
    assert (problems["noiseless_map"], problems["unusable_map"]) == (1, 1)
    assert figures["strict"]["cnr/Edema"] == 0
    assert figures["strict"]["cnr/Pneumonia"] is None


def test_a_heat_map_leaves_no_boxes_out(references):
    """Only a system of heat maps alone has no mIoU; one that gives no box where it could has 0."""
    np.save(references.parent / "a.npy", np.random.default_rng(0).normal(size=(10, 20)))
    mapped = {"question_id": "a", "heat_map": "a.npy"}
    empty = [{"question_id": name, "boxes": []} for name in "bc"]
    figures, _ = scored(references, [mapped, *empty])
    assert figures["strict"]["miou"] == figures["strict"]["miou/Edema"] == 0
    assert figures["strict"]["cnr/Edema"] > 0
    figures, _ = scored(references, [mapped])
    assert figures["strict"]["miou"] is None


def test_contrast_of_plain_maps():
    inside = np.array([[True, False]])
    assert contrast_to_noise(np.array([[0.1, 0.1]]), inside) == 0
    assert contrast_to_noise(np.array([[0.0, 1.0]]), inside) == -np.inf


def test_a_cell_is_inside_where_its_centre_is():
    mask = region_mask(np.array([[0.0, 0.0, 26.0, 24.0]]), (100, 100), (2, 2))
    assert not mask.any()  # a centre at 25 below the box's edge
    mask = region_mask(np.array([[0.0, 0.0, 26.0, 26.0]]), (100, 100), (2, 2))
    assert mask.tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize(
    ("heat_map", "message"),
    [
        ("none.npy", r"p\.jsonl:1: heat map 'none\.npy': No such file"),
        (7, r"p\.jsonl:1: heat_map is 7; expected the path"),
        ("flat.npy", r"flat\.npy': \(4,\); expected \[h, w\]"),
        ("test.jsonl", r"test\.jsonl': no \.npy file"),
    ],
)
def test_heat_maps_that_are_refused(references, heat_map, message):
    np.save(references.parent / "flat.npy", np.ones(4))
    with pytest.raises(UserError, match=message):
        scored(references, [{"question_id": "a", "heat_map": heat_map}])


def test_references_of_another_data_set_are_refused(references):
    text = references.read_text().replace("Edema", "ILD")
    references.write_text(text)
    with pytest.raises(UserError, match="expected one of MS-CXR's findings"):
        scored(references, [{"question_id": "a", "boxes": []}])
