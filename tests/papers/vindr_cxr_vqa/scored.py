"""Questions about one class, answers to them, and VinDr-CXR-VQA's figures of both."""

from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA
from cxrjax.records import QARecord
from cxrjax.scoring.benchmark import Answers
from cxrjax.scoring.predictions import parse_prediction
from cxrjax.scoring.scores import ScoreOptions

FEW = Bootstrap(resamples=20)
HEIGHT, WIDTH = 100, 200
BOX = [20.0, 10.0, 100.0, 50.0]
FRACTIONS = [0.1, 0.1, 0.5, 0.5]
OTHER = [120.0, 60.0, 180.0, 90.0]
OTHER_FRACTIONS = [0.6, 0.6, 0.9, 0.9]


def record_of(image="i0", number=0, asked="ILD", boxes=(), labels=None, kind="Is_there", **fields):
    """A question about one class (present where there are boxes), or, with labels, an open one."""
    there = bool(boxes) if labels is None else bool(labels)
    answer = {
        "text": f"Yes, {asked}." if there else f"There is no {asked}.",
        "labels": [asked] if labels is None else labels,
        "polarity": "pos" if there else "neg",
        "boxes_by_image": {image: [list(box) for box in boxes]} if boxes else {},
    }
    return QARecord.model_validate(
        {
            "dataset": "synthetic",
            "split": "validation",
            "image_id": image,
            "image_path": f"{image}.png",
            "image_hw": (HEIGHT, WIDTH),
            "question_id": f"{image}-{number}",
            "question": f"Is there {asked}?" if asked else "What is there?",
            "question_type": kind,
            "variables": {"finding": asked} if asked else None,
            "answers": [answer],
            "negative_kind": None if there else "absent_class",
            **fields,
        }
    )


def line_of(record, text="", boxes=(), **fields):
    return {"question_id": record.question_id, "text": text, "boxes": list(boxes), **fields}


def score_systems(records, systems, options):
    references = VINDR_CXR_VQA.read(records, "r.jsonl", options.gt_mode)
    answers = {name: Answers(predictions, name) for name, predictions in systems.items()}
    return VINDR_CXR_VQA.score(references, answers, options)


def score_lines(records, lines, codec=None, gt_mode="exact", bootstrap=FEW):
    predictions = [parse_prediction(line, "p:1") for line in lines]
    options = ScoreOptions(gt_mode, codec, bootstrap=bootstrap)
    scores = score_systems(records, {"s": predictions}, options)
    return scores.figures["s"], scores.problems["s"]


def values_of(records, lines, protocol, **how):
    return {name: f.value for name, f in score_lines(records, lines, **how)[0][protocol].items()}
