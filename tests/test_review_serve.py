"""`review --serve`: a real server that is killed and started again, two readers, a real browser."""

import csv
import io
import json
import re
import signal
import sqlite3
import threading
import time

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.review.sheet import DIMENSIONS, read_sheet
from cxrjax.commands import review
from cxrjax.errors import UserError
from cxrjax.records import read_records, write_records
from tests.apps import chromium, raw_http, servers
from tests.apps.chromium import PHONE, Watched, look, script
from tests.apps.page_records import records_of
from tests.apps.raw_http import comes, status_of

browser = chromium.browser
FIRST = "reasoning_accuracy"


class Served(servers.Review):
    """A review of four questions; the fourth has no box, and its picture is not there."""

    def __init__(self, root):
        ramp = np.linspace(0, 255, 80 * 100).astype(np.uint8).reshape(100, 80)
        for number in range(3):
            Image.fromarray(ramp).save(root / f"i{number}.png")
        super().__init__(root, records_of("served"), "--resamples=100")

    def rows(self) -> list[dict[str, str]]:
        """The sheet's rows in their order, as a reader's page holds them."""
        _, html = self.below("anna", "")
        data = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)
        return json.loads(data[1])["rows"]

    def end(self):
        if self.runs:
            assert self.stop(signal.SIGINT) == 0, "Ctrl-C is how a review is stopped"
        assert "Traceback" not in self.said
        assert not any(token in self.said for token in self.tokens.values())


