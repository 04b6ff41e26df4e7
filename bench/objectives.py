"""Comparison of box losses for the demo's model, at equal steps.

    python -m bench.objectives --on=lungs|lesions|phantoms [--steps=400] [--seeds=3] [--only=NAME]

On lungs and on lesions (simulated), after `make demo`, a row is a variant of
configs/vindr_lora.py:demo, trained on the lungs alone or on the demo's questions, and answers for
held-out patients. On phantoms, after

    python -m cxrjax.build --dataset=phantom --seed=11 --images=3000 --validation_images=300 \
        --long_side=144 --conspicuity=1.6 --image_format=jpg --out=runs/phantoms

it is a variant of configs/vindr_lora.py:phantom. `lambda_0`, the first, has no box loss; the others
have what their row says. Each is trained once a seed and stored in runs/objectives/ by data and
steps, so that an interrupted run resumes and more seeds add to fewer. Prints strict figures, means
over seeds, and the difference from `lambda_0` with its interval over other patients and other seeds
(`score`'s spread.json). `--held_out=DIR`, another build, has its validation questions answered and
scored as well, such as adults' lungs (data/real_cxr).
"""

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FIGURES = {
    "F1@0.3": "detection/f1@0.3",
    "F1@0.5": "detection/f1@0.5",
    "F1@0.75": "detection/f1@0.75",
    "AP@0.5": "ap/coco@0.5",
    "AP@0.75": "ap/coco@0.75",
    "mean IoU of hits": "detection/miou_tp@0.3",
    "balanced accuracy": "vqa/balanced_accuracy",
}


class Ground(NamedTuple):
    """Setup that objectives are compared on.

    Attributes:
        config: base of the variants.
        data: a build, whose held-out questions are predicted.
        settings: of every row.
        asked: flags of `predict`.
        benchmark: that scores the answers.
        figures: column -> one of its metrics.
    """

    config: str
    data: Path
    settings: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    benchmark: str = "vindr_cxr_vqa"
    figures: Mapping[str, str] = FIGURES

    def folder(self, steps: int) -> Path:
        """Returns the folder of runs with `steps` steps."""
        return Path("runs/objectives") / f"{self.data.name}_{steps}"


GROUNDS = {
    "lungs": Ground(
        "configs/vindr_lora.py:demo",
        Path("runs/demo/lungs"),
        # As good as none of the other source.
        ("mixture.sources.lungs.weight=1.0", "mixture.sources.grafts.weight=1e-6"),
        asked=("--source=lungs",),
        benchmark="lungs",
        figures={
            "mean IoU": "lungs/mean_iou",
            "IoU > 0.75": "lungs/iou_above@0.75",
            "IoU > 0.9": "lungs/iou_above@0.9",
            "normal, balanced accuracy": "normal/balanced_accuracy",
        },
    ),
    "lesions": Ground(
        "configs/vindr_lora.py:demo", Path("runs/demo/data"), asked=("--source=grafts",)
    ),
    "phantoms": Ground(
        "configs/vindr_lora.py:phantom",
        Path("runs/phantoms"),
        (
            *("data.train=runs/phantoms/records/train.jsonl", "training.epochs=None"),
            *("training.coordinate_width=2.0", "decoding.boxes=median"),
        ),
    ),
}
_HALF = ("training.lambda_box=0.5",)
# Name -> what it changes of the configuration.
VARIANTS: dict[str, tuple[str, ...]] = {
    "lambda_0": ("training.lambda_box=0.0",),
    "lambda_0.02": ("training.lambda_box=0.02",),
    "lambda_0.05": ("training.lambda_box=0.05",),
    "lambda_0.1": ("training.lambda_box=0.1",),
    "lambda_0.5": _HALF,
    "balanced": (*_HALF, "optimizer.clip_box_norm=0.3"),
    "local": (*_HALF, "training.box_window=0.1"),
    "shielded": (*_HALF, "lora.box_rank=8"),
}
_FIXED = ("data.validation=None", "data.workers=0")
_SECONDS = re.compile(r"([0-9.]+) s a step")


def answer(ground: Ground, workdir: Path, settings: Sequence[str]) -> None:
    """Trains and has the run answer the held-out questions, where that is not there yet."""
    answers = answers_of(workdir)
    if answers.exists():
        return
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with workdir.with_name(workdir.name + ".log").open("w") as log:
        for words in (
            ["cxrjax.train", f"--config={ground.config}", f"--workdir={workdir}"]
            + [f"--config.{key}" for key in (*_FIXED, *ground.settings, *settings)],
            ["cxrjax.predict", f"--workdir={workdir}", *ground.asked, f"--out={answers}"]
            + [f"--questions={ground.data}/questions/validation.jsonl"],
        ):
            command = [sys.executable, "-m", *words]
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)


