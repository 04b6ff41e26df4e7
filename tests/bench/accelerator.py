"""Training, generation and rollouts on one accelerator beside transformers and PEFT.

    python -m tests.bench.accelerator [--minutes=8] [--shape=medgemma_4b | tiny]
        [--sides "ours" "ours (cudnn)" "theirs (eager)" "theirs (compiled)"]
        [--peak_flops=989e12] [--traces=FOLDER]

Prints one JSON object, the last line of the output, and needs jax, flax, optax and jaxtyping, and
pydantic_core for reading JSON; safetensors comes with transformers; torch, transformers and peft
for their sides, which are left out where those are not installed. The shape is MedGemma 4B's with
random weights in bfloat16, or a tiny one where there is no accelerator, which shows that the
benchmark runs and nothing else.

Each side has the device for itself, in a process of its own, one after the other, and an equal part
of the time that is left. A case is run once for compilation, then up to five times; `seconds` is
the median, `first_seconds` the first. What no time was left for, or no memory, says so under
`left_out`. Ours shares the vision tower between the questions of an image (`tower`) or its tokens
too (`image`; of Gemma 3 the same result); theirs takes a row a question. `mfu` counts what a model
needs that does each side's work (theirs: that of separate examples), by the formulas of
cxrjax/models/flops.py, in the peak of the device's maker. `peak_gb`: the most held up to then.
"""

import argparse
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.accelerator_cases import SIZES, peak_flops
from tests.bench.process import HERE, REPLY

SIDES = {
    "ours": ("accelerator_ours.py", "dense"),
    "theirs (eager)": ("accelerator_theirs.py", "eager"),
    "ours (cudnn)": ("accelerator_ours.py", "cudnn"),
    "theirs (compiled)": ("accelerator_theirs.py", "compiled"),
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


def run_side(name: str, shape: str, seconds: float, traces: Path) -> dict[str, Any]:
    """What a side said: facts of its start, and its cases."""
    script, variant = SIDES[name]
    lacking = [package for package in _THEIR_PACKAGES if not importlib.util.find_spec(package)]
    if script == "accelerator_theirs.py" and lacking:
        return {"left_out": f"not installed: {', '.join(lacking)}", "cases": []}
    deadline = time.time() + seconds
    root = str(HERE.parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    error_file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), shape, variant, str(deadline), str(traces)],
        stdout=subprocess.PIPE,
        stderr=error_file,
        text=True,
        env=os.environ | _ENVIRONMENT | {"PYTHONPATH": paths},
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
            process.kill()
            break
        if line is not None and line.startswith(REPLY):
            replies.append(json.loads(line.removeprefix(REPLY)))
            print(f"{name}: {_shortened(replies[-1])}", file=sys.stderr, flush=True)
        ended = line is None
    code = process.wait()
    found: dict[str, Any] = {**(replies[0] if replies else {}), "cases": replies[1:]}
    if code or not ended:
        error_file.seek(0)
        why = "no time left" if not ended else f"ended with code {code}"
        found["stopped"] = f"{why}: {error_file.read()[-500:]}"
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
    """Asked of another process: one that has asked holds the device."""
    command = "import jax; print(jax.default_backend())"
    found = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    return found.stdout.split()[-1] != "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--shape", choices=SIZES)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE")
    parser.add_argument("--peak_flops", type=float, help="of the device, in bfloat16")
    parser.add_argument("--traces", type=Path, help="keeps the traces of training steps")
    flags = parser.parse_args()
    started = time.time()
    end = started + 60 * flags.minutes - _GRACE
    shape = flags.shape or ("medgemma_4b" if has_accelerator() else "tiny")
    sides: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        traces = flags.traces or Path(folder)
        for number, name in enumerate(flags.sides):
            seconds = max(0.0, end - time.time()) / (len(flags.sides) - number)
            sides[name] = run_side(name, shape, seconds, traces / name.replace(" ", "_"))
    device = next((side["device"] for side in sides.values() if "device" in side), "unknown")
    peak = flags.peak_flops or peak_flops(device)
    compare(sides, peak)
    counts = {side["parameters"] for side in sides.values() if "parameters" in side}
    result = {
        "device": device,
        "shape": shape,
        "same_parameters": len(counts) == 1,
        "peak_flops": peak,
        "seconds": time.time() - started,
        "sides": sides,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
