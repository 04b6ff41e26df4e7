"""VinDr-CXR-VQA's figures: against an implementation written out, and case by case."""

import itertools
import random

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from cxrjax.errors import UserError
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA
from cxrjax.papers.vindr_cxr_vqa.truth import union
from tests.evaluation import made
from tests.evaluation.made import BOX, FRACTIONS, line_of, record_of, score_lines, values_of

CASES = made.cases_of(__file__)


def _perfect(records):
    return [
        line_of(r, r.answer_text, [[a / 200, b / 100, c / 200, d / 100] for a, b, c, d in r.boxes])
        for r in records
    ]


def _random_case(seed, images=7):
    """Records as the phantom benchmark has them, and predictions that are right now and then."""
    rng = random.Random(seed)
    records, lines = [], []
    for i in range(images):
        names = rng.sample(CLASSES, 5)
        present = names[: rng.randrange(4)]
        for number, name in enumerate(names):
            boxes = [_random_box(rng) for _ in range(rng.randint(1, 2))] if name in present else []
            records.append(record_of(f"i{i}", number, name, boxes))
        records.append(record_of(f"i{i}", 9, "", labels=present, kind="What"))
    for record in records:
        if rng.random() < 0.1:
            continue
        asked = record.finding
        text = rng.choice([record.answer_text, "Yes.", "No.", "", f"{rng.choice(CLASSES)} seen."])
        boxes = []
        for box in record.boxes + [_random_box(rng)] * (rng.random() < 0.4):
            x0, y0, x1, y1 = (v + rng.choice([0, 0, 3, -6, 9]) for v in box)
            x0, x1 = (v + rng.choice([0, 0, 30]) for v in (x0, x1 + 30))
            boxes.append([x0 / 200, y0 / 100, x1 / 200, y1 / 100])
        boxes += boxes[:1] * (rng.random() < 0.2)
        lines.append(line_of(record, text, boxes if asked else []))
    return records, lines


def _random_box(rng):
    x, y = rng.randrange(0, 140, 10), rng.randrange(0, 60, 10)
    return list(map(float, (x, y, x + rng.choice([20, 40, 60]), y + rng.choice([20, 40]))))


def _overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    inter = max(width, 0) * max(height, 0)
    return inter / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter)


def _most_pairs(predicted, truth):
    """Most one-to-one pairs above the threshold, by trying every order of the predictions."""
    good = [[_overlap(p, t) > 0.3 for t in truth] for p in predicted]

    def pairs(index, free):
        if index == len(predicted):
            return 0
        best = pairs(index + 1, free)
        for t in free:
            if good[index][t]:
                best = max(best, 1 + pairs(index + 1, free - {t}))
        return best

    return pairs(0, frozenset(range(len(truth))))


def _slow(records, lines):
    """The figures again, by their wording, from the records and lines themselves."""
    by_id = {line["question_id"]: line for line in lines}
    names = [record.image_id for record in records]
    truth: dict[str, set] = {name: set() for name in names}
    strict: dict[str, list] = {name: [] for name in names}
    every: dict[str, list] = {name: [] for name in names}
    for record in records:
        asked = record.finding
        for box in record.boxes:
            scaled = (box[0] / 200, box[1] / 100, box[2] / 200, box[3] / 100)
            truth[record.image_id].add((asked, scaled))
        line = by_id.get(record.question_id, {"boxes": []})
        # Every pair of image and class is asked about once: no answer repeats another's boxes.
        strict[record.image_id] += [(asked, tuple(box)) for box in line["boxes"]]
        every[record.image_id] += [tuple(box) for box in line["boxes"]]
    tp = boxes = total = agnostic = hits = found = good = 0
    for image, true in truth.items():
        boxes += len(strict[image])
        total += len(true)
        for name in CLASSES:
            said, there = ([b for c, b in some if c == name] for some in (strict[image], true))
            tp += _most_pairs(said, there)
        agnostic += _most_pairs([b for _, b in strict[image]], [b for _, b in true])
        hits += sum(any(_overlap(p, t) > 0.3 for _, t in true) for p in every[image])
        found += sum(any(_overlap(p, t) > 0.3 for p in every[image]) for _, t in true)
        good += any(_overlap(p, t) > 0.5 for p in every[image] for _, t in true)
    precision, recall = hits / boxes, found / total
    return {
        "strict": {
            "detection/precision@0.3": tp / boxes,
            "detection/recall@0.3": tp / total,
            "detection/f1@0.3": 2 * tp / (boxes + total),
            "detection_agnostic/f1@0.3": 2 * agnostic / (boxes + total),
            "localization/good@0.5": good / len(truth),
        },
        "paper": {
            "detection/precision@0.3": precision,
            "detection/recall@0.3": recall,
            "detection/f1@0.3": 2 * precision * recall / (precision + recall),
            "localization/good@0.5": good / len(truth),
        },
    }


