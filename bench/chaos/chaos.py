"""Kills and disturbs small runs, and compares their results with those of an undisturbed run.

    make chaos
    python -m bench.chaos.chaos --ledger=FILE [--seed=0] [--kills=30] [--only=TEXT]

A case ends with the same command started again, whose parameters, optimiser, data position,
figures, examples read and kept checkpoints must be those of the undisturbed run, bit for bit. What
was done and how each process ended goes into the ledger, a line of JSON each; it is printed as a
table, and the exit code is 1 if a case went wrong. Where mounting needs root that one is not, full
and read-only disks are skipped by name.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
STEPS = 12
_SETTINGS = {
    "training.steps": STEPS,
    "training.checkpoint_every": 2,
    "training.eval_every": 4,
    "data.workers": 1,
}
_RATES = ("_per_second", "_seconds", "_gb", "/seconds_left", "/mfu")
_KILLS_IN_A_RUN = 3
# What it is about to be killed in -> the line that says so, and for how long that lasts (seconds).
_MOMENTS = {
    "start": ("", 6.0),
    "compilation": ("compiling for", 3.0),
    "steps": ("is waiting for the step", 0.5),
    "evaluation": ("is evaluating", 1.5),
    "save": ("is saving a checkpoint", 0.4),
}
_LIMIT = 240.0  # seconds that anything may take


class WrongEndError(Exception):
    """A run did not end as it should."""


class CannotError(Exception):
    """This machine cannot do that."""


class Run:
    """A process of training, and what it has said so far."""

    def __init__(self, command, environment):
        self.begun = time.monotonic()
        self.lines = []
        self._new = threading.Condition()
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            with self._new:
                self.lines.append(line.rstrip("\n"))
                self._new.notify()

    def wait_for(self, text, skip=0):
        """Returns once it has said this in a line, and `skip` times before."""

        def said():
            return sum(text in line for line in self.lines) > skip

        with self._new:
            for _ in range(int(_LIMIT)):
                if self._new.wait_for(said, 1.0):
                    return
                if self.process.poll() is not None and not said():
                    raise WrongEndError(
                        f"ended with {self.process.returncode} before {text!r}", self
                    )
        raise WrongEndError(f"never said {text!r}", self)

    def send(self, number):
        self.process.send_signal(number)

    def end(self, code, *words):
        """Waits for its end; with this code, in one line, which has these words."""
        try:
            found = self.process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise WrongEndError("never ended", self) from None
        time.sleep(0.1)  # for the last line
        if found != code:
            raise WrongEndError(f"ended with {found}, expected {code}", self)
        if any("Traceback" in line for line in self.lines):
            raise WrongEndError("a traceback", self)
        if code == 2 and sum(line.startswith("error: ") for line in self.lines) != 1:
            raise WrongEndError("expected one line of error", self)
        for word in words:
            if not any(word in line for line in self.lines):
                raise WrongEndError(f"did not say {word!r}", self)
        return self

    @property
    def last(self):
        """The last line that is not of its progress."""
        said = (x for x in reversed(self.lines) if not x.startswith("step "))
        return next(said, "")[:160]


@dataclasses.dataclass
class Chaos:
    """One experiment in a folder, its undisturbed end, and the ledger."""

    folder: Path
    ledger: Path
    rng: random.Random
    expected: str = ""
    case: str = ""
    entries: list = dataclasses.field(default_factory=list)

    def start(self, workdir, *settings, compiling=False, **variables):
        words = [f"--config.{name}={value}" for name, value in _SETTINGS.items()]
        command = [sys.executable, "-u", str(ROOT / "bench/chaos/told_run.py")]
        command += [f"--config={self.folder / 'experiment.py'}", f"--workdir={workdir}", *words]
        compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(self.folder / "compiled")
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
            "JAX_COMPILATION_CACHE_DIR": "" if compiling else compiled,
            "SLOW": "none",  # batches take 0.3 s
            **variables,
        }
        return Run([*command, *settings], environment)

    def write(self, did, run=None, state="", result="ok"):
        entry = {"case": self.case, "did": did, "result": result}
        if run is not None:
            entry["exit_code"] = run.process.poll()
            entry["seconds"] = round(time.monotonic() - run.begun, 1)
            entry["said"] = run.last
        entry["state"] = state
        self.entries.append(entry)
        with open(self.ledger, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")

    def finish(self, workdir, did="started again", run=None, words=()):
        """The run to its end, which must be that of the undisturbed one."""
        run = (run or self.start(workdir)).end(0, *words)
        state = end_state(workdir)
        if self.expected and state != self.expected:
            raise WrongEndError("another end than that of the undisturbed run", run)
        self.expected = state
        self.write(did, run, state)

    def kill(self, workdir, moment, *settings):
        """Starts the run and kills it at a moment; what it leaves must be whole."""
        text, lasts = _MOMENTS[moment]
        before = last_checkpoint(workdir)
        run = self.start(workdir, *settings, compiling=moment == "compilation")
        if text:
            run.wait_for(text, 1 if moment == "steps" else 0)
        time.sleep(self.rng.uniform(0.0, lasts))
        run.send(signal.SIGKILL)
        run.end(-signal.SIGKILL)
        check_whole(workdir)
        if last_checkpoint(workdir) < before:
            raise WrongEndError(f"the checkpoint of step {before} is gone", run)
        resumed = [line for line in run.lines if line.startswith("resumed")]
        if resumed and f"of step {before:,}" not in resumed[0]:
            raise WrongEndError(f"expected it to go on from step {before}", run)
        self.write(f"kill -9 in {moment}", run)


def last_checkpoint(workdir):
    names = (path.name for path in (workdir / "checkpoints").glob("*"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def check_whole(workdir):
    from cxrjax.training.store import find_damage

    for path in (workdir / "checkpoints").glob("*"):
        damage = find_damage(path) if path.name.isdigit() else None
        if damage is not None:
            raise WrongEndError(f"a kill left a damaged checkpoint: {damage}")


def end_state(workdir):
    """SHA-256 of all that a run has come to."""
    import orbax.checkpoint as ocp

    total = hashlib.sha256()
    last = workdir.absolute() / "checkpoints" / str(STEPS)
    with ocp.StandardCheckpointer() as checkpointer:
        for item in ("parameters", "optimizer"):
            for name, value in sorted(checkpointer.restore(last / item).items()):
                array = np.asarray(value)
                total.update(f"{item} {name} {array.dtype} {array.shape}".encode())
                total.update(array.tobytes())
    for file in ("data/metadata", "base/metadata", "metrics/metrics"):
        content = json.loads((last / file).read_text())
        total.update(json.dumps({k: v for k, v in content.items() if k != "goodput"}).encode())
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    figures = [
        {k: v for k, v in json.loads(line).items() if not k.endswith(_RATES)} for line in lines
    ]
    examples = {}
    for line in (workdir / "examples/0_of_1.jsonl").read_text().splitlines():
        example = json.loads(line)
        place = (example["step"], example["row"])
        if examples.setdefault(place, line) != line:
            raise WrongEndError(f"step and row {place} were read twice, differently")
    kept = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    rest = [figures, sorted(examples.items()), kept, (workdir / "quality.json").read_text()]
    total.update(json.dumps(rest).encode())
    if (workdir / ".lock").exists():
        raise WrongEndError("the lock was left behind")
    return total.hexdigest()


def kills(number):
    """`number` kills over runs that are killed three times each and then finished."""

    def case(chaos, workdir):
        moments = [list(_MOMENTS)[i % len(_MOMENTS)] for i in range(number)]
        chaos.rng.shuffle(moments)
        for first in range(0, number, _KILLS_IN_A_RUN):
            run = workdir / str(first)
            for moment in moments[first : first + _KILLS_IN_A_RUN]:
                chaos.kill(run, moment)
            chaos.finish(run)

    return case


def told(moment, said, signals=1):
    """SIGTERM, once or twice, while the run is at something."""

    def case(chaos, workdir):
        run = chaos.start(workdir, compiling=moment == "compilation")
        run.wait_for(_MOMENTS[moment][0])
        time.sleep(0.1)
        run.send(signal.SIGTERM)
        code = 75
        if signals == 2:
            run.wait_for("SIGTERM: saving")
            run.send(signal.SIGTERM)
            code = 128 + signal.SIGTERM
        run.end(code, said)
        chaos.write(f"SIGTERM x{signals} in {moment}", run)
        chaos.finish(workdir)

    return case


@contextlib.contextmanager
def _disk(at):
    at.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(at)]
    if subprocess.run(command, capture_output=True).returncode:
        raise CannotError("mounting a file system needs root")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def full_disk(chaos, workdir):
    with _disk(workdir) as disk:
        run = chaos.start(disk / "run")
        run.wait_for("step 3 is reading data")
        with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        chaos.write("a full disk", run.end(2, "No space left on device"))
        again = chaos.start(disk / "run").end(2, "No space left on device")
        chaos.write("started on the full disk", again)
        (disk / "ballast").unlink()
        chaos.finish(disk / "run")


def read_only(chaos, workdir):
    with _disk(workdir) as disk:
        run = chaos.start(disk / "run")
        run.wait_for("step 3 is reading data")
        # A file open for writing would keep it writable: `ro` of one mount refuses new ones alone.
        subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        try:
            chaos.write("became read-only", run.end(2, "Read-only file system"))
            again = chaos.start(disk / "run").end(2, "Read-only file system")
            chaos.write("started where it is read-only", again)
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
        chaos.finish(disk / "run")


def vanished(chaos, workdir):
    run = chaos.start(workdir)
    run.wait_for("step 3 is reading data")
    workdir.rename(workdir.with_name("away"))
    chaos.write("the workdir was moved away", run.end(2, f"error: {workdir}"))
    if (workdir / "config.json").exists():
        raise WrongEndError("began a second workdir in its place", run)
    shutil.rmtree(workdir, ignore_errors=True)  # the beginning of a checkpoint
    workdir.with_name("away").rename(workdir)
    run = chaos.start(workdir)
    run.wait_for("step 7 is reading data")
    workdir.rename(workdir.with_name("removed"))  # at once, whatever is being written
    shutil.rmtree(workdir.with_name("removed"), ignore_errors=True)
    chaos.write("the workdir was removed", run.end(2, f"error: {workdir}"))
    chaos.finish(workdir)


def second_process(chaos, workdir):
    run = chaos.start(workdir)
    run.wait_for("is reading data")
    second = chaos.start(workdir)
    told = f"error: {workdir}: in use by process {run.process.pid} (told_run) on "
    chaos.write("a second process", second.end(2, told, "choose another --workdir"))
    chaos.finish(workdir, "the first went on", run)


def clock(chaos, workdir):
    days = chaos.folder / "days"
    days.write_text("0")
    run = chaos.start(workdir, CLOCK_OFF_BY=str(days))
    for step, jump in ((3, "1"), (6, "-1"), (8, "0")):
        run.wait_for(f"step {step} is reading data")
        days.write_text(jump)
    chaos.finish(workdir, "the clock jumped by +1, -2, +1 days", run, ["the clock is off by -1"])


def suspended(chaos, workdir):
    run = chaos.start(workdir, "--config.training.stall_seconds=60")
    run.wait_for("step 3 is reading data")
    run.send(signal.SIGSTOP)
    time.sleep(65)  # longer than the watchdog waits for progress
    second = chaos.start(workdir).end(2, f"in use by process {run.process.pid} ")
    chaos.write("a second process beside a suspended one", second)
    run.send(signal.SIGCONT)
    chaos.finish(workdir, "SIGSTOP, SIGCONT 65 s later", run)


def damaged(chaos, workdir):
    run = chaos.start(workdir)
    run.wait_for("step 8 is reading data")
    run.send(signal.SIGTERM)
    run.end(75)
    newest = workdir / "checkpoints" / str(last_checkpoint(workdir))
    files = [path for path in (newest / "parameters").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    chaos.write("SIGTERM, then a bit of the newest checkpoint flipped", run)
    chaos.finish(workdir, words=["is damaged and was moved to"])


def leftovers(chaos, workdir):
    chaos.kill(workdir, "save")
    (workdir / "checkpoints/99.orbax-checkpoint-tmp/parameters").mkdir(parents=True)
    for name in ("config.json.tmp", "run.json.tmp", "processes/0.tmp"):
        (workdir / name).write_text("{")
    for name in ("metrics.jsonl", "examples/0_of_1.jsonl"):
        with open(workdir / name, "a", encoding="utf-8") as file:
            file.write('{"step": 3, "tr')
    (workdir / ".lock").write_bytes(bytes(100))
    chaos.finish(workdir, "started among leftovers of a killed run")


def lengthened(chaos, workdir):
    """A finished run goes on to more steps: killed in them it ends as one left alone in them."""
    states = []
    for name in ("alone", "killed"):
        run = chaos.start(workdir / name, f"--config.training.steps={STEPS - 4}").end(0)
        chaos.write(f"finished after {STEPS - 4} steps", run)
        if name == "killed":
            chaos.kill(workdir / name, "steps")
        run = chaos.start(workdir / name).end(0)
        told = [line for line in run.lines if line.startswith("lengthened from")]
        if name == "alone" and len(told) != 1:
            raise WrongEndError(f"said {len(told)} times that it was lengthened", run)
        states.append(end_state(workdir / name))
        chaos.write(f"lengthened to {STEPS} steps ({name})", run, states[-1])
    if states[0] != states[1]:
        raise WrongEndError("another end than that of the run that was left alone", run)


def rewards(chaos, workdir):
    """Reinforcement learning, killed in its steps and in a save: it ends as one left alone."""
    settings = [
        f"--config.{setting}"
        for setting in (
            "rl.kind=grpo",
            "rl.updates=2",
            "rl.group_size=2",
            "decoding.max_answer_tokens=8",
        )
    ]
    states = []
    for name in ("alone", "killed"):
        for moment in ("steps", "save") if name == "killed" else ():
            chaos.kill(workdir / name, moment, *settings)
        run = chaos.start(workdir / name, *settings).end(0)
        states.append(end_state(workdir / name))
        chaos.write(f"learned from rewards ({name})", run, states[-1])
    if states[0] != states[1]:
        raise WrongEndError("another end than that of the run that was left alone", run)


CASES: dict[str, Callable] = {
    "SIGTERM in compilation": told("compilation", "saved step 1 and stopped"),
    "SIGTERM in evaluation": told("evaluation", "the evaluation is put off to the restart"),
    "SIGTERM in save": told("save", "and stopped"),
    "SIGTERM twice": told("compilation", "SIGTERM again: leaving at once", signals=2),
    "full disk": full_disk,
    "read-only": read_only,
    "vanished": vanished,
    "second process": second_process,
    "clock": clock,
    "suspended": suspended,
    "damaged": damaged,
    "leftovers": leftovers,
    "lengthened": lengthened,
    "rewards": rewards,
}


def begin(folder, ledger, rng):
    """A small experiment in a folder, and an empty ledger."""
    path = ROOT / "tests/distributed/conftest.py"
    spec = importlib.util.spec_from_file_location("small_experiment", path)
    small = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(small)
    small.write_experiment(folder)
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ledger.write_text("")
    return Chaos(folder, ledger, rng, case="undisturbed")


def wreak(folder, ledger, seed=0, number=30, only=""):
    """Runs the cases whose name has `only` in it, and returns the ledger's entries."""
    chaos = begin(folder, ledger, random.Random(seed))
    chaos.finish(folder / "undisturbed", "left alone")
    cases = {**CASES, **({"kills": kills(number)} if number else {})}
    for name, case in cases.items():
        if only in name:
            chaos.case = name
            try:
                case(chaos, folder / name.replace(" ", "_"))
            except CannotError as reason:
                chaos.write(str(reason), result="skipped")
            except WrongEndError as wrong:
                run = wrong.args[1] if len(wrong.args) > 1 else None
                chaos.write(wrong.args[0], run, result="WRONG")
                print("\n".join(run.lines if run else ()), file=sys.stderr)
    return chaos.entries


def table(entries):
    """The entries as lines of text."""
    return [
        f"{e['result']:8}{e['case']:24}{e['did']:52}{e.get('exit_code')!s:>5}"
        f"{e.get('seconds', ''):>7}  {e['state'][:12]}"
        for e in entries
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--only", default="", metavar="TEXT")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        entries = wreak(Path(folder), flags.ledger, flags.seed, flags.kills, flags.only)
    print("\n".join(table(entries)))
    survived = sum(e["did"].startswith("kill -9") and e["result"] == "ok" for e in entries)
    ends = [e["state"] for e in entries if e["state"]]
    wrong = sum(e["result"] == "WRONG" for e in entries)
    print(f"{survived} kills; {len(ends)} ends, {len(set(ends))} different; {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