def answer_also(ground: Ground, workdir: Path) -> None:
    """Writes a trained run's answers to another build's questions, unless they exist."""
    answers = workdir.parent / ground.data.name / f"{workdir.name}.jsonl"
    if answers.exists():
        return
    answers.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "cxrjax.predict", f"--workdir={workdir}", *ground.asked]
    command += [f"--questions={ground.data}/questions/validation.jsonl", f"--out={answers}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def answers_of(workdir: Path) -> Path:
    """The file of what that run answered."""
    return workdir.with_name(workdir.name + ".jsonl")


def step_seconds(logs: Iterable[Path]) -> float:
    """The least seconds a step that the logs tell."""
    told = (float(s) for log in logs for s in _SECONDS.findall(log.read_text()))
    return min(told, default=float("nan"))


def score(
    ground: Ground, out: Path, names: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """{variant: {figure: its entry of spread.json}} of what was answered in `out` to the held-out
    questions of a ground; differences are from the first of the names."""
    keys = ground.figures.values()
    files = [path for name in names for path in sorted(out.glob(f"{name}.seed*.jsonl"))]
    command = [sys.executable, "-m", "cxrjax.score", f"--benchmark={ground.benchmark}"]
    command += [f"--references={ground.data}/records/validation.jsonl", "--floors=never"]
    command += [f"--predictions={path}" for path in files] + [f"--out={out}/score"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    metrics = json.loads((out / "score/metrics.json").read_text())
    spread_file = out / "score/spread.json"
    spread = json.loads(spread_file.read_text()) if spread_file.exists() else {}
    compared_file = out / "score/comparisons.json"  # of two files or more
    compared = json.loads(compared_file.read_text()) if compared_file.exists() else []
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        if name in spread:
            found[name] = {key: spread[name]["strict"][key] for key in keys}
            continue
        alone = next(path.stem for path in files if path.stem.startswith(f"{name}.seed"))
        found[name] = {
            key: {"mean": metrics[alone]["strict"][key]["value"], "runs": 1} for key in keys
        }
        for line in compared:
            key = line["metric"]
            if (line["system"], line["protocol"]) == (alone, "strict") and key in found[name]:
                found[name][key] |= {k: line[k] for k in ("difference", "ci_low", "ci_high")}
    return found


def table(ground: Ground, out: Path, found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown, a row a variant; behind each figure its difference from the first variant's."""
    head = ["variant", "seeds", *ground.figures, "seconds a step"]
    lines = [head, ["---"] * len(head)]
    for name, figures in found.items():
        row = [name, str(next(iter(figures.values()))["runs"])]
        for key in ground.figures.values():
            entry = figures[key]
            told = f"{entry['mean']:.3f}"
            if entry.get("sd") is not None:
                told += f" ± {entry['sd']:.3f}"
            if entry.get("difference") is not None:
                told += "; {difference:+.3f} ({ci_low:+.3f} to {ci_high:+.3f})".format(**entry)
            row.append(told)
        seconds = step_seconds(out.glob(f"{name}.seed*.log"))
        lines.append([*row, "" if math.isnan(seconds) else f"{seconds:.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--on", choices=GROUNDS, default="lungs")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--held_out", type=Path, metavar="DIR")
    parser.add_argument("--table", action="store_true", help="of what there is; train nothing")
    flags = parser.parse_args()
    ground = GROUNDS[flags.on]
    out = ground.folder(flags.steps)
    names = [n for n in VARIANTS if not flags.only or n in {"lambda_0", *flags.only}]
    also = ground._replace(data=flags.held_out) if flags.held_out else None
    if not flags.table:
        for seed in range(flags.seeds):
            for name in names:
                settings = (f"training.seed={seed}", f"training.steps={flags.steps}")
                workdir = out / f"{name}.seed{seed}"
                answer(ground, workdir, (*settings, *VARIANTS[name]))
                if also is not None:
                    answer_also(also, workdir)
    for on, folder in ((ground, out), *([] if also is None else [(also, out / also.data.name)])):
        there = [n for n in names if any(folder.glob(f"{n}.seed*.jsonl"))]
        print(table(on, folder, score(on, folder, there)), end="\n\n")


if __name__ == "__main__":
    main()
