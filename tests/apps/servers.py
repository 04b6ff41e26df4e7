"""A server under test as a process of its own, which can be killed and started again."""

import contextlib
import http.client
import http.server
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cxrjax.records import QARecord, write_records

ROOT = Path(__file__).parents[2]


def run_as_command(name: str, *words: str) -> int:
    """The exit code of `python -m cxrjax.NAME` with these words, run in this process."""
    before = sys.argv
    sys.argv = [name, *words]
    try:
        runpy.run_module(f"cxrjax.{name}", run_name="__main__")
    except SystemExit as end:
        return end.code
    finally:
        sys.argv = before
    raise AssertionError("a command ends by SystemExit")


class Server:
    """Python with these words; serves when it has printed a line with `until`.

    Attributes:
        printed: until then; with its own address, whose port a second start has again.
        said: on stderr.
    """

    def __init__(
        self, folder: Path, *words: str, until: str = "Ctrl-C stops", cwd=ROOT, **environment
    ):
        self.words, self.until, self.environment = words, until, environment
        self._errors, self.port, self._cwd = folder / "stderr", 0, cwd
        self.start()

    def start(self) -> None:
        words = [word.replace("--port=0", f"--port={self.port}") for word in self.words]
        environment = {**os.environ, **self.environment}
        command, pipe = [sys.executable, *words], subprocess.PIPE
        # A process that ignores Ctrl-C, as a shell's jobs in the background, hands that on.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with open(self._errors, "a") as errors:
                self.process = subprocess.Popen(
                    command, stdout=pipe, stderr=errors, text=True, cwd=self._cwd, env=environment
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
        self.process.communicate(timeout=300)  # its last words need a reader
        return self.process.returncode

    def ask(self, method: str, path: str, body: str | bytes | None = None, **headers: str):
        """(status, headers, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()


class Review(Server):
    """`review --serve` of records beside their images, read by anna and bao.

    Attributes:
        flags: those of the records, the sample (all of them) and the results.
        links, tokens: by reader.
    """

    def __init__(self, root: Path, records: Sequence[QARecord], *words: str):
        self.out = root / "out"
        write_records(root / "records.jsonl", records)
        self.flags = [f"--records={root / 'records.jsonl'}", f"--sample={len(records)}"]
        self.flags += [f"--image_root={root}", f"--out={self.out}"]
        command = ["-m", "cxrjax.review", "--serve", "--reader=anna", "--reader=bao", "--port=0"]
        super().__init__(root, *command, *self.flags, *words)

    def start(self) -> None:
        super().start()
        found = re.findall(r"^(\w+): (http://127\.0\.0\.1:\d+/(\S+)/)$", self.printed, re.M)
        self.links = {name: link for name, link, _ in found}
        self.tokens = {name: token for name, _, token in found}
        assert set(self.links) == {"anna", "bao"}, self.printed

    def below(self, reader: str, place: str, body: str | bytes | None = None, **headers: str):
        """(status, text) of a GET, or of a POST with the body, below the reader's link."""
        method = "GET" if body is None else "POST"
        status, _, text = self.ask(method, f"/{self.tokens[reader]}/{place}", body, **headers)
        return status, text.decode()

    def rate(self, reader: str, question_id: str, field: str, value: str):
        body = json.dumps({"question_id": question_id, "field": field, "value": value})
        return self.below(reader, "ratings", body)

    def ratings(self, reader: str) -> dict:
        status, text = self.below(reader, "ratings")
        assert status == 200
        return json.loads(text)["ratings"]


@contextlib.contextmanager
def replies(answer: Callable[[http.server.BaseHTTPRequestHandler], tuple[int, bytes]]):
    """The port of a server here that answers GET and POST by status and body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, body = answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - as http.server names it

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def page_of_others() -> Iterator[list[str]]:
    """The addresses of a page of another origin: of another port, and of another name too."""
    with replies(lambda asked: (200, b"<title>evil</title>")) as port:
        yield [f"http://{host}:{port}/" for host in ("127.0.0.1", "localhost")]
