"""Reinforcement learning beside supervised training continued for as long.

    python -m bench.rewards [--on=lesions] [--steps=60] [--seeds=3] [--set=KEY=VALUE ...]

On lesions, after `python -m bench.objectives`, from whose runs without a box loss both go on,
seed by seed, on the same questions. On lungs, after `make demo`, from data/real_base itself, which
has learned where they are from the same radiographs for so long that truth teaches it no more.

`rewards` is configs/vindr_rl.py:demo for `--steps` steps; `continued` is configs/vindr_lora.py's
`:demo`, its rate warmed up and let down anew, for as many of its cheaper steps as take the same
time, by the least seconds a step that the logs tell. What was trained is kept in runs/rewards (of
lungs in runs/rewards_lungs); `--set` changes `rewards`, `--out` keeps such a trial apart. Prints
strict figures on held-out patients, means over seeds, and differences from `continued` with
intervals over other patients and other seeds.
"""

import argparse
import shutil
from pathlib import Path

from bench import objectives

GROUNDS = {name: objectives.GROUNDS[name] for name in ("lesions", "lungs")}
_BASE_ANSWERS = Path("runs/demo/lungs/base.jsonl")


def main() -> None:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--on", choices=GROUNDS, default="lesions")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    supervised = GROUNDS[flags.on]
    rewarded = supervised._replace(config="configs/vindr_rl.py:demo")
    on_lungs = flags.on == "lungs"
    out = flags.out or Path("runs/rewards_lungs" if on_lungs else "runs/rewards")
    starts = objectives.GROUNDS["lesions"].folder(400)
    timed = sorted(starts.glob("lambda_0.seed*.log"))
    if on_lungs:
        objectives.answer(supervised, out / "timing", ("training.steps=40",))
        timed = [out / "timing.log"]
    for seed in range(flags.seeds):
        start = None if on_lungs else starts / f"lambda_0.seed{seed}"
        settings = (f"model.start_from={start}", f"training.seed={seed}")
        workdir = out / f"rewards.seed{seed}"
        own = (*settings, f"training.steps={flags.steps}", *flags.set)
        objectives.answer(rewarded, workdir, own)
        log = workdir.with_name(workdir.name + ".log")
        longer = objectives.step_seconds([log]) / objectives.step_seconds(timed)
        steps = f"training.steps={round(flags.steps * longer)}"
        objectives.answer(supervised, out / f"continued.seed{seed}", (*settings, steps))
        before = _BASE_ANSWERS if start is None else objectives.answers_of(start)
        shutil.copy(before, out / f"start.seed{seed}.jsonl")
    found = objectives.score(supervised, out, ("continued", "rewards", "start"))
    print(objectives.table(supervised, out, found))


if __name__ == "__main__":
    main()
