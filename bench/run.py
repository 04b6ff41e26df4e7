"""Training and generation beside transformers + PEFT, on this machine, in one run.

    make bench
    python -m bench.run [--shapes paligemma gemma3] [--rounds 5] [--compile]

Both sides get the same random weights, examples, LoRA targets, allocator settings and threads, in
float32. Each works in a process of its own; requests alternate, so that a busy moment of the
machine hits both. A figure is the median over the rounds after one round that is not counted
(compilation). Theirs is eager; `--compile` adds torch.compile.

Where questions share an image, theirs takes a row a question; ours takes a row an image:
`image` shares tower and image tokens (for Gemma 3 the same result, for PaliGemma a variant),
`tower` shares the vision tower alone (the same result for both).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.cases import CASES, Case
from bench.process import ENVIRONMENT, HERE, Worker, processor
from bench.worker import request

ROOT = HERE.parent


def compare(sides: dict[str, Worker], case: Case, rounds: int) -> dict[str, float]:
    """Median seconds of each side; says where their results differ."""
    first = {name: worker.ask(request(case)) for name, worker in sides.items()}
    check_equal(first, case)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, worker in sides.items():
            seconds[name].append(worker.ask(request(case))["seconds"])
    return {name: median(values) for name, values in seconds.items()}


def check_equal(results: dict[str, dict[str, Any]], case: Case) -> None:
    """Prints how far the sides' first results are apart; `theirs` is the reference."""
    theirs = results["theirs"]
    for name, result in results.items():
        if name == "theirs":
            continue
        if case.kind == "train":
            print(f"    {name}: loss {result['loss']:.5f}, theirs {theirs['loss']:.5f}")
        else:
            pairs = list(zip(result["ids"], theirs["ids"], strict=True))
            same = sum(a == b for a, b in pairs)
            print(f"    {name}: {same} of {len(pairs)} answers equal to theirs")


def peak_memory(script: str, shape: str, checkpoint: Path, variant: str) -> float:
    """GB that a fresh process holds at most over three training steps of four questions."""
    worker = Worker(script, shape, checkpoint, variant)
    case = next(case for case in CASES if case.kind == "train" and case.questions == 4)
    peak = max(worker.ask(request(case))["peak_gb"] for _ in range(3))
    worker.close()
    return peak


def run_shape(shape: str, rounds: int, compiled: bool, directory: Path) -> list[str]:
    """Lines of the table for one shape."""
    checkpoint = directory / shape
    made = subprocess.run(
        [sys.executable, str(HERE / "theirs.py"), "make", shape, str(checkpoint)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | ENVIRONMENT,
    )
    parameters = int(made.stdout.split()[-1])
    print(f"{shape}: {parameters / 1e6:.1f} M parameters", flush=True)
    variants = {
        "ours (tower)": ("ours.py", "tower"),
        "ours (image)": ("ours.py", "image"),
        "theirs": ("theirs.py", "eager"),
    }
    if compiled:
        variants["theirs (compiled)"] = ("theirs.py", "compiled")
    sides = {
        name: Worker(script, shape, checkpoint, variant)
        for name, (script, variant) in variants.items()
    }
    for name, side in sides.items():
        print(f"  {name}: {side.ready['instructions']}", flush=True)
    lines = []
    for case in CASES:
        print(f"  {case}", flush=True)
        asked = {
            name: side
            for name, side in sides.items()
            # With one question an image the two ways of sharing do the same work.
            if not (case.questions == 1 and name == "ours (image)")
        }
        found = compare(asked, case, rounds)
        reference = found["theirs"]
        for name, value in found.items():
            ratio, bound = reference / value, ""
            if name == "ours (image)":
                bound = f"{case.bound():.2f}"
            lines.append(
                f"| {shape} | {case} | {name} | {1000 * value:,.0f} | {ratio:.2f} | {bound} |"
            )
            print("    " + lines[-1], flush=True)
    for name, side in sides.items():
        value, reference = side.ready["load_seconds"], sides["theirs"].ready["load_seconds"]
        lines.append(
            f"| {shape} | import | {name} | {1000 * value:,.0f} | {reference / value:.2f} | |"
        )
        side.close()
    peaks = {
        name: peak_memory(script, shape, checkpoint, variant)
        for name, (script, variant) in variants.items()
    }
    for name, peak in peaks.items():
        ratio = peak / peaks["theirs"]
        lines.append(
            f"| {shape} | peak memory, 4 questions | {name} | {peak:.2f} GB | {ratio:.2f} | |"
        )
    return lines


def start_to_first_step(directory: Path) -> float:
    """Seconds from the start of `python -m cxrjax.train` on the demo's recipe to its first step.

    With compiled programs kept from a start before.
    """
    data, environment = directory / "data", os.environ | ENVIRONMENT
    environment["JAX_COMPILATION_CACHE_DIR"] = str(directory / "compiled")
    build = ["cxrjax.build", "--dataset=phantom", "--seed=0", "--images=32", "--long_side=144"]
    build += ["--validation_images=1", "--image_format=jpg", f"--out={data}"]
    subprocess.run(
        [sys.executable, "-m", *build], check=True, cwd=ROOT, env=environment, capture_output=True
    )
    train = [
        "cxrjax.train",
        "--config=configs/vindr_lora.py:phantom",
        "--config.training.log_every=1",
    ]
    train += [
        f"--config.data.{name}={data}/records/{name}.jsonl" for name in ("train", "validation")
    ]
    for attempt in ("cold", "warm"):
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", *train, f"--workdir={directory / attempt}"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 1/"):
                seconds = time.perf_counter() - start
                break
        else:
            raise SystemExit(f"training ended with code {process.wait()} before its first step")
        process.kill()
        process.wait()
        print(f"start to first step, {attempt}: {seconds:.1f} s", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["paligemma", "gemma3"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also time torch.compile")
    flags = parser.parse_args()
    name, widest = processor()
    print(f"{name}, {os.cpu_count()} cores, {widest}", flush=True)
    lines = []
    with tempfile.TemporaryDirectory() as directory:
        for shape in flags.shapes:
            lines += run_shape(shape, flags.rounds, flags.compile, Path(directory))
        seconds = start_to_first_step(Path(directory))
    lines.append(f"| tiny | start to first step, warm | ours | {1000 * seconds:,.0f} | | |")
    print("\n| shape | case | side | ms | theirs / this | bound |\n|---|---|---|---|---|---|")
    print("\n".join(lines))
    print("\nFor memory the last figure is this / theirs. The bound counts decoder tokens.")


if __name__ == "__main__":
    main()
