"""Reinforcement learning beside supervised training continued for as long.

    python -m tests.bench.rewards [--steps=60] [--seeds=3] [--set=KEY=VALUE ...]

After `python -m tests.bench.objectives`, from whose runs without a box loss both go on, seed by
seed, on the same questions: `rewards` is configs/vindr_rl.py:demo for `--steps` steps; `continued`
is configs/vindr_lora.py:demo, its rate warmed up and let down anew, for as many of its cheaper
steps as take the same time, by the least seconds a step that the logs tell. What was trained is
kept in runs/rewards; `--set` changes `rewards`, `--out` keeps such a trial apart. Prints strict
figures on held-out patients, means over seeds, and differences from `continued` with intervals
over other patients and other seeds.
"""

import argparse
import shutil
from pathlib import Path

from tests.bench import objectives

SUPERVISED = objectives.GROUNDS["grafts"]
GROUNDS = {
    "continued": SUPERVISED,
    "rewards": SUPERVISED._replace(config="configs/vindr_rl.py:demo"),
}


def main() -> None:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("runs/rewards"))
    flags = parser.parse_args()
    starts = SUPERVISED.folder(400)
    for seed in range(flags.seeds):
        start = starts / f"no_box_loss.seed{seed}"
        steps = {"rewards": flags.steps}
        for name in ("rewards", "continued"):
            own = flags.set if name == "rewards" else []
            workdir = flags.out / f"{name}.seed{seed}"
            settings = (f"training.seed={seed}", f"training.steps={steps[name]}", *own)
            objectives.answer(GROUNDS[name], workdir, (f"model.start_from={start}", *settings))
            if name == "rewards":
                log = workdir.with_name(workdir.name + ".log")
                supervised = starts.glob("no_box_loss.seed*.log")
                longer = objectives.step_seconds([log]) / objectives.step_seconds(supervised)
                steps["continued"] = round(flags.steps * longer)
        shutil.copy(objectives.answers_of(start), flags.out / f"start.seed{seed}.jsonl")
    found = objectives.score(SUPERVISED.data, flags.out, ("continued", "rewards", "start"))
    print(objectives.table(flags.out, found))


if __name__ == "__main__":
    main()