@pytest.mark.parametrize("seed", range(6))
def test_boxes_against_the_wording_written_out(seed):
    records, lines = _random_case(seed)
    figures, _ = score_lines(records, lines)
    for protocol, expected in _slow(records, lines).items():
        for name, value in expected.items():
            assert figures[protocol][name].value == pytest.approx(value), (protocol, name)


@pytest.mark.parametrize("seed", range(3))
def test_decisions_against_scikit_learn(seed):
    rng = random.Random(seed)
    records, lines, truth, said = [], [], [], []
    for i in range(60):
        there = rng.random() < 0.4
        records.append(record_of(f"i{i}", 0, rng.choice(CLASSES), [BOX] if there else []))
        truth.append(there)
        said.append(rng.random() < (0.7 if there else 0.2))
        lines.append(line_of(records[-1], "Yes." if said[-1] else "No."))
    figures, _ = score_lines(records, lines)
    for protocol, name, theirs in (
        ("strict", "accuracy", sklearn_metrics.accuracy_score),
        ("strict", "balanced_accuracy", sklearn_metrics.balanced_accuracy_score),
        ("strict", "mcc", sklearn_metrics.matthews_corrcoef),
        ("paper", "f1", sklearn_metrics.f1_score),
        ("paper", "precision", sklearn_metrics.precision_score),
        ("paper", "recall", sklearn_metrics.recall_score),
    ):
        assert figures[protocol][f"vqa/{name}"].value == pytest.approx(theirs(truth, said)), name


# Of both protocols.
ALWAYS = (
    *("vqa/precision", "vqa/recall", "vqa/f1", "localization/mean_iou"),
    *(f"detection/{name}@0.3" for name in ("precision", "recall", "f1", "miou_tp")),
)


def test_identity_is_the_maximum():
    records, _ = _random_case(1)
    figures, problems = score_lines(records, _perfect(records))
    for protocol in ("paper", "strict"):
        values = {name: figure.value for name, figure in figures[protocol].items()}
        for name in ALWAYS:
            assert values[name] == pytest.approx(1), (protocol, name)
        assert values["parse_failure_rate"] == 0
    strict = {name: figure.value for name, figure in figures["strict"].items()}
    for name in ("accuracy", "balanced_accuracy", "mcc", "exact_set"):
        assert strict[f"vqa/{name}"] == pytest.approx(1)
    # Images without true boxes cannot be "good": that ceiling is printed, and reached.
    assert strict["localization/ceiling"] < 1
    assert strict["localization/good@0.5"] == strict["localization/ceiling"]
    assert strict["localization_with_lesion/good@0.5"] == 1
    assert strict["detection/boxes_per_normal_image"] == 0
    assert not any(problems.values())


def test_order_of_lines_and_boxes_does_not_matter():
    records, lines = _random_case(2)
    shuffled = [{**line, "boxes": line["boxes"][::-1]} for line in lines[::-1]]
    first, second = (
        made.scores_of(records, some, bootstrap=made.FEW).figures["s"] for some in (lines, shuffled)
    )
    for protocol, figures in first.items():
        for name, figure in figures.items():
            other = second[protocol][name]
            assert figure.n == other.n
            # pycocotools takes boxes of one score in the order of the file.
            if "pycocotools" not in name:
                assert figure.value == pytest.approx(other.value), name
            if figure.ci_low is not None:
                assert figure.ci_low == pytest.approx(other.ci_low), name


