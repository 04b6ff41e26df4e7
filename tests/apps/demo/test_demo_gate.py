"""What can be asked of the page that is none of its own business, over sockets and in Chromium."""

import importlib.util
import io
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from tests.apps import raw_http
from tests.apps.chromium import Watched, script
from tests.apps.raw_http import comes, half_open, status_of
from tests.apps.rows import ROWS
from tests.apps.servers import Server, page_of_others

WITHOUT = importlib.util.find_spec("gradio") is None
pytestmark = pytest.mark.skipif(WITHOUT, reason="needs Gradio, which `make app` has")
MEGABYTES = 2
# The page without models: they have tests of their own and take a minute.
APP = f"""
import contextlib, sys
from pathlib import Path
from cxrjax.apps.demo.page import import_gradio
folder = Path(sys.argv[1])
import_gradio(folder / "uploads")
from cxrjax.apps import page_server
from cxrjax.apps.demo import page

class NoModels:
    progress, elsewhere = "", ()
    def watch(self):
        pass
    def wait(self, seconds):
        return True
    def ask(self, image, question):
        if question == "break":
            raise RuntimeError("a bug")
        return {{}}

with contextlib.suppress(KeyboardInterrupt), page_server.listen("127.0.0.1", 0) as listening:
    page.serve(NoModels(), listening, folder, {MEGABYTES}, ["127.0.0.1"])
"""


def _png(side=40) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (side, side), np.uint8)
    PIL.Image.fromarray(noise).save(out, "PNG")
    return out.getvalue()


class Page(Server):
    """The page as a process, and what its own script sends."""

    def __init__(self, folder):
        self.folder = folder / "served"
        self.folder.mkdir()
        super().__init__(folder, "-c", APP, str(self.folder))
        (self.token,) = re.fullmatch(
            r"http://127\.0\.0\.1:\d+/([\w-]{22})/ \(Ctrl-C stops\)\n", self.printed
        ).groups()
        _, _, html = self.get("").partition(b"\r\n\r\n")
        config = json.loads(re.search(rb"window\.gradio_config = (\{.*?\});</script>", html)[1])
        # The first function of each sort: File; File and Textbox.
        by_inputs = {len(one["inputs"]): one["id"] for one in reversed(config["dependencies"])}
        self.look, self.ask_about = by_inputs[1], by_inputs[2]

    def send(self, method, path, *headers, body=b"", seconds=10.0) -> bytes:
        sent = raw_http.request(method, f"/{self.token}/{path}", *headers, body=body)
        return raw_http.ask_raw(self.port, sent, seconds=seconds)

    def get(self, path) -> bytes:
        return self.send("GET", path)

    def upload(self, content, name=b"x.png", *headers) -> bytes:
        body = b'--b\r\nContent-Disposition: form-data; name="files"; filename="%b"\r\n\r\n' % name
        kind = headers or ("Content-Type: multipart/form-data; boundary=b",)
        return self.send("POST", "gradio_api/upload", *kind, body=body + content + b"\r\n--b--\r\n")

    def uploaded(self, content, name=b"x.png") -> str:
        answer = self.upload(content, name)
        assert status_of(answer) == 200, answer
        return json.loads(answer.partition(b"\r\n\r\n")[2])[0]

    def event(self, function, *data, session="s1", **more) -> bytes:
        body = {"data": data, "fn_index": function, "session_hash": session, **more}
        return self.send("POST", "gradio_api/queue/join", body=json.dumps(body).encode())

    def outcome(self, function, *data, session="s1") -> str:
        """What the page shows after the event."""
        answer = self.event(function, *data, session=session)
        assert status_of(answer) == 200, answer
        stream = self.get(f"gradio_api/queue/data?session_hash={session}")
        return stream.decode()


def _file(path) -> dict:
    return {"path": str(path), "meta": {"_type": "gradio.FileData"}, "orig_name": "x.png"}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    one = Page(tmp_path_factory.mktemp("page"))
    yield one
    one.stop(signal.SIGINT)
    assert "Traceback" not in one.said and one.token not in one.said, one.said[-3000:]


def test_an_upload_is_shown_and_asked_about(page):
    path = page.uploaded(_png())
    assert "40 x 40 pixels" in page.outcome(page.look, _file(path))
    assert "Asked: Where?" in page.outcome(page.ask_about, _file(path), "Where?")
    assert "no image" in page.outcome(page.ask_about, None, "Where?")


