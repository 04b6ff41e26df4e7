"""A side of a benchmark in a process of its own, spoken to in lines."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {
    # Sides run by path, where another environment has no cxrjax.
    "PYTHONPATH": str(HERE.parent),
    "JAX_PLATFORMS": "cpu",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
REPLY = "REPLY "


class Worker:
    """Starts a script of this folder, which replies once when it is ready and once to each line.

    Args:
        python: the interpreter that runs it; this one's, unless told otherwise.

    Attributes:
        ready: its first reply.
    """

    def __init__(self, script: str, *arguments: str | Path, python: str = sys.executable) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | ENVIRONMENT,
        )
        self.ready = self._reply()

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._reply()

    def close(self) -> None:
        self._process.communicate()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(REPLY):
                return json.loads(line.removeprefix(REPLY))
        raise SystemExit(f"{self._process.args}: ended with code {self._process.wait()}")


def reply(content: dict[str, Any]) -> None:
    """Sends a side's reply to the runner."""
    sys.stdout.write(REPLY + json.dumps(content) + "\n")
    sys.stdout.flush()


def processor() -> tuple[str, str]:
    """Name of the processor, and the widest of its instruction sets that products use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    fields = dict(line.split("\t: ", 1) for line in map(str.rstrip, lines) if "\t: " in line)
    fields = {name.strip(): value for name, value in fields.items()}
    flags = fields.get("flags", "").split()
    sets = ("amx_bf16", "avx512f", "avx2", "avx")
    widest = next((name for name in sets if name in flags), "unknown")
    return fields.get("model name", platform.processor() or "unknown"), widest.upper()
