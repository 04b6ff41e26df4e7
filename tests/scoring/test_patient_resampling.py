"""Every benchmark's intervals against scores of patients drawn and copied by hand.

A resample is made the slow way: the drawn patients' records and predictions are written out, a
patient drawn twice as two patients, and scored anew. Images of a patient are copies of one, so that
resampling images would give intervals of another width.
"""

import random

import numpy as np
import pytest

from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.cxr_qba import figures as cxr_qba
from cxrjax.papers.cxr_qba.truth import read_references as read_cxr_qba
from cxrjax.papers.gemex import figures as gemex
from cxrjax.papers.gemex.truth import read_references as read_gemex
from cxrjax.papers.vindr_cxr_vqa import figures as vindr
from cxrjax.papers.vindr_cxr_vqa.truth import read_references as read_vindr
from cxrjax.papers.vix_ray import figures as vix_ray
from cxrjax.papers.vix_ray.counts import read_references as read_vix_ray
from cxrjax.records import Answer, QARecord
from cxrjax.scoring.predictions import Prediction
from cxrjax.scoring.scores import ScoreOptions

PATIENTS, IMAGES, RESAMPLES, SEED = 5, 3, 10, 3
BOXES = [[20.0, 10.0, 100.0, 50.0], [120.0, 60.0, 180.0, 90.0]]
SIZE = np.array([200.0, 100.0, 200.0, 100.0])


def _record(number, image, name, **fields):
    return QARecord(
        split="test",
        patient_id=f"p{number}",
        image_id=image,
        image_path=f"{image}.png",
        image_hw=(100, 200),
        question_id=f"{image}-{name}",
        question="What is there?",
        **fields,
    )


def _prediction(record, text, boxes, rng):
    return Prediction(
        record.question_id,
        text,
        np.array(boxes, float).reshape(-1, 4) / SIZE,
        None,
        None,
        np.array([rng.random() for _ in boxes]),
        -rng.random(),
    )


def _vindr(number, image, rng):
    for name in ("ILD", "Consolidation"):
        boxes = BOXES[: rng.randrange(3)]
        answer = Answer(
            text=f"Yes, {name}." if boxes else f"There is no {name}.",
            labels=[name],
            polarity="pos" if boxes else "neg",
            boxes_by_image={image: boxes} if boxes else {},
        )
        record = _record(
            number,
            image,
            name,
            dataset="synthetic",
            question_type="Is_there",
            variables={"finding": name},
            answers=[answer],
            negative_kind=None if boxes else "absent_class",
        )
        said = [np.add(box, rng.choice([0, 0, 9, 30])) for box in BOXES[: rng.randrange(3)]]
        yield record, _prediction(record, rng.choice(["Yes.", "No."]), said, rng)


def _cxr_qba(number, image, rng):
    polarity, boxes = rng.choice([("pos", BOXES[:1]), ("neg", [])])
    answer = Answer(
        text=f"There is {'a' if boxes else 'no'} left pleural effusion.",
        labels=["pleural effusion"],
        polarity=polarity,
        name_tag="tag",
        regions=["left pleural space"],
        boxes_by_image={image: boxes} if boxes else {},
    )
    record = _record(
        number,
        image,
        "q",
        dataset="cxr_qba",
        question_type="B01_describe_all",
        question_strategy="abnormal",
        answers=[answer],
    )
    side = rng.choice(["left", "right"])
    text = rng.choice([f"There is a {side} pleural effusion.", "There is no pleural effusion."])
    said = [np.add(box, rng.choice([0, 9, 30])) for box in BOXES[: rng.randrange(3)]]
    yield record, _prediction(record, text, said, rng)


def _gemex(number, image, rng):
    for kind, keys in (("closed_ended", ["Yes.", "No."]), ("single_choice", ["A", "B"])):
        key, box = rng.choice(keys), rng.choice(BOXES)
        record = _record(
            number,
            image,
            kind,
            dataset="gemex",
            question_type=kind,
            choices=["A: Clear lungs", "B: Atelectasis"] if kind == "single_choice" else None,
            content_type="disease",
            answers=[
                Answer(
                    text=f"<answer> {key} <reason> It is seen there. <location>[[1, 2, 3, 4]]",
                    regions=["left lung"],
                    boxes_by_image={image: [box]},
                )
            ],
            answer_key=key,
            reason="It is seen there.",
        )
        reason = rng.choice(["It is seen there.", "It is not seen."])
        text = f"<answer> {rng.choice(keys)} <reason> {reason}"
        said = [np.add(box, rng.choice([0, 9, 30]))]
        yield record, _prediction(record, text, said, rng)