def test_no_other_file_is_opened_and_none_is_told_from_a_missing_one(page, tmp_path):
    picture = tmp_path / "secret.png"
    picture.write_bytes(_png())
    mine = Path(page.uploaded(_png(41)))
    assert mine.is_relative_to(page.folder / "uploads")
    link, circle = mine.parent / "link.png", mine.parent / "circle.png"
    link.symlink_to(picture)
    circle.symlink_to(circle)
    pipe = mine.parent / "pipe"
    os.mkfifo(pipe)
    large = mine.parent / "large.png"
    large.write_bytes(_png() + b"\0" * MEGABYTES * 2**20)
    example = min(page.folder.glob("examples/*.png"))
    words = {"secret": picture, "mine": mine, "uploads": page.folder / "uploads"}
    words |= {"parent": mine.parent, "climb": os.path.relpath(picture, mine.parent)}
    paths = [path.format(**words, folder=tmp_path) for path in ROWS["no_files_of_the_demo"]]
    # An example is shown by its copy among the uploads alone.
    paths += [link, circle, pipe, large, example, "a" * 5000, "/" + "a/" * 3000]
    told = {
        page.event(function, _file(path), *rest)
        for path in paths
        for function, rest in ((page.look, ()), (page.ask_about, ("Where?",)))
    }
    told = {re.sub(rb"date: [^\r]*\r\n", b"", answer) for answer in told}
    assert len(told) == 1 and status_of(*told) == 404
    for path in (link, circle, pipe, large):
        path.unlink()
    assert "41 x 41 pixels" in page.outcome(page.look, _file(mine))


def test_events_are_those_of_the_page_and_nothing_else_reaches_gradio(page, subtests):
    good = {"data": [None], "fn_index": page.look, "session_hash": "s2"}
    for text in ROWS["no_events_of_the_demo"]:
        told = json.loads(text)
        body = json.dumps({**good, **told} if isinstance(told, dict) else told).encode()
        with subtests.test(text):
            answer = page.send("POST", "gradio_api/queue/join", body=body)
            assert status_of(answer) in (400, 404)
            assert b"Traceback" not in answer and b"root:" not in answer
    more = {"event_data": _file("/etc/passwd"), "batched": True, "simple_format": True}
    more |= {"oauth_token": "x", "event_id": "y", "request": {}, "trigger_id": 4}
    path = page.uploaded(_png())
    given = {**_file(path), "url": "http://127.0.0.1:1/", "is_stream": True, "path": path}
    answer = page.event(page.look, given, session="s3", **more)
    assert status_of(answer) == 200
    stream = page.get("gradio_api/queue/data?session_hash=s3").decode()
    assert "40 x 40 pixels" in stream


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 19_000, b'{"a":' * 3_000, b"\xff", b" " * 30_000]
)
def test_an_event_that_is_no_json(page, body):
    assert status_of(page.send("POST", "gradio_api/queue/join", body=body)) in (400, 413)


def test_only_routes_of_the_page_are_there(page):
    gradio = pytest.importorskip("gradio.routes")
    text = Path(gradio.__file__).read_text(encoding="utf-8")
    routes = set(re.findall(r'@(?:router|app)\.(?:get|post|head)\(\s*f?"([^"]+)"', text))
    assert len(routes) > 70
    open_ones = {"/", "/assets/{path:path}", "/static/{path:path}", "/theme.css", "/queue/data"}
    open_ones |= {"/queue/join", "/upload", "/upload_progress", "/file={path_or_url:path}"}
    assert open_ones <= routes
    for route in sorted(routes - open_ones):
        filled = re.sub(r"\{.*?\}", "x", route).lstrip("/")
        for path in (filled, f"gradio_api/{filled}", f"gradio_api/{filled}/"):
            for method in ("GET", "POST"):
                answer = page.send(method, path, "Content-Type: application/json", body=b"{}")
                assert status_of(answer) == 404, path
    for path in ROWS["no_pages_of_the_demo"]:
        assert status_of(page.get(path)) == 404, path
    assert status_of(page.get("assets/none.js")) in (403, 404)
    for query in ("session_hash=../x", "session_hash=" + "a" * 99, "&".join(["a=b"] * 50)):
        assert status_of(page.get(f"gradio_api/queue/data?{query}")) == 400
    # A shared link would be a path below the uploads.
    linked, plain = (page.get(q).partition(b"\r\n\r\n")[2] for q in ("?deep_link=../x", ""))
    assert b'"deep_link_state":"none"' in linked and len(linked) == len(plain)


