"""The page in a real browser, of a real server: upload, question, boxes, and what goes wrong."""

import importlib.util
import re
import struct
import zlib

import numpy as np
import PIL.Image
import pytest

from tests.apps import servers
from tests.apps.annotations.samples import dicom_image
from tests.apps.axe import accessibility_faults
from tests.apps.chromium import DESKTOP, PHONE, Watched, look, script

WITHOUT = importlib.util.find_spec("gradio") is None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WITHOUT, reason="needs Gradio, which `make app` has"),
]
MEGABYTES = 4
EVIL = "<img src=x onerror='window.hit=1'>"
QUESTION = "#question textarea, #question input"


class Served(servers.Server):
    """The command as a process; `temporary` is where it may leave files."""

    def __init__(self, base, tuned, temporary, *words, **environment):
        command = ["-m", "cxrjax.demo_app", f"--base={base}", f"--tuned={tuned}", "--port=0"]
        super().__init__(temporary.parent, *command, *words, TMPDIR=str(temporary), **environment)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]+/ \(Ctrl-C stops\)\n", self.printed)
        self.token = self.address.split("/")[3]

    def below(self, path, body=None, **headers):
        """(status, headers, body) of a GET, or of a POST with the body, below the token."""
        return self.ask("GET" if body is None else "POST", f"/{self.token}{path}", body, **headers)


@pytest.fixture(scope="module")
def served(base, tuned, tmp_path_factory):
    temporary = tmp_path_factory.mktemp("served") / "tmp"
    temporary.mkdir()
    one = Served(base, tuned, temporary, f"--max_megabytes={MEGABYTES}")
    yield one
    one.stop()


class Tab(Watched):
    """An open page, with what a person does there."""

    def __init__(self, browser, served, viewport=DESKTOP):
        super().__init__(browser, served.address, viewport)
        self.page = self.tab
        self.page.set_default_timeout(600_000)
        self.page.wait_for_selector("#examples button img")

    def asks(self, question):
        self.page.fill(QUESTION, question)
        self.page.click("#ask")

    def upload(self, path):
        self.page.set_input_files("#xray input[type=file]", path)

    def clear(self):
        self.page.click("#xray button[aria-label='Clear']")
        self.says("Choose an image")

    def says(self, text):
        """Waits for the line about what goes on."""
        self.page.wait_for_selector(f"#status p:has-text({text!r})")
        return self.page.inner_text("#status")

    def boxes(self, system):
        """Their places on the screen: x, y, width, height."""
        self.page.wait_for_selector("#viewer .rv-stage[data-shown=full]")
        found = self.page.query_selector_all(f"#viewer .rv-{system} .rv-line")
        assert all(box.is_visible() for box in found)
        return [tuple(box.bounding_box().values()) for box in found]

    def shows_nothing(self):
        told = self.page.query_selector("#picture .to-show, #answers .answer")
        return told is None and not self.page.is_visible("#viewer .rv-stage")


@pytest.fixture
def opened(browser, served):
    """Opens the page; whatever it asks for must be the server's."""
    tabs = []

    def open_tab(**options):
        tabs.append(Tab(browser, served, **options))
        tabs[-1].says("Choose an image")
        return tabs[-1]

    yield open_tab
    for tab in tabs:
        assert tab.page.evaluate("window.hit") is None, "text is no code"
        assert tab.asked_only(served.address, "data:", "blob:")
        assert tab.wrong == []


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_an_example_shows_answers_boxes_and_probabilities(opened, viewport):
    tab = opened(viewport=viewport)
    look(tab.page, f"demo_start_{viewport['width']}")
    tab.page.click("#examples button:has-text('lungs')")
    assert tab.says("Asked") == "Asked: Where are the lungs?"
    look(tab.page, f"demo_answer_{viewport['width']}")
    shown = tab.page.query_selector("#viewer .rv-stage").bounding_box()
    assert shown["width"] > 250
    for system in ("base", "truth"):
        boxes = tab.boxes(system)
        assert len(boxes) == 2
        for x, y, width, height in boxes:
            assert width > 20 and height > 20
            assert shown["x"] <= x and x + width <= shown["x"] + shown["width"] + 1
            assert shown["y"] <= y and y + height <= shown["y"] + shown["height"] + 1
    # Right to within a few pixels of the screen: the base has learnt this one.
    for box, true in zip(sorted(tab.boxes("base")), sorted(tab.boxes("truth")), strict=True):
        assert np.abs(np.subtract(box, true)).max() < 0.15 * shown["width"]
    for system in ("base", "tuned"):
        answer = tab.page.query_selector(f'#answers [data-system="{system}"]')
        assert re.search(r"as a whole:\s*[<>]?[\d.]+ %", answer.inner_text())
        tokens = answer.query_selector_all(".tokens li")
        assert tokens and all(re.search(r"\d %\s*$", token.text_content()) for token in tokens)
    tab.page.click('#answers [data-system="base"] summary')
    base = tab.page.inner_text('#answers [data-system="base"]')
    assert "<loc" in base and re.search(r"1\s+\d+ to \d+\s+\d+ to \d+\s+[\d.]+ %", base)
    assert tab.fits()


