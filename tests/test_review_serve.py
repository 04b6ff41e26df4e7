"""`review --serve`: a real server that is killed and started again, two readers, a real browser."""

import contextlib
import csv
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax import review
from cxrjax.errors import UserError
from cxrjax.pages.review.sheet import read_sheet
from cxrjax.records import Answer, QARecord, read_records, write_records
from tests.pages.chromium import chromium
from tests.pages.raw_http import (
    ask_raw,
    broken_requests,
    random_requests,
    request,
    state_of,
    status_of,
)

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1400, "height": 1000}
EVIL = "</script><script>window.hit=1</script><img src=x onerror='window.hit=1'>"
FIRST = "reasoning_accuracy"


def _record(number: int) -> QARecord:
    boxed = number != 3
    return QARecord(
        dataset="vindr_cxr_vqa",
        split="validation",
        image_id=f"i{number}",
        image_path=f"i{number}.png",
        question_id=f"q{number}",
        question=f"Where is it? {EVIL}",
        question_type="Where",
        answers=[
            Answer(
                text="At <loc_8_16_40_60>." if boxed else "There is none.",
                labels=["Cardiomegaly"],
                boxes_by_image={f"i{number}": [[8, 16, 40, 60]]} if boxed else {},
            )
        ],
        reason="The heart is wide. " * 12,
        gt_finding="Cardiomegaly",
    )


