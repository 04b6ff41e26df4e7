"""Comparison of training objectives for the demo's model, at equal steps.

    python -m bench.objectives [--on=grafts] [--steps=400] [--seeds=3] [--only=NAME ...]

On simulated lesions, trains on the questions of `make demo` and predicts for its held-out patients:
a row is a variant of configs/vindr_lora.py:demo. On phantoms, after

    python -m cxrjax.build --dataset=phantom --seed=11 --images=3000 --validation_images=300 \
        --long_side=144 --conspicuity=1.6 --image_format=jpg --out=runs/phantoms

it is the same variant of configs/vindr_lora.py:phantom. `hard`, the first, has single bins as
targets and the paper's box loss as fixed; the others change what their row says. Each is trained
once a seed and stored in runs/objectives/ by data and steps, so that an interrupted run resumes and
more seeds add to fewer. Prints strict figures, means over seeds, and the difference from `hard`
with its interval over other patients and other seeds (`score`'s spread.json).
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
    "recall@0.3": "detection/recall@0.3",
    "mean IoU": "localization/mean_iou",
    "balanced accuracy": "vqa/balanced_accuracy",
    "boxes, normal image": "detection/boxes_per_normal_image",
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
        return Path("runs/objectives") / f"{self.config.split(':')[1]}_{steps}"


GROUNDS = {
    "grafts": Ground(
        "configs/vindr_lora.py:demo", Path("runs/demo/data"), asked=("--source=grafts",)
    ),
    # The variants below say what they change of the demo's objective.
    "phantoms": Ground(
        "configs/vindr_lora.py:phantom",
        Path("runs/phantoms"),
        (
            *("data.train=runs/phantoms/records/train.jsonl", "training.epochs=None"),
            *("training.lambda_box=0.0", "training.coordinate_width=2.0"),
            "decoding.boxes=median",
        ),
    ),
}
_BOX_LOSS = ("training.lambda_box=0.5",)
# Name -> what it changes of the demo's configuration, which has Gaussian targets and no box loss.
VARIANTS: dict[str, tuple[str, ...]] = {
    "hard": (*_BOX_LOSS, "training.coordinate_width=0.0"),
    "gaussian": _BOX_LOSS,
    "order_random": (*_BOX_LOSS, "data.augment.box_order=random"),
    "order_size": (*_BOX_LOSS, "data.augment.box_order=size"),
    "no_box_loss": (),
    "no_box_loss_hard": ("training.coordinate_width=0.0",),
    "no_box_loss_augmented": (
        *("data.augment.rotate=5.0", "data.augment.erase=0.3", "data.augment.noise=0.03"),
    ),
    "no_box_loss_weight_0.3": ("training.coordinate_weight=0.3",),
    "no_box_loss_sparse": ("data.questions_per_image=4",),
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
    parser.add_argument("--on", choices=GROUNDS, default="grafts")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--table", action="store_true", help="of what there is; train nothing")
    flags = parser.parse_args()
    ground = GROUNDS[flags.on]
    out = ground.folder(flags.steps)
    names = [n for n in VARIANTS if not flags.only or n in {"hard", *flags.only}]
    if not flags.table:
        for seed in range(flags.seeds):
            for name in names:
                settings = (f"training.seed={seed}", f"training.steps={flags.steps}")
                answer(ground, out / f"{name}.seed{seed}", (*settings, *VARIANTS[name]))
    there = [n for n in names if any(out.glob(f"{n}.seed*.jsonl"))]
    print(table(ground, out, score(ground, out, there)))


if __name__ == "__main__":
    main()
