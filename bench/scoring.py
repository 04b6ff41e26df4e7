"""Time and memory of `score`: every figure and every interval of VinDr-CXR-VQA on made-up answers.

    python -m bench.scoring [--predictions=100000] [--questions_per_image=1] [--out=DIR]

Writes references (8 true boxes an image, spread over its questions) and predictions of a system
that is right, beside, or wrong, then scores them in a process of its own as people would:
`python -m cxrjax.score --benchmark=vindr_cxr_vqa --resamples=1000`. Prints one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES

BOXES = 8
HEIGHT, WIDTH = 2500, 2000


def write_files(folder: Path, predictions: int, questions_per_image: int, seed: int) -> None:
    """references.jsonl and system.jsonl."""
    rng = np.random.default_rng(seed)
    each = max(1, BOXES // questions_per_image)
    with (
        open(folder / "references.jsonl", "w", encoding="utf-8") as references,
        open(folder / "system.jsonl", "w", encoding="utf-8") as system,
    ):
        for number in range(predictions):
            image = number // questions_per_image
            label = CLASSES[int(rng.integers(len(CLASSES)))]
            there = number % questions_per_image or rng.random() < 0.8
            corners = rng.random((each, 2)) * 0.7
            boxes = np.concatenate([corners, corners + 0.05 + rng.random((each, 2)) * 0.2], axis=1)
            moved = np.clip(boxes + rng.normal(0, 0.03, size=boxes.shape), 0, 1)
            says = there if rng.random() < 0.8 else not there
            text = f"Yes, {label} is seen." if there else f"No {label} is seen."
            pixels = (boxes * np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])).round(1).tolist()
            answer = {
                "text": text,
                "labels": [label],
                "polarity": "pos" if there else "neg",
                "boxes_by_image": {f"i{image}": pixels} if there else {},
            }
            record = {
                "dataset": "synthetic",
                "split": "validation",
                "patient_id": f"p{image // 2}",
                "image_id": f"i{image}",
                "image_path": f"i{image}.png",
                "image_hw": [HEIGHT, WIDTH],
                "view": ("PA", "AP", "LATERAL")[image % 3],
                "sex": "FM"[image % 2],
                "age": image % 90,
                "question_id": f"q{number}",
                "question": f"Is there {label}?",
                "question_type": ("Is_there", "Where", "Which", "Yes_No")[number % 4],
                "difficulty": ("Easy", "Medium", "Hard")[number % 3],
                "variables": {"finding": label},
                "answers": [answer],
            }
            references.write(json.dumps(record) + "\n")
            found = moved.round(4).tolist() if says else []
            line = {
                "question_id": f"q{number}",
                "text": f"Yes, {label} is seen." if says else f"No {label} is seen.",
                "boxes": found,
                "labels": [label] * len(found),
                "box_scores": rng.random(len(found)).round(4).tolist(),
                "answer_logprob": float(np.log(rng.uniform(0.3, 1))),
                "parse": "ok",
            }
            system.write(json.dumps(line) + "\n")


def measure(folder: Path) -> dict[str, float | int]:
    """Wall seconds and peak memory of `score` on the files."""
    command = [
        *(sys.executable, "-m", "cxrjax.score", "--benchmark=vindr_cxr_vqa", "--resamples=1000"),
        *(f"--references={folder}/references.jsonl", f"--predictions={folder}/system.jsonl"),
        f"--out={folder}/scores",
    ]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: ended with status {status}")
    metrics = json.loads((folder / "scores" / "metrics.json").read_text())["system"]
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gb": round(usage.ru_maxrss * 1024 / 1e9, 2),
        "figures": sum(len(named) for named in metrics.values()),
    }


def main() -> None:
    """Writes the files, scores them and prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--predictions", type=int, default=100_000)
    parser.add_argument("--questions_per_image", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keep the files here")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = flags.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, flags.predictions, flags.questions_per_image, flags.seed)
        asked = {
            "predictions": flags.predictions,
            "questions_per_image": flags.questions_per_image,
        }
        print(json.dumps({**asked, **measure(folder)}))


if __name__ == "__main__":
    main()
