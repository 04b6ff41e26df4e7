"""Runs a command as several processes of one program, on this machine.

    python launch/local.py --processes=2 -- python -m cxrjax.train --config=... --workdir=...
    python launch/local.py --processes=4 --devices_per_process=2 -- python -m cxrjax.evaluate ...

What a pod does with hosts, with processes: each has its own devices (simulated CPUs by default) and
they exchange arrays over Gloo. Every line they write begins with the number of its process. When
one fails, the others get a few seconds to end and are then killed; the exit code is that of the
first that failed, 128 + the signal's number where a signal ended it. Ctrl-C and SIGTERM go to all.
However this process ends, kill -9 included, it leaves none of the others behind.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

_DEVICE_COUNT = "--xla_force_host_platform_device_count"
_FORWARDED = (signal.SIGINT, signal.SIGTERM)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python launch/local.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--processes", type=int, required=True, metavar="N")
    add("--devices_per_process", type=int, default=1, metavar="K", help="simulated CPUs (1)")
    add("--platform", default="cpu", help="JAX_PLATFORMS of the processes (cpu)")
    add("--port", type=int, help="of the coordinator (default: a free one)")
    add("--grace", type=float, default=10.0, help="seconds to end in after another failed (10)")
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    flags = parser.parse_args(argv)
    if flags.command[:1] == ["--"]:
        del flags.command[0]
    if not flags.command:
        parser.error("no command; give it after --")
    if shutil.which(flags.command[0]) is None:
        parser.error(f"{flags.command[0]}: no such program")
    if flags.processes < 1 or flags.devices_per_process < 1:
        parser.error("--processes and --devices_per_process: expected 1 or more")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    flags = parse_arguments(argv)
    port = flags.port or _free_port()
    with _killed_at_the_end() as announce:

        def begin() -> None:
            announce()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)

        # None may come while there are processes and nothing yet that would forward it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        processes = [
            subprocess.Popen(
                flags.command,
                env=process_environment(flags, port, index),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Signals come through this process alone, and end the workers of each as well.
                start_new_session=True,
                preexec_fn=begin,  # no thread has been started yet
            )
            for index in range(flags.processes)
        ]
        readers = [
            threading.Thread(target=_copy_lines, args=(index, process.stdout))
            for index, process in enumerate(processes)
        ]
        for reader in readers:
            reader.start()
        for number in _FORWARDED:
            signal.signal(number, lambda received, _: _signal_all(processes, received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        code = _wait(processes, flags.grace)
    for reader in readers:
        reader.join(timeout=5)
    return code


@contextlib.contextmanager
def _killed_at_the_end() -> Iterator[Callable[[], None]]:
    """What calls the function given is killed with its whole process group after the `with`.

    Also where this process is killed within: another one, which this one's end wakes, does it. So
    nothing stays of a process either that has ended, such as its data workers.
    """
    reader, writer = os.pipe()
    killer = os.fork()
    if killer == 0:
        try:
            os.setsid()  # out of reach of Ctrl-C
            os.close(writer)
            with os.fdopen(reader) as announced:
                groups = [int(line) for line in announced]  # up to this process's end
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
        finally:
            os._exit(0)
    os.close(reader)

    def announce() -> None:
        os.write(writer, b"%d\n" % os.getpid())

    try:
        yield announce
    finally:
        os.close(writer)
        os.waitpid(killer, 0)


def process_environment(flags: argparse.Namespace, port: int, index: int) -> dict[str, str]:
    """What tells a process who it is (cxrjax/distributed/hosts.py) and which devices it has."""
    xla = [word for word in os.environ.get("XLA_FLAGS", "").split() if _DEVICE_COUNT not in word]
    return {
        **os.environ,
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(flags.processes),
        "JAX_PROCESS_ID": str(index),
        "JAX_PLATFORMS": flags.platform,
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "XLA_FLAGS": " ".join([*xla, f"{_DEVICE_COUNT}={flags.devices_per_process}"]),
        "PYTHONUNBUFFERED": "1",
        **({} if index == 0 else {"TQDM_DISABLE": "1"}),
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]], grace: float) -> int:
    """Waits until all have ended, or one failed and the grace is over; the exit code of all."""
    code, deadline = 0, float("inf")
    running = dict(enumerate(processes))
    while running and time.monotonic() < deadline:
        for index, process in list(running.items()):
            if (ended := process.poll()) is None:
                continue
            del running[index]
            if ended and not code:
                code = ended if ended > 0 else 128 - ended
                deadline = time.monotonic() + grace
                what = f"exit code {ended}" if ended > 0 else f"signal {-ended}"
                print(f"[{index}] ended with {what}", file=sys.stderr, flush=True)
        time.sleep(0.05)
    for index in running:
        print(f"[{index}] killed", file=sys.stderr, flush=True)
    return code


def _signal_all(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _copy_lines(index: int, stream: IO[bytes]) -> None:
    for line in stream:
        text = f"[{index}] {line.decode(errors='replace').rstrip()}\n"
        # Where nobody reads on (`| head`), the processes go on, and must not wait for a full pipe.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(text)
            sys.stdout.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
