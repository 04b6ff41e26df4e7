"""An adapter: scores the boxes of the suite's findings by pycocotools, as a harness of its own.

    python bench/conformance/run.py --figure=detection/f1@0.3 \
        --harness='python bench/conformance/coco.py {references} {predictions} {out}'

F1 at IoU 0.3 over all classes from pycocotools' own matching. A box is of the class that its label
names, else of the one that its question asks about. Exits with 2 where a file is unusable.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Scores one file of predictions."""
    references, predictions, out = map(Path, sys.argv[1:])
    questions = {row["question_id"]: row for row in _lines(references)}
    try:
        answers = {row["question_id"]: row for row in _lines(predictions)}
        found = [
            {"image_id": questions[name]["image_id"], "category_id": label, "bbox": _xywh(box)}
            for name, answer in answers.items()
            for box, label in _boxes(answer, questions[name])
        ]
    except (ValueError, KeyError, TypeError):
        sys.exit(2)
    value = _f1(_truth(questions), found)
    out.mkdir(parents=True)
    figures = {"system": {"strict": {"detection/f1@0.3": {"value": value}}}}
    (out / "metrics.json").write_text(json.dumps(figures))


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8-sig").splitlines() if line.strip()]


def _asked(question: dict[str, Any]) -> str:
    return question["question"].removeprefix("Is there ").removesuffix("?")


def _boxes(answer: dict[str, Any], question: dict[str, Any]) -> list[tuple[list[float], str]]:
    """Boxes in pixels of the question's image, corners sorted, each with its class."""
    height, width = question["image_hw"]
    labels = answer.get("labels") or [_asked(question)] * len(answer["boxes"])
    read = []
    for (x0, y0, x1, y1), label in zip(answer["boxes"], labels, strict=True):
        (x0, x1), (y0, y1) = sorted([x0, x1]), sorted([y0, y1])
        read.append(([x0 * width, y0 * height, x1 * width, y1 * height], label))
    return read


def _xywh(box: list[float]) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def _truth(questions: dict[str, Any]) -> dict[str, Any]:
    boxes = [
        {"image_id": row["image_id"], "category_id": row["gt_finding"], "bbox": _xywh(box)}
        for row in questions.values()
        for answer in row["answers"]
        for box in answer["boxes_by_image"][row["image_id"]]
    ]
    for number, box in enumerate(boxes, 1):
        box |= {"id": number, "area": box["bbox"][2] * box["bbox"][3], "iscrowd": 0}
    return {
        "images": [{"id": name} for name in {row["image_id"] for row in questions.values()}],
        "categories": [{"id": name} for name in {_asked(row) for row in questions.values()}],
        "annotations": boxes,
    }


def _f1(truth: dict[str, Any], found: list[dict[str, Any]]) -> float:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not found:
        return 0.0
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = truth
        coco.createIndex()
        known = {category["id"] for category in truth["categories"]}
        scored = [{**box, "score": 1.0} for box in found if box["category_id"] in known]
        evaluation = COCOeval(coco, coco.loadRes(scored), "bbox")
        evaluation.params.iouThrs = [0.3]
        evaluation.params.maxDets = [len(found)]
        evaluation.params.areaRng = [[-1e18, 1e18]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.evaluate()
    hits = sum(int((one["dtMatches"] > 0).sum()) for one in evaluation.evalImgs if one)
    return 2 * hits / (len(found) + len(truth["annotations"]))


if __name__ == "__main__":
    main()
