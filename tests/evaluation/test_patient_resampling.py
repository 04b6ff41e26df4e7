"""Every benchmark's intervals against scores of patients drawn and copied by hand.

A resample is made the slow way: the drawn patients' records and predictions are written out, a
patient drawn twice as two patients, and scored anew. Images of a patient are copies of one, so that
resampling images would give intervals of another width.
"""

import functools
import random

import numpy as np
import pytest
import scipy.stats

from cxrjax.evaluation.predictions import Prediction
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.paper import load_benchmark
from cxrjax.records import Answer
from tests.evaluation import made

PATIENTS, IMAGES, RESAMPLES, SEED, CONFIDENCE = 5, 3, 25, 3, 0.8
BOXES = [made.BOX, made.OTHER]
SIZE = np.array([200.0, 100.0, 200.0, 100.0])


def _record(number, image, name, **fields):
    return made.record_of(image, name, name, patient_id=f"p{number}", **fields)


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


def _said(rng, most, moves, least=0):
    return [np.add(box, rng.choice(moves)) for box in BOXES[: rng.randrange(least, most)]]


def _vindr(number, image, rng):
    for name in ("ILD", "Consolidation"):
        record = _record(number, image, name, boxes=BOXES[: rng.randrange(3)])
        said = _said(rng, 3, [0, 0, 9, 30])
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
    kind = {"kind": "B01_describe_all", "question_strategy": "abnormal"}
    record = _record(number, image, "q", dataset="cxr_qba", answers=[answer], **kind)
    side = rng.choice(["left", "right"])
    text = rng.choice([f"There is a {side} pleural effusion.", "There is no pleural effusion."])
    yield record, _prediction(record, text, _said(rng, 3, [0, 9, 30]), rng)


def _gemex(number, image, rng):
    for kind, keys in (("closed_ended", ["Yes.", "No."]), ("single_choice", ["A", "B"])):
        key, box = rng.choice(keys), rng.choice(BOXES)
        text = f"<answer> {key} <reason> It is seen there. <location>[[1, 2, 3, 4]]"
        record = _record(
            number,
            image,
            kind,
            dataset="gemex",
            kind=kind,
            choices=["A: Clear lungs", "B: Atelectasis"] if kind == "single_choice" else None,
            content_type="disease",
            answers=[Answer(text=text, regions=["left lung"], boxes_by_image={image: [box]})],
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
    kind = {"kind": "findings", "question_strategy": "stage1", "dataset": "vix_ray"}
    record = _record(number, image, "q", answers=[Answer(text=true)], **kind)
    yield record, _prediction(record, said, [], rng)


def _ms_cxr(number, image, rng):
    for finding in ("Edema", "Pneumonia"):
        kind = {"kind": "grounding", "gt_finding": finding, "dataset": "ms_cxr"}
        record = _record(number, image, finding, boxes=[rng.choice(BOXES)], **kind)
        yield record, _prediction(record, "x", _said(rng, 3, [0, 9, 30], 1), rng)


CASES = {
    "vindr_cxr_vqa": (
        _vindr,
        {"detection/f1@0.3", "ap/voc@0.4", "froc/mean_sensitivity", "vqa/accuracy"},
    ),
    "cxr_qba": (_cxr_qba, {"findings/f1", "boxes/iou", "text/rouge_l", "hallucination/rate"}),
    "gemex": (_gemex, {"a_score", "v_score", "rouge_l"}),
    "vix_ray": (_vix_ray, {"stage1/findings/bleu_4", "stage1/findings/rouge_1"}),
    "ms_cxr": (_ms_cxr, {"miou", "miou_phrases", "miou/Edema"}),
}


def _figures(name, pairs, resamples, method="percentile"):
    benchmark = load_benchmark(name)
    options = ScoreOptions(
        benchmark.gt_modes[0], bootstrap=Bootstrap(resamples, SEED, CONFIDENCE, method)
    )
    records, predictions = zip(*pairs, strict=True)
    found = made.score_systems(records, {"s": predictions}, options, benchmark).figures["s"]
    return {(protocol, name): f for protocol, named in found.items() for name, f in named.items()}


def _study(benchmark, patients):
    """(record, prediction) of the patients' images, all of a patient's alike."""
    make, _ = CASES[benchmark]
    return [
        pair
        for number, patient in enumerate(patients)
        for copy in range(IMAGES)
        for pair in make(number, f"i{number}-{copy}", random.Random(f"{benchmark} {patient}"))
    ]


@functools.cache
def _by_hand(benchmark, patients):
    """Every figure of these patients; the order in which they were drawn says nothing."""
    return {key: f.value for key, f in _figures(benchmark, _study(benchmark, patients), 0).items()}


@pytest.mark.parametrize("method", ["percentile", pytest.param("BCa", marks=pytest.mark.slow)])
@pytest.mark.parametrize("benchmark", CASES)
def test_intervals_are_of_resampled_patients(benchmark, method):
    """SciPy draws patients from the same seed, and scores those drawn anew each time."""
    named = CASES[benchmark][1]
    patients = np.arange(PATIENTS)
    found = _figures(benchmark, _study(benchmark, patients), RESAMPLES, method.lower())
    checked, undefined = set(), set()
    for key, figure in found.items():
        # The limits between tenths by size are the references' own.
        if figure.ci_low is None or key[1].startswith("by_box_size/"):
            continue

        def statistic(drawn, key=key):
            value = _by_hand(benchmark, tuple(sorted(drawn.tolist()))).get(key)
            return np.nan if value is None else round(value, 12)

        drawn = np.random.default_rng(SEED).integers(0, PATIENTS, size=(RESAMPLES, PATIENTS))
        values = np.array([statistic(some) for some in drawn])
        values = values[np.isfinite(values)]
        ends = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        if method == "BCa" and not figure.fallback and np.ptp(values) > 0:
            if len(values) < RESAMPLES:
                undefined.add(key[1])  # which SciPy does not take
                continue
            ends = scipy.stats.bootstrap(
                (patients,),
                statistic,
                n_resamples=RESAMPLES,
                vectorized=False,
                confidence_level=CONFIDENCE,
                method=method,
                rng=np.random.default_rng(SEED),
            ).confidence_interval
            checked.add(key[1])
        elif method == "percentile":
            checked.add(key[1])
        np.testing.assert_allclose((figure.ci_low, figure.ci_high), ends, 1e-9, 1e-9, str(key))
    assert checked and named <= checked | undefined, sorted(checked)


@pytest.mark.parametrize("benchmark", CASES)
def test_headlines_are_measured_image_by_image_without_patients(benchmark):
    study = _study(benchmark, range(PATIENTS))
    loose = [(r.model_copy(update={"patient_id": None}), p) for r, p in study]
    of_patients, of_images = (_figures(benchmark, some, RESAMPLES) for some in (study, loose))
    for name in CASES[benchmark][1]:
        one, other = of_patients["strict", name], of_images["strict", name]
        assert one.value == pytest.approx(other.value) and one.ci_low < one.ci_high, name
        assert (one.ci_low, one.ci_high) != (other.ci_low, other.ci_high), name
    # A misspelt name of tables.toml would leave its figure out of the page in silence
    found = _figures(benchmark, _study(benchmark, range(PATIENTS)), 0)
    layout = load_benchmark(benchmark).layout
    logged = {(protocol, name) for protocol, names in layout.logged.items() for name in names}
    headlines = {(protocol, name) for protocol, name, _, _ in layout.headlines}
    assert logged and logged | headlines <= found.keys()
