"""From clicks to records and pairs; tests/test_own_recipe.py trains on such records."""

import io
import json
import signal

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.review.review_pages import full_picture
from cxrjax.commands import review
from cxrjax.records import read_records
from tests.apps import chromium
from tests.apps.annotations.samples import dicom_image
from tests.apps.axe import accessibility_faults
from tests.apps.page_records import records_of
from tests.apps.rows import ROWS
from tests.apps.servers import Review

browser = chromium.browser
HEIGHT, WIDTH = 240, 200
# Whole pixels of the screen are some pixels of the picture.
NEAR = 3


RECORDS = records_of("loop")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    root = tmp_path_factory.mktemp("loop")
    ramp = np.linspace(0, 255, WIDTH).astype(np.uint8)
    for number, record in enumerate(RECORDS):
        pixels = np.roll(np.tile(ramp, (HEIGHT, 1)), 7 * number, axis=1)
        Image.fromarray(pixels).save(root / record.image_path)
    one = Review(root, RECORDS)
    yield one
    one.stop(signal.SIGKILL)


@pytest.fixture
def link(running):
    """Anna's, of a server that runs."""
    if not running.runs:
        running.start()
    return running.links["anna"]


class Reader:
    """Somebody at the page; keystrokes are counted."""

    def __init__(self, tab):
        self.tab, self.strokes = tab, 0
        tab.set_default_timeout(60_000)

    def open(self, link):
        self.tab.goto(link)
        self.tab.wait_for_selector("body[data-ready]")
        self.order = self.tab.evaluate("data.rows.map((row) => row.question_id)")
        return self

    def go(self, name):
        place = self.order.index(name)
        for _ in range(len(self.order)):
            self.tab.keyboard.press("p")
        for _ in range(place):
            self.tab.keyboard.press("n")
        assert self.tab.evaluate("current") == place
        self.tab.wait_for_selector(".rv-stage[data-shown=full]")
        self.tab.wait_for_timeout(400)

    def press(self, *keys):
        for key in keys:
            self.tab.keyboard.press(key)
            self.strokes += 1

    def saved(self):
        self.tab.wait_for_selector('#progress:text-matches("saved$")')
        self.tab.wait_for_function("!keeper.waiting.length")

    def drag(self, start, end):
        """From one place of the picture to another, in its pixels."""
        points = self.tab.evaluate(
            """(points) => points.map(([x, y]) => {
              const frame = viewer.stage.getBoundingClientRect(), at = viewer.toScreen(x, y);
              return [frame.x + at.x, frame.y + at.y];
            })""",
            [start, end],
        )
        self.tab.mouse.move(*points[0])
        self.tab.mouse.down()
        self.tab.mouse.move(*points[1], steps=4)
        self.tab.mouse.up()


