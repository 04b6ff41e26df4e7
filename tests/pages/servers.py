"""A server under test as a process of its own, which can be killed and started again."""

import contextlib
import http.client
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Server:
    """Python with these words; serves when it has printed a line with `until`.

    Attributes:
        printed: until then; with its own address, whose port a second start has again.
        said: on stderr.
    """

    def __init__(self, folder: Path, *words: str, until: str = "Ctrl-C stops", **environment):
        self.words, self.until, self.environment = words, until, environment
        self._errors, self.port = folder / "stderr", 0
        self.start()

    def start(self) -> None:
        words = [word.replace("--port=0", f"--port={self.port}") for word in self.words]
        # A process that ignores Ctrl-C, as a shell's jobs in the background, hands that on.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with open(self._errors, "a") as errors:
                self.process = subprocess.Popen(
                    [sys.executable, *words],
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment},
                )
        finally:
            signal.signal(signal.SIGINT, before)
        self.printed = ""
        for line in self.process.stdout:
            self.printed += line
            if self.until in line:
                break
        self.address = re.search(r"http://127\.0\.0\.1:\d+/\S*", self.printed)[0]
        self.port = int(self.address.split("/")[2].partition(":")[2])

    @property
    def said(self) -> str:
        return self._errors.read_text()

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.runs:
            self.process.send_signal(how)
        self.process.communicate(timeout=60)  # its last words need a reader
        return self.process.returncode

    def ask(self, method: str, path: str, body: str | bytes | None = None, **headers: str):
        """(status, headers, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()


@contextlib.contextmanager
def page_of_others() -> Iterator[list[str]]:
    """The addresses of a page of another origin: of another port, and of another name too."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>evil</title>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield [f"http://{host}:{server.server_port}/" for host in ("127.0.0.1", "localhost")]
    finally:
        server.shutdown()
        server.server_close()