@pytest.fixture
def served(tmp_path):
    """A review of the test's own."""
    one = Served(tmp_path)
    yield one
    one.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A review that is handed in by nobody and rated by anna alone."""
    one = Served(tmp_path_factory.mktemp("shared"))
    yield one
    assert one.ratings("bao") == {}
    one.end()


@pytest.mark.slow
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
    assert comes(lambda: len(confirmed) >= 25)
    before = dict(served.links)
    assert served.stop(signal.SIGKILL) == -signal.SIGKILL
    thread.join()
    served.start()
    assert served.links == before, "the readers' links stay the same"
    # The last click may have reached the disk without its answer having reached us.
    assert int(served.ratings("anna")["q0"]["comment"]) in (confirmed[-1], confirmed[-1] + 1)


def test_two_readers_apart_and_then_their_agreement(served, tmp_path):
    rows = served.rows()
    assert sorted(row["question_id"] for row in rows) == ["q0", "q1", "q2", "q3"]
    for row in rows:
        for dimension in DIMENSIONS:
            if row[dimension] != "not applicable":
                other = "minor" if row["question_id"] == "q1" else "acceptable"
                assert served.rate("anna", row["question_id"], dimension, "acceptable")[0] == 204
                assert served.rate("bao", row["question_id"], dimension, other)[0] == 204
    assert served.below("anna", "agreement")[0] == 409
    assert served.below("anna", "hand_in", "")[0] == 204
    assert served.rate("anna", "q0", FIRST, "major")[0] == 409
    status, text = served.below("anna", "agreement")
    assert status == 409 and "others have not" in text
    assert not list(served.out.glob("*.csv")), "nothing shows before both have handed in"
    assert served.below("bao", "hand_in", "")[0] == 204
    status, html = served.below("anna", "agreement")
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


def test_what_is_no_rating_is_refused_and_harms_nothing(shared):
    own, before = f"/{shared.tokens['anna']}", shared.ratings("anna")
    for path in ("/", "/x/ratings", own, own[:-1] + "/ratings", "/%00/"):
        status, _, text = shared.ask("GET", path)
        assert status == 404 and b"Open the link" in text
    assert shared.ask("POST", "/x/ratings", "{}")[0] == 404
    assert shared.ask("GET", f"{own}/../../etc/passwd")[0] == 404
    for body, right in (("{", 400), ('{"question_id": 1}', 400), (b"\xff\xfe", 400)):
        assert shared.below("anna", "ratings", body)[0] == right
    assert shared.below("anna", "ratings", "x" * 100_001)[0] == 413
    assert shared.ask("POST", f"{own}/ratings", None, **{"Content-Length": "-1"})[0] == 400
    assert shared.rate("anna", "q9", FIRST, "minor")[0] == 400
    says = "q0: reasoning_accuracy: found 'fine', expected acceptable, minor, major"
    assert shared.rate("anna", "q0", FIRST, "fine") == (400, says)
    status, text = shared.below("bao", "hand_in", "")
    assert status == 409 and "11 ratings are missing" in text
    assert shared.ask("DELETE", f"{own}/ratings")[0] == 405
    assert shared.ratings("anna") == before
    with pytest.raises(UserError, match=rf"127.0.0.1:{shared.port}: cannot serve there"):
        words = ["--serve", "--reader=anna", "--reader=bao", f"--port={shared.port}"]
        review.main([*shared.flags, *words])


def test_text_that_breaks_programs_is_refused_or_kept_as_it_is(shared):
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
        status, text = shared.below("anna", "ratings", body % value)
        assert status == 400 and says in text, value[:40]
        assert len(text) < 300
    for found in ("x" * 40_000, "\x00", "\u202e"):
        status, text = shared.rate("anna", found, FIRST, found)
        assert status == 400 and len(text) < 200 and text.isascii()
    odd = '=1+1\r\n"a",\tb\x0b\x1f\x85\u2028\u202e\ufeff 😀'
    assert shared.rate("anna", "q0", "comment", odd)[0] == 204
    assert shared.ratings("anna")["q0"]["comment"] == odd


def test_a_database_that_another_program_holds_is_said_and_comes_back(shared):
    other = sqlite3.connect(shared.out / "review.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    start = time.monotonic()
    status, text = shared.rate("anna", "q1", FIRST, "minor")
    assert status == 503 and "locked" in text and time.monotonic() - start < 8
    assert shared.below("anna", "hand_in", "")[0] == 503
    other.execute("ROLLBACK")
    other.close()
    assert shared.rate("anna", "q1", FIRST, "minor")[0] == 204
    assert shared.ratings("anna")["q1"] == {FIRST: "minor"}


def test_raw_sockets_get_nothing_and_shut_nobody_out(shared):
    token, port = shared.tokens["bao"], shared.port
    for name, (sent, right) in raw_http.broken_requests(token, "ratings").items():
        assert status_of(raw_http.ask_raw(port, sent, seconds=3)) in right, name
    evil = raw_http.request("POST", f"/{token}/hand_in", "Origin: http://evil.example")
    assert status_of(raw_http.ask_raw(port, evil)) == 403
    own = raw_http.request("POST", f"/{token}/hand_in", f"Origin: http://127.0.0.1:{port}")
    own = own.replace(b"Host: 127.0.0.1", b"Host: 127.0.0.1:%d" % port)
    assert b"11 ratings are missing" in raw_http.ask_raw(port, own)
    said = shared.said
    with raw_http.half_open(port, 400, f"POST /{token}/ratings HTTP/1.1\r\nHost: ".encode()):
        assert shared.rate("anna", "q2", FIRST, "minor")[0] == 204
    assert shared.said == said
    before = raw_http.state_of(shared.process.pid)
    for sent in raw_http.random_requests(2, 300, token):
        raw_http.ask_raw(port, sent + b"\r\n\r\n", seconds=0.05)
    memory, threads, files = raw_http.state_of(shared.process.pid)
    assert memory <= before[0] + 30 and threads <= before[1] + 40 and files <= before[2] + 130


def test_pictures_are_served_at_full_resolution_to_who_has_the_link(shared):
    numbers = [n for n, row in enumerate(shared.rows()) if row["question_id"] != "q3"]
    link = f"/{shared.tokens['anna']}/picture"
    status, headers, content = shared.ask("GET", f"{link}/{numbers[0]}")
    assert (status, headers["Content-Type"]) == (200, "image/png")
    with Image.open(io.BytesIO(content)) as shown:
        assert shown.size == (80, 100) and shown.mode == "L"
    for path in (f"{link}/99", f"{link}/-1", "/other/picture/0"):
        assert shared.ask("GET", path)[0] == 404


def test_an_export_that_cannot_be_is_told_in_one_line(shared, tmp_path):
    records, sample, root, out = shared.flags
    for words, says in (
        ([records, sample, root, f"--out={tmp_path}"], "no review there"),
        ([records, "--sample=3", root, out], "a review of other questions"),
        ([*shared.flags, "--reader=eve"], "--reader=eve: reviewed by anna, bao"),
        ([*shared.flags, "--codec=none"], "no box codec"),
    ):
        with pytest.raises(UserError, match=says):
            review.main([*words, f"--export={tmp_path / 'x'}"])
    assert not (tmp_path / "x").exists() and (shared.out / "review.sqlite").exists()


@pytest.fixture
def opened(browser, served):
    """Opens a reader's page in a context of its own; what it asks for must be the server's."""
    pages = []

    def open_page(reader: str, viewport=chromium.DESKTOP):
        pages.append(Watched(browser, served.links[reader], viewport))
        tab = pages[-1].tab
        tab.set_default_timeout(60_000)
        tab.on("dialog", lambda dialog: dialog.accept())
        tab.wait_for_selector("body[data-ready]")
        return tab

    yield open_page
    for page in pages:
        assert page.wrong == [] and page.asked_only(f"http://127.0.0.1:{served.port}/", "data:")
        # What is told of are answers that the page itself tells of.
        of_answers = re.compile(r"status of 409|ERR_(CONNECTION|EMPTY)")
        assert all(of_answers.search(text) for text in page.told), page.told


def _saved(tab) -> str:
    tab.wait_for_selector('#progress:text-matches(", saved$")')
    return tab.inner_text("#progress")


@pytest.mark.slow
def test_a_review_by_keyboard_alone(opened, served):
    anna = opened("anna")
    assert _saved(anna) == "11 ratings to go, saved"
    look(anna, "desktop")
    assert anna.evaluate("window.hit") is None, "text of records is no code"
    bare = next(n for n, row in enumerate(served.rows()) if row["question_id"] == "q3")
    for _ in range(bare):
        anna.keyboard.press("n")
    assert "i3.png is missing" in anna.inner_text("main") and anna.is_hidden("#viewer")
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
    look(bao, "phone")

    again.click("#save")
    again.wait_for_url("**/agreement")
    assert "others have not" in again.inner_text("body")
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
    look(bao, "phone_agreement")
    again.reload()
    again.wait_for_selector("h1")
    look(again, "desktop_agreement")
    # The tab that stayed open cannot rate any more.
    anna.keyboard.press("1")
    anna.wait_for_selector("#problem:not([hidden])")
    assert "Not saved: already submitted" in anna.inner_text("#problem")
    with open(served.out / "anna.csv", newline="") as file:
        assert [row[FIRST] for row in csv.DictReader(file)] == ["major", *["acceptable"] * 3]


@pytest.mark.slow
def test_a_page_of_another_origin_neither_reads_nor_writes(browser, shared):
    tab, before = browser.new_context().new_page(), shared.ratings("anna")
    # Though it knows the link.
    rating = json.dumps({"question_id": "q0", "field": FIRST, "value": "major"})
    posted = ["ratings", {"method": "POST", "body": rating}], ["hand_in", {"method": "POST"}]
    link, places = shared.links["anna"], [["", {}], ["ratings", {}], *posted]
    with servers.page_of_others() as origins:
        for origin in origins:
            tab.goto(origin)
            outcome = tab.evaluate(script("other_origin.js"), [link, places])
            outcome.append(tab.evaluate(script("frame_and_form.js"), [link, rating]))
            assert set(outcome) <= {"refused", "opaque", ""}, outcome
            tab.wait_for_url(f"{link}ratings")
            assert "Only the server's own pages may ask this" in tab.inner_text("body")
    assert shared.ratings("anna") == before


@pytest.mark.slow
def test_clicks_while_the_server_is_gone_are_saved_when_it_is_back(opened, served):
    anna = opened("anna")
    anna.click("article >> nth=0 >> input[value=minor] >> nth=0")
    assert _saved(anna) == "10 ratings to go, saved"
    served.stop(signal.SIGKILL)
    anna.click("article >> nth=0 >> input[value=major] >> nth=1")
    anna.keyboard.press("j")
    anna.keyboard.press("1")
    anna.wait_for_selector("#problem:not([hidden])")
    assert "the server does not answer" in anna.inner_text("#problem")
    assert "2 not saved yet" in anna.inner_text("#progress")
    look(anna, "server_gone")
    served.start()
    _saved(anna)
    assert anna.is_hidden("#problem")
    rated = served.ratings("anna")
    levels = [level for values in rated.values() for level in values.values()]
    assert sorted(levels) == ["acceptable", "major", "minor"]


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
    for number in range(3):
        Image.new("L", (80, 100), 90).save(tmp_path / f"i{number}.png")
    write_records(tmp_path / "records.jsonl", records_of("served"))
    flags = [f"--records={tmp_path / 'records.jsonl'}", "--sample=4", f"--image_root={tmp_path}"]
    flags.append(f"--out={tmp_path / 'page'}")
    review.main(flags)
    one = Watched(browser, (tmp_path / "page" / "index.html").as_uri(), PHONE)
    tab = one.tab
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
    assert one.fits()
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
    assert exported["left_out"] == {"its image is missing": ["q3"]}
    exported = read_records(tmp_path / "second" / "records.jsonl")
    (moved,) = [record for record in exported if record.boxes != [[8, 16, 40, 60]]]
    x0, y0, x1, y1 = map(int, moved.boxes[0])
    assert x0 > 8 and y0 == 16 and y1 > 60
    assert moved.answer_text == f"At <loc_{x0}_{y0}_{x1}_{y1}>."