def test_far_away_boxes_and_copies_raise_nothing():
    records = [record_of("i0", 0, "ILD", [BOX]), record_of("i1", 0, "ILD", [BOX])]
    good = [line_of(r, "Yes.", [FRACTIONS]) for r in records]
    before = values_of(records, good)
    far = [line_of(records[0], "Yes.", [FRACTIONS, [0.95, 0.95, 1, 1]]), good[1]]
    for protocol in ("paper", "strict"):
        name = "detection/precision@0.3"
        assert values_of(records, far, protocol)[name] < values_of(records, good, protocol)[name]
    copies = [line_of(records[0], "Yes.", [FRACTIONS] * 10), good[1]]
    after = values_of(records, copies)
    assert after["detection/f1@0.3"] < before["detection/f1@0.3"]
    assert after["detection/precision@0.3"] == pytest.approx(2 / 11)
    assert after["detection/duplicate_share"] == pytest.approx(9 / 11)
    # The paper's wording doesn't mind.
    assert values_of(records, copies, "paper")["detection/f1@0.3"] == 1


def test_a_box_that_two_answers_give_is_one_box():
    asks = [record_of("i0", n, "ILD", [BOX], kind=k) for n, k in enumerate(["Where", "Yes_No"])]
    both = [line_of(r, "Yes.", [FRACTIONS]) for r in asks]
    strict = values_of(asks, both)
    assert strict["detection/precision@0.3"] == strict["detection/recall@0.3"] == 1
    assert strict["detection/truth_boxes_per_image"] == 1
    # The paper's wording counts boxes, not what they are about.
    one_more = line_of(asks[0], "Yes.", [FRACTIONS, [0.0, 0.8, 0.9, 0.9]])
    figures, _ = score_lines(asks, [one_more, both[1]])
    assert figures["paper"]["detection/precision@0.3"].value == pytest.approx(2 / 3)
    assert figures["paper"]["localization/mean_iou"].value == pytest.approx(2 / 3)
    assert figures["strict"]["detection/precision@0.3"].value == 0.5
    assert figures["strict"]["localization/mean_iou"].value == 0.5
    a, b = (0, (1.0,)), (0, (2.0,))
    assert sorted(union([[a, a], [a, b], [b]])) == [a, a, b]


def test_undefined_is_null():
    absent = [record_of("i0", 0, "ILD"), record_of("i1", 0, "ILD")]
    silent = [line_of(r, "No.") for r in absent]
    figures = made.scores_of(absent, silent, bootstrap=made.FEW).figures["s"]
    for protocol in ("paper", "strict"):
        for name in ALWAYS:
            cell = figures[protocol][name].to_json()
            assert cell["value"] is cell["ci_low"] is cell["ci_high"] is None, (protocol, name)
            assert cell["n"] == 2
    assert figures["strict"]["vqa/accuracy"].value == 1
    assert figures["strict"]["vqa/balanced_accuracy"].value is None
    assert figures["strict"]["localization/good@0.5"].value == 0

    # Boxes that hit nothing: precision is 0 and known, the mean over no hits is not.
    records = [record_of("i0", 0, "ILD", [BOX])]
    strict = values_of(records, [line_of(records[0], "Yes.", [made.OTHER_FRACTIONS])])
    assert strict["detection/precision@0.3"] == strict["detection/f1@0.3"] == 0
    assert strict["detection/miou_tp@0.3"] is None


def test_accuracy_of_the_paper_is_null_with_f1_beside_it():
    records, lines = _random_case(3)
    paper = values_of(records, lines, "paper")
    assert paper["vqa/accuracy"] is None
    assert paper["vqa/accuracy_as_printed"] == paper["vqa/f1"]
    strict = values_of(records, lines)
    assert strict["vqa/accuracy"] != strict["vqa/f1"]


