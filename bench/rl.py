"""A step of reinforcement learning beside TRL's GRPOTrainer, on this machine, in one run.

    make bench_rl
    python -m bench.rl [--images=2] [--questions=4] [--rounds=3] [--cores=N]
        [--trl_python=PATH]

Both sides get the same PaliGemma of random weights (6 M parameters, 256 image tokens), adapters,
images, questions and reward (the IoU of the boxes that an answer writes), groups of 8, 32 tokens an
answer, one update on all answers together, in float32, with a divergence from the start. Before
anything is timed they must agree on log-probabilities and on the rewards of made-up answers.

Each works in a process of its own; steps alternate, so that a busy moment of the machine hits all,
after one that is not counted (compilation). A figure is the median over the rounds, of seconds on
the wall; ratios are given in processor seconds too, which a machine that others use bends less.
Activations are kept for the backward pass, or computed again (`recomputed`), as is TRL's default.
TRL draws by transformers' `generate`: its batching of requests takes no images, and vLLM is for
GPUs. Ours shares the vision tower between the questions of an image (`tower`, the same
probabilities as theirs) or its tokens too (`image`, a variant where attention is not causal).

--trl_python: the interpreter that has TRL, where this one has not.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from statistics import median
from typing import Any

import numpy as np

from bench.process import ENVIRONMENT, HERE, Worker
from bench.rl_cases import GROUP

THEIRS = "TRL (kept)"
SIDES = {
    THEIRS: ("rl_theirs.py", "kept"),
    "TRL (recomputed)": ("rl_theirs.py", "recomputed"),
    "ours (tower)": ("rl_ours.py", "tower"),
    "ours (tower, recomputed)": ("rl_ours.py", "tower_recomputed"),
    "ours (image)": ("rl_ours.py", "image"),
}
PHASES = {
    "draw": "answers drawn",
    "experience": "answers drawn, rewarded and told their reference",
    "update": "answers learned from",
    "step": "answers in whole steps",
}
# Of log-probabilities and of rewards, at most: float32, and the middles of bins.
APART = {"logprobs": 1e-4, "rewards": 0.01}


def check_equal(sides: dict[str, Worker]) -> None:
    """Refuses to compare what is not the same; `image` has other probabilities by design."""
    theirs = sides[THEIRS].ready
    for name, side in sides.items():
        for what, limit in APART.items():
            away = float(np.max(np.abs(np.subtract(side.ready[what], theirs[what]))))
            print(f"  {name}: {what} at most {away:.1e} from TRL's", flush=True)
            if away > limit and (what, name) != ("logprobs", "ours (image)"):
                raise SystemExit(f"{name}: {what} differ from TRL's by more than {limit}")


def table(found: dict[str, list[dict[str, Any]]], loaded: dict[str, float], answers: int) -> str:
    """Markdown, a row a figure and side."""
    lines = ["| figure | side | value | ratio to TRL (kept) | in processor time |"]
    lines.append("|---|---|---|---|---|")
    for phase, told in PHASES.items():
        wall, processor = (
            {name: median(one[phase][clock] for one in steps) for name, steps in found.items()}
            for clock in (0, 1)
        )
        lines += [
            f"| {told} a second | {name} | {answers / wall[name]:.2f} | "
            f"{wall[THEIRS] / wall[name]:.2f} | {processor[THEIRS] / processor[name]:.2f} |"
            for name in found
        ]
    peaks = {name: max(one["peak_gb"] for one in steps) for name, steps in found.items()}
    lines += [
        f"| peak of a step, GB | {name} | {peaks[name]:.2f} | {peaks[name] / peaks[THEIRS]:.2f} | |"
        for name in found
    ]
    above = {name: peaks[name] - loaded[name] for name in found}
    lines += [
        f"| the same beyond what was held once loaded, GB | {name} | {above[name]:.2f} | "
        f"{above[name] / above[THEIRS]:.2f} | |"
        for name in found
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, help="that all sides may use; all of the machine's")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE")
    parser.add_argument("--trl_python", default=sys.executable)
    flags = parser.parse_args()
    if flags.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: flags.cores])
    # A thread that waits for the others leaves the core to them.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [flags.trl_python, str(HERE / "rl_theirs.py"), "make", directory],
            check=True,
            capture_output=True,
            env=os.environ | ENVIRONMENT,
        )
        sides = {}
        for name in dict.fromkeys([THEIRS, *flags.only]):
            script, variant = SIDES[name]
            command = ["train", directory] if script == "rl_theirs.py" else [directory]
            python = flags.trl_python if script == "rl_theirs.py" else sys.executable
            asked = (variant, str(flags.images), str(flags.questions))
            sides[name] = Worker(script, *command, *asked, python=python)
        check_equal(sides)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for round_number in range(flags.rounds + 1):
            for name, side in sides.items():
                told = side.ask("step")
                if round_number:
                    found[name].append(told)
                print(f"  {name}: {told['step'][0]:.1f} s, reward {told['reward']:.4f}", flush=True)
        for side in sides.values():
            side.close()
    loaded = {name: side.ready["loaded_gb"] for name, side in sides.items()}
    print(table(found, loaded, flags.images * flags.questions * GROUP))


if __name__ == "__main__":
    main()