def test_what_was_asked_before_is_shown_again_and_saved(opened, tmp_path):
    tab = opened()
    for question in ("Where are the lungs?", "where is the cardiomegly?"):
        if question.islower():
            tab.asks(question)
        else:
            tab.page.click("#examples button:has-text('lungs')")
        tab.says(f"Asked: {question}")
        tab.page.wait_for_selector(f"#history .kept button:has-text({question!r})")
    assert "was “cardiomegaly” meant?" in tab.page.inner_text("#answers .remark >> nth=0")
    tab.page.click("#history .kept button:has-text('lungs')")
    assert tab.page.locator("#history .past .answer").count() == 2
    assert not tab.page.is_visible("#answers")
    assert len(tab.boxes("base")) == 2
    texts = tab.page.locator("#viewer .rv-base text").all_text_contents()
    assert [bool(re.fullmatch(r"\d 0\.\d\d", text)) for text in texts] == [True, True]
    with tab.page.expect_download() as download:
        tab.page.click("#viewer button:has-text('Save')")
    download.value.save_as(tmp_path / "saved.png")
    pixels = np.asarray(PIL.Image.open(tmp_path / "saved.png").convert("RGB")).astype(int)
    yellow = np.abs(pixels - [255, 214, 10]).max(axis=-1) < 30
    assert download.value.suggested_filename.endswith("_boxes.png") and yellow.sum() > 200
    tab.page.focus("#viewer .openseadragon-canvas")
    tab.page.keyboard.press("b")
    assert tab.page.locator("#viewer .rv-box").count() == 0
    tab.page.click("#history .kept button:has-text('cardiomegly')")
    assert tab.page.is_visible("#answers")


def test_a_picture_with_nothing_on_it_is_called_empty(opened, tmp_path):
    tab = opened()
    PIL.Image.fromarray(np.full((60, 80), 90, np.uint8)).save(tmp_path / "grey.png")
    tab.upload(tmp_path / "grey.png")
    tab.says("nearly empty")
    tab.asks("detect ILD")
    tab.says("Asked")
    assert "nearly empty" in tab.page.inner_text("#answers .remark >> nth=0")


def test_nothing_serious_is_in_the_way(browser, served):
    def ask(tab):
        tab.set_default_timeout(600_000)
        tab.click("#examples button:has-text('lungs')")
        tab.wait_for_selector("#viewer .rv-stage[data-shown=full]")
        tab.wait_for_selector("#answers .answer")

    assert accessibility_faults(browser, served.address, ask) == []


def test_an_upload_and_a_question_by_keyboard(opened, picture):
    tab = opened()
    tab.upload(picture(f"{EVIL.replace('/', '')}.png", 60, 80))
    tab.says("Ask a question about it")
    assert "80 x 60 pixels" in tab.page.inner_text("#picture")
    assert tab.page.inner_text("#answers").strip() == ""
    tab.page.fill(QUESTION, f"Where is it? {EVIL} ${{1+1}} {{{{7*7}}}}")
    tab.page.keyboard.press("Enter")
    assert f"{EVIL} ${{1+1}} {{{{7*7}}}}" in tab.says("Asked")
    assert len(tab.page.query_selector_all("#answers .answer")) == 2
    assert not tab.boxes("truth"), "nobody knows the truth of an upload"


def test_without_a_picture_or_a_question_the_page_says_so(opened, picture):
    tab = opened()
    tab.page.click("#ask")
    assert "no image" in tab.says("no image")
    tab.upload(picture())
    tab.says("Ask a question about it")
    tab.page.click("#ask")
    assert "no question" in tab.says("no question")
    assert tab.page.get_attribute("#status p", "role") == "alert"