def test_n_is_images_or_questions():
    records, lines = _random_case(4)
    figures, _ = score_lines(records, lines)
    asked = sum(r.variables is not None for r in records)
    for name, figure in figures["strict"].items():
        if name.startswith(("detection/", "detection_agnostic/", "localization/")):
            assert figure.n == (2 if "normal_image" in name else 7), name
    assert figures["strict"]["vqa/f1"].n == len(records)
    # Of a class above or below a marked one nothing is known.
    assert asked - 2 <= figures["strict"]["vqa/accuracy"].n < asked
    assert figures["paper"]["parse_failure_rate"].n == len(records)


def test_breakdown_by_class_and_type():
    records = [
        record_of("i0", 0, "ILD", [BOX]),
        record_of("i0", 1, "Nodule/Mass", [made.OTHER], kind="Where"),
        record_of("i1", 0, "ILD"),
    ]
    lines = [
        line_of(records[0], "Yes.", [FRACTIONS]),
        line_of(records[1], "No."),
        line_of(records[2], "Yes.", [FRACTIONS]),
    ]
    figures = score_lines(records, lines)[0]["strict"]
    expected = {
        "by_class/detection/precision@0.3/ILD": (0.5, 1),
        "by_class/detection/recall@0.3/ILD": (1, 1),
        "by_class/detection/f1@0.3/Nodule/Mass": (0, 1),
        "by_class/detection/f1@0.3/Pneumothorax": (None, 0),
        "by_class/vqa/accuracy/ILD": (0.5, 2),
        "by_question_type/vqa/f1/Is_there": (pytest.approx(2 / 3), 2),
        "by_question_type/vqa/f1/Where": (0, 1),
    }
    assert {name: (figures[name].value, figures[name].n) for name in expected} == expected
    assert figures["by_class/detection/f1@0.3/ILD"].n == 1
    by_class = [figures[f"by_class/detection/f1@0.3/{name}"] for name in CLASSES]
    assert len(by_class) == 14


READERS = {
    "R1": [{"label": "ILD", "box": BOX}],
    "R2": [{"label": "ILD", "box": [22.0, 12.0, 100.0, 50.0]}],
    "R3": [{"label": "Pleural effusion", "box": made.OTHER}],
}


def test_ground_truth_modes_and_the_recall_ceiling():
    """One box per question cannot find three readers' boxes."""
    record = record_of("i0", 0, "ILD", [BOX], readers=READERS)
    lines = [line_of(record, "Yes.", [FRACTIONS])]
    recalls, ceilings, paper = {}, {}, {}
    for mode in ("exact", "raw", "per_reader"):
        strict = values_of([record], lines, gt_mode=mode)
        recalls[mode] = strict["detection/recall@0.3"]
        ceilings[mode] = strict["detection/recall_ceiling@0.3"]
        paper[mode] = values_of([record], lines, "paper", gt_mode=mode)["detection/recall@0.3"]
        assert strict["detection/recall_ceiling_one_box"] >= recalls[mode]
    assert recalls == ceilings == {"exact": 1, "raw": pytest.approx(1 / 3), "per_reader": 2 / 3}
    assert paper == {"exact": 1, "raw": 2 / 3, "per_reader": 2 / 3}
    raw = values_of([record], lines, gt_mode="raw")
    assert raw["detection/recall_ceiling_one_box"] == pytest.approx(1 / 3)
    assert raw["detection/truth_boxes_per_image"] == 3


@pytest.mark.parametrize(("mode", "recall", "boxes"), CASES["merged_readers"])
def test_merged_readers_as_truth(mode, recall, boxes):
    record = record_of("i0", 0, "ILD", [BOX], readers=READERS)
    strict = values_of([record], [line_of(record, "Yes.", [FRACTIONS])], gt_mode=mode)
    assert strict["detection/recall@0.3"] == recall
    assert strict["detection/truth_boxes_per_image"] == boxes