class Served:
    """The command as a process that can be killed and started again on the same port."""

    def __init__(self, root: Path):
        self.out = root / "out"
        records = root / "records.jsonl"
        write_records(records, [_record(n) for n in range(4)])
        ramp = np.linspace(0, 255, 80 * 100).astype(np.uint8).reshape(100, 80)
        for number in range(3):  # the fourth picture is not there
            Image.fromarray(ramp).save(root / f"i{number}.png")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.flags = [f"--records={records}", "--serve", "--reader=anna", "--reader=bao"]
        self.flags += ["--sample=4", f"--image_root={root}", f"--out={self.out}"]
        self.flags += ["--resamples=100"]
        self.process: subprocess.Popen | None = None
        self.errors = root / "stderr"

    def start(self) -> None:
        command = [sys.executable, "-m", "cxrjax.review", *self.flags, f"--port={self.port}"]
        with open(self.errors, "a") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        printed = ""
        for line in self.process.stdout:
            printed += line
            if "Ctrl-C stops" in line:
                break
        links = re.findall(r"^(\w+): (http://127\.0\.0\.1:\d+/(\S+)/)$", printed, re.MULTILINE)
        self.links = {name: link for name, link, _ in links}
        self.tokens = {name: token for name, _, token in links}
        assert set(self.links) == {"anna", "bao"}, printed

    def stop(self, how: int = signal.SIGKILL) -> int:
        self.process.send_signal(how)
        self.process.communicate(timeout=60)  # its last words need a reader
        return self.process.returncode

    def ask(self, method: str, path: str, body: str | bytes | None = None, headers=None):
        """(status, text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def rate(self, reader: str, question_id: str, field: str, value: str):
        body = json.dumps({"question_id": question_id, "field": field, "value": value})
        return self.ask("POST", f"/{self.tokens[reader]}/ratings", body)

    def ratings(self, reader: str) -> dict:
        status, text = self.ask("GET", f"/{self.tokens[reader]}/ratings")
        assert status == 200
        return json.loads(text)["ratings"]

    def rows(self) -> list[dict[str, str]]:
        """The sheet's rows in their order, as a reader's page holds them."""
        _, html = self.ask("GET", f"/{self.tokens['anna']}/")
        data = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)
        return json.loads(data[1])["rows"]


@pytest.fixture
def served(tmp_path):
    one = Served(tmp_path)
    one.start()
    yield one
    if one.process.poll() is None:
        one.stop()
    said = one.errors.read_text()
    assert "Traceback" not in said
    assert not any(token in said for token in one.tokens.values())


def test_no_confirmed_rating_is_lost_to_kill_9(served):
    confirmed = []

    def click() -> None:
        try:
            for number in range(100_000):
                if served.rate("anna", "q0", "comment", str(number))[0] == 204:
                    confirmed.append(number)
        except OSError:
            pass  # killed

    thread = threading.Thread(target=click)
    thread.start()
    deadline = time.monotonic() + 60
    while len(confirmed) < 25 and time.monotonic() < deadline:
        time.sleep(0.002)
    before = dict(served.links)
    assert served.stop() == -signal.SIGKILL
    thread.join()
    assert len(confirmed) >= 25
    served.start()
    assert served.links == before, "the readers' links stay the same"
    # The last click may have reached the disk without its answer having reached us.
    assert int(served.ratings("anna")["q0"]["comment"]) in (confirmed[-1], confirmed[-1] + 1)


def test_two_readers_apart_and_then_their_agreement(served, tmp_path):
    rows = served.rows()
    assert sorted(row["question_id"] for row in rows) == ["q0", "q1", "q2", "q3"]
    token = served.tokens["anna"]
    for row in rows:
        for dimension in (FIRST, "answer_appropriateness", "spatial_reference"):
            if row[dimension] != "not applicable":
                other = "minor" if row["question_id"] == "q1" else "acceptable"
                assert served.rate("anna", row["question_id"], dimension, "acceptable")[0] == 204
                assert served.rate("bao", row["question_id"], dimension, other)[0] == 204
    assert served.ask("GET", f"/{token}/agreement")[0] == 409
    assert served.ask("POST", f"/{token}/hand_in")[0] == 204
    assert served.rate("anna", "q0", FIRST, "major")[0] == 409
    status, text = served.ask("GET", f"/{token}/agreement")
    assert status == 409 and "the other reader has not" in text
    assert not list(served.out.glob("*.csv")), "nothing shows before both have handed in"
    assert served.ask("POST", f"/{served.tokens['bao']}/hand_in")[0] == 204
    status, html = served.ask("GET", f"/{token}/agreement")
    assert status == 200 and html.count("<td>q1</td>") == 3
    # The same files as --sheets makes of them.
    by_server = {path.name: path.read_bytes() for path in served.out.iterdir()}
    sheets = [f"--sheets={served.out / name}.csv" for name in ("anna", "bao")]
    review.main([*sheets, f"--out={tmp_path / 'again'}", "--resamples=100"])
    written = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert set(written) == {"agreement.json", "agreement.md", "consensus.csv"}
    assert all(by_server[name] == content for name, content in written.items())
    pooled = json.loads(written["agreement.json"])["dimensions"]["pooled"]
    assert pooled["n"] == 11 and pooled["observed_agreement"] == pytest.approx(8 / 11)
    # Ctrl-C is how a review is stopped.
    assert served.stop(signal.SIGINT) == 0


def test_what_is_no_rating_is_refused_and_harms_nothing(served):
    own = f"/{served.tokens['anna']}"
    for path in ("/", "/x/ratings", own, own[:-1] + "/ratings", "/%00/"):
        status, text = served.ask("GET", path)
        assert status == 404 and "Open the link" in text
    assert served.ask("POST", "/x/ratings", "{}")[0] == 404
    assert served.ask("GET", f"{own}/../../etc/passwd")[0] == 404
    assert served.ask("POST", f"{own}/ratings", "{")[0] == 400
    assert served.ask("POST", f"{own}/ratings", '{"question_id": 1}')[0] == 400
    assert served.ask("POST", f"{own}/ratings", b"\xff\xfe")[0] == 400
    assert served.ask("POST", f"{own}/ratings", "x" * 100_001)[0] == 413
    assert served.ask("POST", f"{own}/ratings", None, {"Content-Length": "-1"})[0] == 400
    assert served.rate("anna", "q9", FIRST, "minor")[0] == 400
    assert served.rate("anna", "q0", FIRST, "fine") == (
        400,
        "q0: reasoning_accuracy: found 'fine', expected acceptable, minor, major",
    )
    status, text = served.ask("POST", f"{own}/hand_in")
    assert status == 409 and "11 ratings are missing" in text
    assert served.ask("DELETE", f"{own}/ratings")[0] == 405
    assert served.ratings("anna") == {}
    with pytest.raises(UserError, match=rf"127.0.0.1:{served.port}: cannot serve there"):
        review.main([*served.flags, f"--port={served.port}"])


def test_text_that_breaks_programs_is_refused_or_kept_as_it_is(served):
    own = f"/{served.tokens['anna']}/ratings"
    body = '{"question_id": "q0", "field": "comment", "value": %s}'
    for value, says in (
        (r'"\ud800"', "not JSON"),
        (r'"\udc00 x"', "not JSON"),
        ("[" * 50_000, "not JSON"),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "not JSON"),
        ("9" * 5_000, "308 digits"),
        ("1e400", "expected an object"),
        ('"' + r"\u0000" + '"', "NUL"),
        ('"' + "x" * 10_001 + '"', "10001 characters"),
    ):
        status, text = served.ask("POST", own, body % value)
        assert status == 400 and says in text, value[:40]
        assert len(text) < 300
    for found in ("x" * 40_000, "\x00", "\u202e"):
        status, text = served.rate("anna", found, FIRST, found)
        assert status == 400 and len(text) < 200 and text.isascii()
    odd = '=1+1\r\n"a",\tb\x0b\x1f\x85\u2028\u202e\ufeff 😀'
    assert served.rate("anna", "q0", "comment", odd)[0] == 204
    assert served.ratings("anna") == {"q0": {"comment": odd}}


def test_a_database_that_another_program_holds_is_said_and_comes_back(served):
    other = sqlite3.connect(served.out / "review.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    start = time.monotonic()
    status, text = served.rate("anna", "q0", FIRST, "minor")
    assert status == 503 and "locked" in text and time.monotonic() - start < 8
    status, text = served.ask("POST", f"/{served.tokens['anna']}/hand_in")
    assert status == 503
    other.execute("ROLLBACK")
    other.close()
    assert served.rate("anna", "q0", FIRST, "minor")[0] == 204
    assert served.ratings("anna") == {"q0": {FIRST: "minor"}}
    assert served.stop(signal.SIGINT) == 0


def test_raw_sockets_get_nothing_and_shut_nobody_out(served):
    token = served.tokens["anna"]
    for name, (sent, right) in broken_requests(token, "ratings").items():
        assert status_of(ask_raw(served.port, sent, seconds=3)) in right, name
    evil = request("POST", f"/{token}/hand_in", "Origin: http://evil.example")
    assert status_of(ask_raw(served.port, evil)) == 403
    own = request("POST", f"/{token}/hand_in", f"Origin: http://127.0.0.1:{served.port}")
    own = own.replace(b"Host: 127.0.0.1", b"Host: 127.0.0.1:%d" % served.port)
    assert b"11 ratings are missing" in ask_raw(served.port, own)
    said = served.errors.read_text()
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            with contextlib.suppress(ConnectionError):
                half.sendall(f"POST /{token}/ratings HTTP/1.1\r\nHost: ".encode())
        assert served.rate("anna", "q0", FIRST, "minor")[0] == 204
    assert served.errors.read_text() == said
    before = state_of(served.process.pid)
    for sent in random_requests(2, 300, token):
        ask_raw(served.port, sent + b"\r\n\r\n", seconds=0.05)
    memory, threads, files = state_of(served.process.pid)
    assert memory <= before[0] + 30 and threads <= before[1] + 40 and files <= before[2] + 130
    assert served.ratings("bao") == {}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--serve", "--readers=x"], "--serve needs --records"),
        (["--serve", "--records=x", "--check", "--reader=a", "--reader=b"], "--serve needs"),
        (["--records=x", "--reader=a"], "--reader needs --serve"),
        (["--records=x", "--allowed_host=a"], "--allowed_host needs --serve"),
        (["--records=x", "--serve", "--reader=a"], "1 --reader: expected two different names"),
        (["--records=x", "--serve", "--reader=a", "--reader=A"], "expected two different names"),
        (["--records=x", "--serve", "--reader=../a", "--reader=b"], "--reader=../a: expected"),
        (["--records=x", "--serve", "--reader=a", "--reader=sheet"], "--reader=sheet: expected"),
    ],
)
def test_unusable_flags_end_with_code_2(flags, says, capsys):
    with pytest.raises(SystemExit) as end:
        review.main([*flags, "--out=o"])
    assert end.value.code == 2 and says in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def opened(browser, served):
    """Opens a reader's page in a browser of its own; what it asks for must be the server's."""
    contexts, asked, said = [], [], []

    def open_page(reader: str, viewport=None):
        contexts.append(browser.new_context(viewport=viewport or DESKTOP))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(60_000)
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("dialog", lambda dialog: dialog.accept())
        tab.on("console", lambda message: said.append(message.text))
        tab.goto(served.links[reader])
        tab.wait_for_selector("body[data-ready]")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert all(url.startswith((f"http://127.0.0.1:{served.port}/", "data:")) for url in asked)
    # What is told of are answers that the page itself tells of.
    assert all(re.search(r"status of 409|ERR_(CONNECTION|EMPTY)", text) for text in said), said


def _saved(tab) -> str:
    tab.wait_for_selector('#progress:text-matches(", saved$")')
    return tab.inner_text("#progress")


def _look(tab, name: str) -> None:
    """A screenshot to look at, where a folder for them is named."""
    if folder := os.environ.get("CXRJAX_SCREENSHOTS"):
        tab.screenshot(path=Path(folder) / f"{name}.png")


@pytest.mark.slow
def test_a_review_by_keyboard_alone(opened, served):
    anna = opened("anna")
    assert _saved(anna) == "11 ratings to go, saved"
    _look(anna, "desktop")
    assert anna.evaluate("window.hit") is None, "text of records is no code"
    bare = next(n for n, row in enumerate(served.rows()) if row["question_id"] == "q3")
    for _ in range(bare):
        anna.keyboard.press("n")
    assert "i3.png is not there" in anna.inner_text("main") and anna.is_hidden("#viewer")
    for _ in range(4):
        anna.keyboard.press("p")
    for _ in range(bare == 0):
        anna.keyboard.press("n")
    anna.wait_for_selector(".rv-stage[data-shown=full]")
    assert anna.locator(".rv-box .rv-line").bounding_box()["width"] > 0
    anna.keyboard.press("b")
    assert anna.locator(".rv-box").count() == 0
    anna.keyboard.press("b")
    assert anna.locator(".rv-box").count() == 1
    for _ in range(bare == 0):
        anna.keyboard.press("p")
    # A comment's letters are no keys.
    anna.keyboard.press("c")
    anna.keyboard.type("jn2b ü")
    anna.keyboard.press("Escape")
    anna.keyboard.press("2")
    assert _saved(anna) == "10 ratings to go, saved"
    rows = served.rows()
    assert served.ratings("anna") == {rows[0]["question_id"]: {"comment": "jn2b ü", FIRST: "minor"}}
    assert served.ratings("bao") == {}
    # Back to it, another level; then on to the first that is unrated, to the end.
    for key in ("k", "3", "u", *"1" * 10):
        anna.keyboard.press(key)
    assert _saved(anna) == "all rated, saved"
    assert served.ratings("anna")[rows[0]["question_id"]][FIRST] == "major"
    assert len(anna.query_selector_all("article.done")) == 4

    # Opened again: what was rated is there, and the other reader sees none of it.
    again, bao = opened("anna"), opened("bao", PHONE)
    assert len(again.query_selector_all("input[type=radio]:checked")) == 11
    assert len(bao.query_selector_all("input[type=radio]:checked")) == 0
    assert "anna" not in bao.inner_text("body") and "jn2b" not in bao.content()
    assert bao.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    _look(bao, "phone")

    again.click("#save")
    again.wait_for_url("**/agreement")
    assert "the other reader has not" in again.inner_text("body")
    bao.click("#save")
    assert bao.inner_text("#problem") == "11 ratings are missing."
    for _ in range(11):
        bao.keyboard.press("1")
    assert _saved(bao) == "all rated, saved"
    bao.click("#save")
    bao.wait_for_url("**/agreement")
    bao.wait_for_selector("h1")
    shown = bao.inner_text("main")
    assert "1 ratings differ" in shown and "kappa, unweighted" in shown
    assert bao.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    _look(bao, "phone_agreement")
    again.reload()
    again.wait_for_selector("h1")
    _look(again, "desktop_agreement")
    # The tab that stayed open cannot rate any more.
    anna.keyboard.press("1")
    anna.wait_for_selector("#problem:not([hidden])")
    assert "Not saved: handed in already" in anna.inner_text("#problem")
    with open(served.out / "anna.csv", newline="") as file:
        assert [row[FIRST] for row in csv.DictReader(file)] == ["major", *["acceptable"] * 3]


@pytest.mark.slow
def test_a_page_of_another_origin_neither_reads_nor_writes(browser, served, tmp_path):
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "index.html").write_text("<title>evil</title>")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "http.server", str(port), "--bind=127.0.0.1"]
    other = subprocess.Popen(
        [*command, f"--directory={tmp_path / 'evil'}"], stderr=subprocess.DEVNULL
    )
    tab = browser.new_context().new_page()
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        # Though it knows the link.
        rating = json.dumps({"question_id": "q0", "field": FIRST, "value": "major"})
        for origin in (f"http://127.0.0.1:{port}/", f"http://localhost:{port}/"):
            tab.goto(origin)
            outcome = tab.evaluate(
                """async ([link, rating]) => {
                  const tried = [];
                  for (const mode of ["cors", "no-cors"])
                    for (const [place, options] of [
                        ["", {}], ["ratings", {}], ["ratings", {method: "POST", body: rating}],
                        ["hand_in", {method: "POST"}]])
                      tried.push(await fetch(link + place, {mode, ...options}).then(
                        async (answer) => answer.type + (await answer.text()), () => "refused"));
                  const frame = document.createElement("iframe");
                  frame.src = link;
                  document.body.append(frame);
                  await new Promise((resolve) => { frame.onload = resolve; });
                  let seen = "";
                  try { seen = frame.contentDocument.body.innerText; } catch { seen = ""; }
                  const form = document.createElement("form");
                  form.action = link + "ratings"; form.method = "POST"; form.enctype = "text/plain";
                  const field = document.createElement("input");
                  [field.name, field.value] = [rating.slice(0, -1) + ', "x": "', '"}'];
                  form.append(field); document.body.append(form);
                  setTimeout(() => form.submit(), 0);
                  return [...tried, seen];
                }""",
                [served.links["anna"], rating],
            )
            assert set(outcome) <= {"refused", "opaque", ""}, outcome
            tab.wait_for_url(f"{served.links['anna']}ratings")
            assert "Only the server's own pages may ask this" in tab.inner_text("body")
        assert served.ratings("anna") == {}
    finally:
        tab.context.close()
        other.kill()
        other.wait()


@pytest.mark.slow
def test_clicks_while_the_server_is_gone_are_saved_when_it_is_back(opened, served):
    anna = opened("anna")
    anna.click("article >> nth=0 >> input[value=minor] >> nth=0")
    assert _saved(anna) == "10 ratings to go, saved"
    served.stop()
    anna.click("article >> nth=0 >> input[value=major] >> nth=1")
    anna.keyboard.press("j")
    anna.keyboard.press("1")
    anna.wait_for_selector("#problem:not([hidden])")
    assert "the server does not answer" in anna.inner_text("#problem")
    assert "2 not saved yet" in anna.inner_text("#progress")
    _look(anna, "server_gone")
    served.start()
    _saved(anna)
    assert anna.is_hidden("#problem")
    rated = served.ratings("anna")
    assert sorted(level for values in rated.values() for level in values.values()) == [
        "acceptable",
        "major",
        "minor",
    ]


@pytest.mark.slow
def test_what_is_refused_takes_nothing_along_that_waits_behind_it(opened, served):
    anna, held = opened("anna"), []

    def hold_first(route):
        if route.request.method == "POST" and not held:
            held.append(route)
        else:
            route.continue_()

    anna.route("**/ratings", hold_first)
    for _ in range(3):
        anna.keyboard.press("1")
    anna.wait_for_timeout(100)
    held[0].fulfill(status=409, body="not this one")
    assert _saved(anna).endswith("saved")
    assert "Not saved: not this one" in anna.inner_text("#problem")
    assert sum(map(len, served.ratings("anna").values())) == 2


@pytest.mark.slow
def test_the_page_without_a_server_saves_the_same_sheet(browser, tmp_path):
    records = Served(tmp_path).flags[0]
    flags = [records, "--sample=4", f"--image_root={tmp_path}", f"--out={tmp_path / 'page'}"]
    review.main(flags)
    tab = browser.new_context(viewport=PHONE).new_page()
    tab.goto((tmp_path / "page" / "index.html").as_uri())
    tab.keyboard.press("1")
    assert not tab.query_selector("input[type=radio]:checked"), "nobody has said who rates"
    tab.fill("#reader", "chi")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Escape")
    for _ in range(11):
        tab.keyboard.press("2")
    for _ in range(4):
        tab.keyboard.press("p")
    if tab.evaluate("item().image") == "i3":  # it has no picture
        tab.keyboard.press("n")
    tab.wait_for_selector(".rv-stage[data-shown]")
    for key in ("]", "ArrowRight", "Shift+ArrowDown"):
        tab.keyboard.press(key)
    tab.reload()
    assert tab.input_value("#reader") == "chi"
    assert tab.inner_text("#progress") == "all rated"
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    with tab.expect_download() as download:
        tab.click("#save")
    assert download.value.suggested_filename == "chi.csv"
    download.value.save_as(tmp_path / "chi.csv")
    ratings = read_sheet(tmp_path / "chi.csv")
    assert sorted(ratings.levels) == ["q0", "q1", "q2", "q3"]
    assert {level for levels in ratings.levels.values() for level in levels.values()} == {1}
    # What was corrected comes out of sheets as it does out of a server's store.
    (tmp_path / "chi.csv").rename(tmp_path / "page" / "chi.csv")
    review.main([*flags, f"--export={tmp_path / 'second'}"])
    exported = json.loads((tmp_path / "second" / "export.json").read_text())
    assert exported["corrected"] == exported["pairs"] == 1
    assert exported["left_out"] == {"its image is not there": ["q3"]}
    (moved,) = [
        one
        for one in read_records(tmp_path / "second" / "records.jsonl")
        if one.boxes != [[8, 16, 40, 60]]
    ]
    x0, y0, x1, y1 = map(int, moved.boxes[0])
    assert x0 > 8 and y0 == 16 and y1 > 60
    assert moved.answer_text == f"At <loc_{x0}_{y0}_{x1}_{y1}>."
    tab.context.close()