def test_a_bad_file_is_named_and_nothing_of_the_last_one_stays(opened, picture, tmp_path):
    tab = opened()
    tab.page.click("#examples button:has-text('Cardiomegaly')")
    tab.says("Asked")
    tab.clear()
    assert tab.shows_nothing()
    whole = picture("whole.png").read_bytes()
    for name, content, says in (
        ("notes.png", b"no picture at all", "notes.png: not PNG, JPEG or DICOM"),
        ("half.png", whole[: len(whole) // 2], "half.png: damaged or truncated PNG"),
        ("cut.dcm", b"\0" * 128 + b"DICM" + b"\0" * 20, "cut.dcm: "),
    ):
        (tmp_path / name).write_bytes(content)
        tab.upload(tmp_path / name)
        said = tab.says(says)
        assert str(tmp_path) not in said and "uploads" not in said
        look(tab.page, f"demo_bad_{name}")
        assert tab.shows_nothing()
        tab.clear()


def test_very_large_files_are_refused_and_the_page_goes_on(opened, picture, tmp_path):
    tab = opened()
    many = tmp_path / "pixels.png"
    told = bytearray(picture().read_bytes())
    told[16:24] = struct.pack(">II", 9_000, 9_000)  # its header: so many pixels
    told[29:33] = struct.pack(">I", zlib.crc32(told[12:29]))
    many.write_bytes(told)
    tab.upload(many)
    assert "9000 x 9000 pixels, more than the" in tab.says("pixels.png")
    tab.clear()
    heavy = tmp_path / "heavy.png"
    heavy.write_bytes(picture().read_bytes() + b"\0" * (MEGABYTES * 1024 * 1024))
    tab.upload(heavy)
    tab.page.wait_for_selector("text=/exceed|too large|maximum/i")
    look(tab.page, "demo_heavy")
    assert not tab.page.query_selector("#picture .to-show")
    tab.page.reload()
    tab.page.wait_for_selector("#examples button img")
    tab.says("Choose an image")
    tab.upload(picture("next.png"))
    tab.says("Ask a question about it")


def test_the_server_refuses_what_the_browser_should_have(served):
    def upload(megabytes):
        head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        body = head + b"\0" * int(megabytes * 1024 * 1024) + b"\r\n--x--\r\n"
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        return served.below("/gradio_api/upload", body, **kind)[0]

    assert upload(1) == 200
    assert upload(MEGABYTES + 1) == 413


def test_a_dicom_file_is_shown_as_a_viewer_shows_it(opened, tmp_path):
    stored = np.tile(np.linspace(0, 4095, 90), (70, 1)).astype("<u2")
    path = tmp_path / "IM0001"  # as scanners call them
    bits = {"BitsStored": 12, "HighBit": 11, "PhotometricInterpretation": "MONOCHROME1"}
    dicom_image(path, "1.2.3", pixels=stored, **bits)
    tab = opened()
    tab.upload(path)
    tab.says("Ask a question about it")
    assert "90 x 70 pixels" in tab.page.inner_text("#picture")
    left, right = tab.page.evaluate(script("outer_greys.js"))
    assert left > 200 and right < 50, "what is stored as 0 is white"
    tab.asks("Where is the Lung Opacity?")
    tab.says("Asked")
    assert len(tab.page.query_selector_all("#answers .answer")) == 2


def test_nothing_but_the_page_is_served_and_only_to_this_machine(served):
    status, headers, body = served.below("/")
    assert status == 200
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert not re.search(rb"(src|href)=.https?://", body)
    assert served.below("/", Host=f"attacker.example:{served.port}")[0] == 400
    assert served.below("/", Host=f"localhost:{served.port}")[0] == 200
    assert served.below("/../")[0] == 404
    for path in ("/etc/passwd", str(servers.ROOT / "setup.py")):
        assert served.below(f"/gradio_api/file={path}")[0] in (403, 404)
    for path in ("/docs", "/redoc", "/openapi.json", "/monitoring", "/gradio_api/runs"):
        assert served.below(path)[0] in (403, 404)


def test_a_question_waits_while_models_compile_and_nothing_stays(base, tuned, browser, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    one = Served(base, tuned, temporary, JAX_COMPILATION_CACHE_DIR="")
    try:
        tab = Tab(browser, one)
        assert "base and tuned" in tab.says("being compiled")
        look(tab.page, "demo_compiling")
        tab.page.click("#examples button:has-text('lungs')")
        tab.says("then comes your answer")
        tab.says("Asked")
        assert tab.boxes("base")
        assert list(temporary.rglob("examples/*.png"))
    finally:
        assert one.stop() == 0
    assert list(temporary.iterdir()) == []