def test_each_protocol_has_its_own_truth_by_default():
    """As the paper counts, two readers' boxes of one lesion are two; strictly they are one."""
    lines = [line_of(record_of("i0"), "Yes.", [FRACTIONS])]

    def boxes(dataset, readers=READERS):
        one = record_of("i0", 0, "ILD", [BOX], readers=readers, dataset=dataset)
        figures = score_lines([one], lines, gt_mode="by_protocol")[0]
        recalls = [figures[p]["detection/recall@0.3"].value for p in ("paper", "strict")]
        name = "detection/truth_boxes_per_image"
        return [figures[p][name].value for p in ("paper", "strict")], recalls

    assert boxes("vindr_cxr_vqa") == ([3, 2], [pytest.approx(2 / 3), 0.5])
    assert boxes("synthetic") == ([1, 1], [1, 1])
    assert boxes("vindr_cxr_vqa", None) == ([1, 1], [1, 1])
    one = record_of("i0", 0, "ILD", [BOX], readers=READERS, dataset="vindr_cxr_vqa")
    assert VINDR_CXR_VQA.read([one], "r", "by_protocol").gt_mode == "raw (paper), wbf (strict)"


def test_one_reader_is_truth_only_where_they_read():
    records = [
        record_of("i0", 0, "ILD", [BOX], readers=READERS),
        record_of("i1", 0, "ILD", [BOX], readers={"R9": []}),
    ]
    lines = [line_of(record, "Yes.", [FRACTIONS]) for record in records]
    figures = score_lines(records, lines, gt_mode="reader:R1")[0]["strict"]
    figure = figures["detection/precision@0.3"]
    assert (figure.value, figure.n) == (1, 1)
    assert figures["vqa/accuracy"].n == 2
    # Whoever reads "No finding" is a truth without boxes.
    figures = score_lines(records, lines, gt_mode="reader:R9")[0]["strict"]
    figure = figures["detection/precision@0.3"]
    assert (figure.value, figure.n) == (0, 1)
    with pytest.raises(UserError, match=r"'reader:R7': expected one of R1, R2, R3, R9"):
        score_lines(records, lines, gt_mode="reader:R7")


def test_systems_share_their_resamples():
    records, lines = _random_case(5)
    systems = dict.fromkeys("ab", made.predictions_of(lines))
    scores = made.score_systems(records, systems, ScoreOptions("exact", bootstrap=made.FEW))
    assert scores.figures["a"] == scores.figures["b"]


def test_a_mean_over_true_positives_below_the_threshold_is_refused(monkeypatch):
    """The paper's 0.036 (Table 5) cannot be; should counting go wrong, it must not be written."""
    records = [record_of("i0", 0, "ILD", [BOX])]
    monkeypatch.setattr(
        "cxrjax.papers.vindr_cxr_vqa.boxes.match_one_to_one",
        lambda overlaps, thresholds, with_classes=True: np.ones((len(thresholds), 1), bool),
    )
    with pytest.raises(AssertionError, match="not above"):
        score_lines(records, [line_of(records[0], "Yes.", [[0.4, 0.1, 0.9, 0.5]])])


def test_some_images_at_a_time_count_as_all_together(monkeypatch):
    records, lines = _random_case(3)
    whole = made.scores_of(records, lines, bootstrap=made.FEW)
    monkeypatch.setattr("cxrjax.papers.vindr_cxr_vqa.boxes._IMAGES_AT_ONCE", 2)
    parts = made.scores_of(records, lines, bootstrap=made.FEW)
    assert (parts.figures, parts.curves) == (whole.figures, whole.curves)


def test_every_figure_is_a_finite_number_or_null():
    for seed, drop in itertools.product(range(3), (0, 5)):
        records, lines = _random_case(seed, images=3)
        figures = made.scores_of(records, lines[drop:], bootstrap=made.FEW).figures["s"]
        for named in figures.values():
            for name, figure in named.items():
                for value in figure.to_json().values():
                    assert value is None or np.isfinite(value), name
                if figure.ci_low is not None:
                    assert figure.ci_low <= figure.ci_high
