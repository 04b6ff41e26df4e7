"""The server as a process, and a client of it, for benchmarks."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.process import ENVIRONMENT

ROOT = Path(__file__).parents[1]
RADIOGRAPHS = ROOT / "data" / "radiographs"


class Served:
    """The command, and what it answers."""

    def __init__(self, checkpoint: Path, slots: int, name: str, *flags: str) -> None:
        command = [sys.executable, "-m", "cxrjax.serve", f"--checkpoint={checkpoint}", "--port=0"]
        command += [f"--slots={slots}", "--longest_prompt=32", f"--name={name}", *flags]
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
        )
        assert self.process.stdout is not None
        found = re.search(r":(\d+)/v1", self.process.stdout.readline())
        assert found, "the server did not start"
        self.port = int(found[1])
        while not self.is_ready():
            time.sleep(0.05)
        self.seconds = time.monotonic() - self.begun

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.connect().ask("GET", "/ready")[0] == 200
        return False

    def connect(self) -> "Connection":
        return Connection(self.port)

    def metric(self, name: str) -> float:
        page = self.connect().ask("GET", "/metrics")[1].decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def processor_seconds(self) -> float:
        """Processor time that the server has used since its start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.communicate(timeout=60)


class Connection:
    """One client's, kept open."""

    def __init__(self, port: int) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        self.http.request(method, path, body)
        answer = self.http.getresponse()
        return answer.status, answer.read()
