"""Training, generation and rollouts on one accelerator beside transformers and PEFT.

    python -m bench.accelerator [--minutes=8] [--shape=medgemma_4b | thin | tiny]
        [--sides "theirs (eager)" ours "theirs (liger)" "theirs (compiled)"]
        [--cases="train, 4 x 1|generate"]
        [--peak_flops=989e12] [--traces=FOLDER] [--out=FILE]

Prints one JSON object, the last line of the output; `--out` has what is known so far after every
case, should the machine not live to the end. Needs jax, flax, optax and jaxtyping (safetensors
comes with transformers), and torch, transformers and peft for their sides, which are left out where
those are not installed. The shape is MedGemma 4B's with random weights in bfloat16, or a tiny one
where there is no accelerator, which shows that the benchmark runs and nothing else.

Each side has the device for itself, in a process of its own, one after the other, and a part of the
time that is left, ours three times the others'. Ours, with cuDNN's attention as 'auto' has it on
Hopper, compiles all of its steps in threads first. `--cases` takes cases with one of these parts in
their names, so that a second call comes to what the first did not reach. A case is run once for
compilation, then up to five times; `seconds` is the median, `first_seconds` the first. What no time
was left for, or no memory, says so under `left_out`, a side that ended early under `stopped`. With
`--traces` kept, compiled programs are too, and another call comes to measuring sooner. Ours shares
the vision tower between the questions of an image (`tower`) or its tokens too (`image`; of Gemma 3
the same result); theirs takes a row a question. `mfu` counts what a model needs that does each
side's work (theirs: that of separate examples), by the formulas of cxrjax/models/flops.py, in the
peak of the device's maker. `peak_gb`: the most held up to then.
"""

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.accelerator_cases import SIZES, peak_flops
from bench.process import HERE, REPLY


class Side(NamedTuple):
    """A script, what it is told to do, and its part of the time."""

    script: str
    variant: str
    part: int = 1


# In this order: what the others are compared with is there first, and takes least.
SIDES = {
    "theirs (eager)": Side("accelerator_theirs.py", "eager"),
    "ours": Side("accelerator_ours.py", "cudnn", 3),
    "theirs (liger)": Side("accelerator_theirs.py", "liger"),
    "theirs (compiled)": Side("accelerator_theirs.py", "compiled"),
}
REFERENCE = "theirs (eager)"
_THEIR_PACKAGES = ("torch", "transformers", "peft")
# A side stops by itself at its deadline; what runs then may need so long to end.
_GRACE = 40.0
_ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


def run_side(
    name: str,
    shape: str,
    seconds: float,
    traces: Path,
    cases: str,
    heard: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Runs a side; returns facts of its start and its cases, each of which `heard` gets too."""
    script, variant, _ = SIDES[name]
    packages = (*_THEIR_PACKAGES, *(("liger_kernel",) if variant == "liger" else ()))
    lacking = [package for package in packages if not importlib.util.find_spec(package)]
    if script == "accelerator_theirs.py" and lacking:
        return {"left_out": f"not installed: {', '.join(lacking)}", "cases": []}
    deadline = time.time() + seconds
    root = str(HERE.parent)
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    error_file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), shape, variant, str(deadline), str(traces), cases],
        stdout=subprocess.PIPE,
        stderr=error_file,
        text=True,
        env={
            # The other side of ours finds the products tuned; a second call everything.
            "JAX_COMPILATION_CACHE_DIR": str(traces.parent / "compiled"),
            **os.environ,
            **_ENVIRONMENT,
            "PYTHONPATH": paths,
        },
        start_new_session=True,  # its compilers end with it
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    replies: list[dict[str, Any]] = []
    ended = False
    while not ended:
        try:
            line = lines.get(timeout=max(0.1, deadline + _GRACE - time.time()))
        except queue.Empty:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            break
        if line is not None and line.startswith(REPLY):
            replies.append(json.loads(line.removeprefix(REPLY)))
            print(f"{name}: {_shortened(replies[-1])}", file=sys.stderr, flush=True)
            heard({**replies[0], "cases": replies[1:]})
        ended = line is None
    code = process.wait()
    found: dict[str, Any] = {**(replies[0] if replies else {}), "cases": replies[1:]}
    if code or not ended:
        error_file.seek(0)
        why = "no time left" if not ended else f"ended with code {code}"
        found["stopped"] = f"{why}: {error_file.read()[-2000:]}"
        print(f"{name}: {found['stopped']}", file=sys.stderr, flush=True)
    return found


def _shortened(reply: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in reply.items() if name != "profile"})


def compare(sides: dict[str, dict[str, Any]], peak: float | None) -> None:
    """Puts `mfu` and `times_theirs` (eager) beside each case's seconds."""
    needed = {
        case["case"]: case["flops_apart"]
        for side in sides.values()
        for case in side["cases"]
        if "flops_apart" in case
    }
    reference = {
        case["case"]: case["seconds"]
        for case in sides.get(REFERENCE, {"cases": []})["cases"]
        if "seconds" in case
    }
    for side in sides.values():
        for case in side["cases"]:
            if "seconds" not in case:
                continue
            flops = case.get("flops", needed.get(case["case"]))
            if peak and flops:
                case["mfu"] = flops / case["seconds"] / peak
            if case["case"] in reference:
                case["times_theirs"] = reference[case["case"]] / case["seconds"]
            if "tokens" in case:
                case["tokens_per_second"] = case["tokens"] / case["seconds"]


def has_accelerator() -> bool:
    """Returns whether JAX or the driver finds one; if only the driver does, its side reports so.

    JAX is queried in another process: a process that queries it holds the device.
    """
    command = "import jax; print(jax.default_backend())"
    said = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    known = said.stdout.split()[-1:] not in ([], ["cpu"])
    return known or (os.environ.get("JAX_PLATFORMS") != "cpu" and Path("/dev/nvidiactl").exists())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--shape", choices=SIZES)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE")
    parser.add_argument("--cases", default="", help="parts of their names, apart by |")
    parser.add_argument("--peak_flops", type=float, help="of the device, in bfloat16")
    parser.add_argument("--traces", type=Path, help="keeps traces and compiled programs")
    parser.add_argument("--out", type=Path, help="has the JSON so far, written after each case")
    flags = parser.parse_args()
    started = time.time()
    end = started + 60 * flags.minutes - _GRACE
    shape = flags.shape or ("medgemma_4b" if has_accelerator() else "tiny")
    sides: dict[str, dict[str, Any]] = {}

    def result() -> str:
        device = next((side["device"] for side in sides.values() if "device" in side), "unknown")
        peak = flags.peak_flops or peak_flops(device)
        compare(sides, peak)
        counts = {side["parameters"] for side in sides.values() if "parameters" in side}
        told = {
            "device": device,
            "shape": shape,
            "same_parameters": len(counts) == 1,
            "peak_flops": peak,
            "seconds": time.time() - started,
            "sides": sides,
        }
        return json.dumps(told)

    def heard(name: str, said: dict[str, Any]) -> None:
        sides[name] = said
        if flags.out:
            flags.out.write_text(result())

    with tempfile.TemporaryDirectory() as folder:
        traces = flags.traces or Path(folder)
        for number, name in enumerate(flags.sides):
            parts = [SIDES[later].part for later in flags.sides[number:]]
            seconds = max(0.0, end - time.time()) * parts[0] / sum(parts)
            place = (traces / name.replace(" ", "_")).absolute()
            listen = functools.partial(heard, name)
            heard(name, run_side(name, shape, seconds, place, flags.cases, listen))
    print(result())


if __name__ == "__main__":
    main()