@pytest.mark.slow
def test_clicks_become_records_and_pairs(browser, running, link, tmp_path, capsys):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    anna = Reader(context.new_page()).open(link)
    assert "<loc" not in anna.tab.inner_text("body")

    # An agreeable case: as many keys as there is to rate, and one is at the next.
    anna.go("fine")
    anna.strokes = 0
    anna.press("1", "1", "1")
    assert anna.strokes <= 6 and anna.tab.locator("article.done").count() == 1
    # What is not there is not asked about.
    assert anna.tab.locator("input[name$=reasoning_accuracy]").count() == 2 * 3
    anna.go("seen")
    assert anna.tab.locator("article:not([hidden]) fieldset.rating").count() == 1

    # A missed finding, by keyboard; a class is named by its beginning.
    anna.press("3")
    assert anna.tab.evaluate("data.rows[current].question_id") == "seen", "to be put right"
    anna.press("m")
    anna.tab.keyboard.type("mas")
    anna.press("Enter")
    anna.drag((120, 100), (160, 150))
    # The one that was asked for is there after all.
    anna.press("d", "Enter", "Escape")
    words = anna.tab.input_value("#answer")
    assert words == "Yes, there is nodule at [box 2]."
    anna.saved()

    # A box moved by mouse, and its corner by keyboard.
    anna.go("moved")
    anna.press("1", "1", "3")
    anna.go("moved")
    anna.press("]")
    anna.drag((55, 75), (65, 95))
    assert "moved" in anna.tab.inner_text("#boxes") and "corrected" in anna.tab.inner_text("h3")
    anna.press("Shift+ArrowRight")
    anna.saved()

    # Killed: what was saved is there, the box too.
    running.stop(signal.SIGKILL)
    running.start()
    anna.open(link)
    anna.go("moved")
    assert "moved" in anna.tab.inner_text("#boxes")

    # One of two boxes deleted, then the other; undone; words by hand.
    anna.go("gone")
    anna.tab.click("[aria-label='Delete box 1']")
    assert anna.tab.input_value("#answer") == "Yes, there is ILD at [box 1]."
    anna.tab.click("[aria-label='Delete box 1']")
    assert anna.tab.input_value("#answer") == "No, there is no ILD."
    anna.tab.click("#undo")
    anna.press("e")
    anna.tab.fill("#answer", "Yes: [box 9].")
    assert "name box 9" in anna.tab.inner_text("#unnamed")
    anna.tab.fill("#answer", "Yes, ILD at [box 1].")
    assert anna.tab.is_hidden("#unnamed")
    anna.press("Escape")
    anna.go("bad")
    anna.press("1", "3")
    anna.saved()
    context.close()
    running.stop(signal.SIGINT)

    # Out of it: records and pairs, beside the pictures.
    out = tmp_path / "second"
    review.main([*running.flags, f"--export={out}"])
    told = capsys.readouterr().out
    assert "1 left out: rated major and not corrected: bad" in told
    assert "records.jsonl: 5 questions, 3 corrected, 0 with the same boxes" in told
    assert "1 of missed findings, 1 unchanged" in told
    records = {one.question_id: one for one in read_records(out / "records.jsonl")}
    assert set(records) == {"fine", "moved", "gone", "seen", "i-seen-mass-missed"}
    x0, y0, x1, y1 = records["moved"].boxes[0]
    assert [x0, y0, y1] == pytest.approx([30, 50, 140], abs=NEAR) and x1 > 100
    assert records["gone"].answer_text == "Yes, ILD at <loc_99_10_150_60>."
    assert records["seen"].answers[0].polarity == "pos"
    missed = records["i-seen-mass-missed"]
    assert missed.question == "Where is the mass?"
    assert missed.boxes[0] == pytest.approx([120, 100, 160, 150], abs=NEAR)
    pairs = {p["question_id"]: p for p in map(json.loads, (out / "pairs.jsonl").open())}
    assert set(pairs) == {"moved", "gone", "seen"}
    assert pairs["seen"]["worse"] == "No, there is no nodule."
    assert json.loads((out / "export.json").read_text())["left_out"] == {
        "rated major and not corrected": ["bad"]
    }


@pytest.mark.slow
def test_the_page_has_no_grave_fault_for_anybody(browser, link):
    def prepare(tab):
        tab.wait_for_selector("body[data-ready]")
        tab.wait_for_selector(".rv-stage[data-shown]")
        # All that opens is open, and a box is chosen.
        tab.evaluate("document.querySelector('details').open = true; openMissed()")
        tab.evaluate("viewer.select(0)")

    assert accessibility_faults(browser, link, prepare) == []


@pytest.mark.slow
def test_words_that_are_proposed(browser, link, subtests):
    tab = browser.new_page()
    tab.goto(link)
    tab.wait_for_selector("body[data-ready]")
    plain = {"text": "The mass is at [box 1].", "boxes": 1, "writes": True, "words": "mass"}
    plain |= {"english": True, "polar": False, "counts": False}
    for item, kept, added, said in ROWS["proposals"]:
        boxes = [{"kind": "answer", "origin": place} for place in [*kept, *[None] * added]]
        with subtests.test(item=item, kept=kept, added=added):
            found = tab.evaluate(
                """([item, boxes]) => {
                  data.items[current] = {...item, boxes: Array(item.boxes).fill([0, 0, 1, 1])};
                  return proposal([...boxes, {kind: "missed", origin: null}]);
                }""",
                [plain | item, boxes],
            )
            assert found == said


def test_a_dicom_image_is_a_picture_of_all_its_pixels_in_its_window(tmp_path):
    levels = np.arange(60 * 80, dtype=np.uint16).reshape(60, 80)
    window = {"WindowCenter": 2400, "WindowWidth": 2400}
    file = dicom_image(tmp_path / "image.dcm", "1.2.3", pixels=levels, **window)
    with Image.open(io.BytesIO(full_picture(file))) as shown:
        grey = np.asarray(shown)
    assert grey.shape == (60, 80)
    assert grey[0, 0] == 0 and grey[-1, -1] == 255 and 100 < grey[30, 0] < 160