def _vix_ray(number, image, rng):
    text = "Bóng tim to . Tràn dịch màng phổi phải . Nhu mô phổi hai bên sáng đều ."
    words = text.split(" ")
    true = " ".join(rng.choices(words, k=12))
    said = " ".join(w if rng.random() < 0.7 else rng.choice(words) for w in true.split())
    record = _record(
        number,
        image,
        "q",
        dataset="vix_ray",
        question_strategy="stage1",
        question_type="findings",
        answers=[Answer(text=true)],
    )
    yield record, _prediction(record, said, [], rng)


CASES = {
    "vindr_cxr_vqa": (
        _vindr,
        lambda records, systems, options: vindr.score(
            read_vindr(records, "exact", "r"), systems, options=options
        ),
        "exact",
        {"detection/f1@0.3", "ap/voc@0.4", "froc/mean_sensitivity", "vqa/accuracy"},
    ),
    "cxr_qba": (
        _cxr_qba,
        lambda records, systems, options: cxr_qba.score(
            read_cxr_qba(records, "r"), systems, options=options
        ),
        cxr_qba.GT_MODE,
        {"findings/f1", "boxes/iou", "text/rouge_l", "hallucination/rate"},
    ),
    "gemex": (
        _gemex,
        lambda records, systems, options: gemex.score(read_gemex(records, "r"), systems, options),
        gemex.GT_MODE,
        {"a_score", "v_score", "rouge_l"},
    ),
    "vix_ray": (
        _vix_ray,
        lambda records, systems, options: vix_ray.score(
            read_vix_ray(records, "r"), systems, options
        ),
        vix_ray.GT_MODE,
        {"stage1/findings/bleu_4", "stage1/findings/rouge_1"},
    ),
}


def _figures(benchmark, pairs, resamples):
    _, score, gt_mode, _ = CASES[benchmark]
    options = ScoreOptions(gt_mode, bootstrap=Bootstrap(resamples, SEED, 0.8, "percentile"))
    records, predictions = zip(*pairs, strict=True)
    found = score(list(records), {"s": list(predictions)}, options).figures["s"]
    return {(protocol, name): f for protocol, named in found.items() for name, f in named.items()}


@pytest.mark.parametrize("benchmark", CASES)
def test_intervals_are_of_resampled_patients(benchmark):
    make, _, _, named = CASES[benchmark]

    def images_of(patient, number):
        """(record, prediction) of a patient's images, all alike, as patient `number`."""
        for copy in range(IMAGES):
            yield from make(number, f"i{number}-{copy}", random.Random(f"{benchmark} {patient}"))

    def study(patients):
        return [pair for n, patient in enumerate(patients) for pair in images_of(patient, n)]

    found = _figures(benchmark, study(range(PATIENTS)), RESAMPLES)
    drawn = np.random.default_rng(SEED).integers(0, PATIENTS, size=(RESAMPLES, PATIENTS))
    by_hand = [_figures(benchmark, study(patients), 0) for patients in drawn]
    checked = set()
    for key, figure in found.items():
        # The limits between tenths by size are the references' own.
        if figure.ci_low is None or key[1].startswith("by_box_size/"):
            continue
        values = [figures[key].value for figures in by_hand if key in figures]
        values = [value for value in values if value is not None]
        ends = np.quantile(values, [0.1, 0.9])
        np.testing.assert_allclose((figure.ci_low, figure.ci_high), ends, 1e-9, 1e-9, str(key))
        checked.add(key[1])
    assert named <= checked, sorted(checked)
    loose = [(r.model_copy(update={"patient_id": None}), p) for r, p in study(range(PATIENTS))]
    of_images = _figures(benchmark, loose, RESAMPLES)
    for name in named:
        one, other = found["strict", name], of_images["strict", name]
        assert one.value == pytest.approx(other.value) and one.ci_low < one.ci_high, name
        assert (one.ci_low, one.ci_high) != (other.ci_low, other.ci_high), name