def test_uploads_have_limits_and_names_that_stay_inside(page):
    before = page.said
    uploads = page.folder / "uploads"
    assert status_of(page.upload(b"\0" * (MEGABYTES * 2**20 + 1))) == 413
    assert status_of(page.upload(b"\0" * ((MEGABYTES + 2) * 2**20))) == 413
    names = [b"../../../x.png", b"/etc/x.png", b"..", b"a\0b.png", b"a" * 5000, b"%2e%2e%2fx"]
    for name in (*names, b"\xed\xa0\x80.png", b".bashrc", b"con\\x\\..\\y"):
        assert status_of(page.upload(_png(), name)) in (200, 400, 413, 500), name
    for charset in ("utf-7", "unicode_escape", "rot13", "undefined", "idna", "x" * 999):
        kind = f"Content-Type: multipart/form-data; boundary=b; charset={charset}"
        assert status_of(page.upload(_png(), rb"\ud800+2AA-.png", kind)) in (200, 400, 413, 500)
    for kind in ("", "text/plain", "multipart/form-data", "multipart/form-data; boundary="):
        assert status_of(page.upload(_png(), b"x", f"Content-Type: {kind}")) == 400
    chunked = ("Transfer-Encoding: chunked",)
    assert status_of(page.send("POST", "gradio_api/upload", *chunked, body=b"0\r\n\r\n")) == 411
    everything = {path for path in page.folder.rglob("*") if path.is_file()}
    assert all(one.is_relative_to(uploads) or one.parent.name == "examples" for one in everything)
    assert not list(page.folder.parent.glob("x*"))
    assert "Traceback" not in page.said.removeprefix(before)


def test_uploads_and_sessions_together_have_a_limit(page):
    uploads = page.folder / "uploads"
    head = f"POST /{page.token}/gradio_api/upload HTTP/1.1\r\nHost: localhost\r\n"
    head += "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 2000000\r\n\r\n"
    head += '--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    with half_open(page.port, 9, head.encode() + b"\0" * 100_000):
        assert comes(lambda: status_of(page.upload(b"\0" * 2_000_000)) == 507)
    assert comes(lambda: status_of(page.upload(_png())) == 200)
    assert comes(lambda: not [one for one in uploads.glob("tmp*") if one.stat().st_size])
    before = page.said
    statuses = {status_of(page.event(page.look, None, session=f"many{n}")) for n in range(150)}
    assert 200 in statuses <= {200, 503}
    for _ in range(40):
        page.event(page.look, None, session="one")
    assert comes(lambda: status_of(page.event(page.look, None, session="one")) == 429)
    assert "Traceback" not in page.said.removeprefix(before)
    assert "no image" in page.outcome(page.ask_about, None, "Where?", session="s9")


def test_a_bug_is_a_line_on_the_page_and_one_in_the_log(page):
    before = page.said
    path = page.uploaded(_png())
    shown = page.outcome(page.ask_about, _file(path), "break")
    assert "This cannot be answered" in shown and "a bug" not in shown
    (line,) = page.said.removeprefix(before).splitlines()
    assert line.endswith("RuntimeError: a bug")


@pytest.mark.slow
def test_a_page_of_another_origin_gets_nothing_and_ours_has_no_complaint(page, tmp_path, browser):
    (tmp_path / "own.png").write_bytes(_png())
    one = Watched(browser, "about:blank")
    tab, failed = one.tab, []
    tab.on("response", lambda a: failed.append(a.url) if a.status >= 400 else None)
    tab.on("console", lambda m: failed.append(m.text) if m.type == "error" else None)
    tab.goto(page.address)
    tab.wait_for_selector("#examples button img")
    tab.click("#examples button:has-text('detect ILD')")
    tab.wait_for_selector("#status p:has-text('Asked: detect ILD')")
    tab.click("#xray button[aria-label='Clear']")
    tab.set_input_files("#xray input[type=file]", tmp_path / "own.png")
    tab.wait_for_selector("#status p:has-text('Ask a question about it')")
    tab.fill("#question textarea, #question input", "Where?")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#status p:has-text('Asked: Where?')")
    assert failed == one.wrong == []
    evil = browser.new_context().new_page()
    body = json.dumps({"data": [None], "fn_index": page.look, "session_hash": "evil"})
    places = [["", {}], ["theme.css", {}]]
    places.append(["gradio_api/queue/join", {"method": "POST", "body": body}])
    with page_of_others() as origins:
        for origin in origins:
            evil.goto(origin)
            outcome = evil.evaluate(script("other_origin.js"), [page.address, places])
            assert set(outcome) <= {"refused", "opaque"}
    # Nothing of it has become an event.
    stream = page.get("gradio_api/queue/data?session_hash=evil")
    assert b"process_completed" not in stream
