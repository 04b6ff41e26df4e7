"""A case's picture in the shared viewer: opened by mouse or key, with boxes by system; closed."""

import numpy as np
import pytest
from PIL import Image

from tests.apps.axe import accessibility_faults
from tests.apps.chromium import Watched

pytestmark = pytest.mark.slow
SHOWN = "#closely[open] .rv-stage[data-shown=full]"
SIZES = [(390, 844), (1400, 1000), (2560, 1440)]


@pytest.fixture
def tab(page, browser):
    """The page in a browser, cases as in the file; nothing goes wrong, nothing is asked for."""
    page.predictions["b tuned"] = page.predictions["tuned"]
    # A second question about a finding whose box is there already, and another of tuned.
    page.records.append(page.record(1, question_id="again", question="Is it there?"))
    page.predictions["tuned"].append(
        page.prediction(1, [[0.2, 0.7, 0.4, 0.9]], question_id="again", box_scores=[0.834])
    )
    one = Watched(browser, page.write().as_uri())
    one.tab.select_option("#toolbar [name=order]", label="as in the file")
    one.tab.wait_for_timeout(250)
    yield one.tab
    assert one.wrong == one.told == [] and one.asked_only("file://", "data:", "blob:")


def _texts(tab):
    return tab.locator(".rv-box text").all_text_contents()


@pytest.mark.parametrize("size", SIZES)
def test_a_picture_opens_with_boxes_and_closes(tab, size):
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    frame = tab.locator("[aria-label='Radiograph image-1'] button.frame")
    frame.scroll_into_view_if_needed()
    frame.click()
    tab.wait_for_selector(SHOWN, timeout=3000)
    assert tab.inner_text("#closely-name") == "image-1"
    # Of three systems only truth and the ranked one are on; what the page hides is off here.
    assert _texts(tab) == ["1 Cardiomegaly", "1 Cardiomegaly 0.50", "2 Cardiomegaly 0.83"]
    toggle = ".rv-layers label:has-text('{}') input"
    tab.check(toggle.format("base"))
    tab.uncheck(toggle.format("truth"))
    assert tab.locator(".rv-box text").count() == 3 and tab.locator(".rv-truth").count() == 0
    line = tab.locator(".rv-system-0 .rv-line")
    assert line.get_attribute("stroke") == "#ffd60a"

    # Pixels 40 to 72 of 80, at every zoom.
    before = line.bounding_box()
    tab.keyboard.press("-")
    tab.wait_for_timeout(400)
    after = line.bounding_box()
    assert after["width"] == pytest.approx(0.8 * before["width"], rel=0.05)
    inside = tab.locator("#closely").bounding_box()
    assert inside["x"] >= 0 and inside["x"] + inside["width"] <= size[0]
    bar = tab.locator(".rv-bar").evaluate("bar => bar.scrollWidth - bar.clientWidth")
    assert bar <= 0 and tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    tab.keyboard.press("Escape")
    assert tab.locator("#closely[open]").count() == 0
    assert frame.evaluate("frame => frame === document.activeElement")


def test_enter_opens_a_picture_with_the_boxes_of_the_question_alone(tab):
    card = tab.locator("[aria-label='Radiograph image-1']")
    card.locator(".ask", has_text="Is it there?").click()
    card.locator("button.frame").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector(SHOWN, timeout=3000)
    assert _texts(tab) == ["1 Cardiomegaly", "1 Cardiomegaly 0.83"]
    tab.click("#closely header button")
    tab.locator("[aria-label='Radiograph image-2'] button.frame").click()
    tab.wait_for_selector(SHOWN, timeout=3000)
    assert _texts(tab) == ["1 Nodule/Mass", "1 Nodule/Mass 0.50"]


def test_pictures_in_a_folder_open_too_and_nothing_serious_is_in_the_way(page, browser):
    path = page.write(pictures="folder")

    def look(tab):
        tab.locator("button.frame >> nth=0").click()
        tab.wait_for_selector(SHOWN, timeout=3000)

    assert accessibility_faults(browser, path.as_uri(), look) == []


def test_without_pictures_there_is_no_viewer(page):
    page.write(pictures="none")
    assert "OpenSeadragon" not in page.html
    assert 'id="closely"' not in page.html


def test_all_pixels_are_shown_closely_and_the_small_picture_without_them(page, browser):
    large = np.tile(np.linspace(0, 255, 900).astype(np.uint8), (1000, 1))
    Image.fromarray(large).save(page.root / "images" / "image-1.png")
    path = page.write()
    full = path.parent / "index_files" / "full-1.jpg"
    one = Watched(browser, path.as_uri())
    tab, asked = one.tab, one.asked

    def look():
        tab.goto(path.as_uri())
        asked.clear()
        tab.locator("[aria-label='Radiograph image-1'] button.frame").click()

    tab.wait_for_selector("#cards img")
    assert not [url for url in asked if "full-" in url], "only when somebody looks closely"
    look()
    tab.wait_for_selector(SHOWN, timeout=3000)
    assert [url for url in asked if "full-" in url] == [full.as_uri()]
    assert "900 x 1000 pixels" in tab.inner_text("#closely header")
    size = tab.evaluate("RadiographViewer.inDialog.tile.getContentSize()")
    assert (size["x"], size["y"]) == (900, 1000)
    full.unlink()
    look()
    tab.wait_for_selector("#closely .rv-stage[data-shown=preview]", timeout=3000)
    tab.wait_for_selector(".rv-note:has-text('Shown smaller')", timeout=3000)
    assert tab.locator(".rv-box").count()
