"""The viewer in a real browser: zoom, window, layers, boxes by mouse and keyboard; its library."""

import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps import viewer
from tests.apps.axe import AXE, AXE_SHA256, faults_of
from tests.apps.chromium import Watched, script

HEIGHT, WIDTH = 300, 200


VENDOR = viewer.OPENSEADRAGON.parent
LIBRARIES = (
    (viewer.OPENSEADRAGON, viewer.OPENSEADRAGON_SHA256, VENDOR, "OpenSeadragon contributors"),
    (AXE, AXE_SHA256, AXE.parent, "Mozilla Public License, version 2.0"),
)


@pytest.mark.parametrize(("file", "sha256", "folder", "says"), LIBRARIES)
def test_libraries_are_as_npm_has_them_with_their_licences(file, sha256, folder, says):
    assert hashlib.sha256(file.read_bytes()).hexdigest() == sha256
    name = file.name.partition(".")[0]
    assert says in (folder / f"{name}.LICENSE.txt").read_text()
    locked = json.loads((VENDOR / "package-lock.json").read_text())["packages"]
    version = locked[f"node_modules/{name.replace('axe', 'axe-core')}"]["version"]
    assert re.search(rf"(axe v|openseadragon ){re.escape(version)}\b", file.read_text()[:400])


@pytest.fixture
def tab(browser, tmp_path):
    """A page with the viewer alone, which shows a ramp from black to white; `edits` in it."""
    ramp = np.linspace(0, 255, WIDTH).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(np.tile(ramp, (HEIGHT, 1))).save(out, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    parts = viewer.viewer_parts()
    picture = {"url": uri, "preview": "", "width": 2 * WIDTH, "height": 2 * HEIGHT, "name": "A"}
    boxes = (
        ("truth", "#2ecc71", {"box": [40, 60, 140, 200]}),
        ("base", "#ffd60a", {"box": [50, 60, 150, 210], "confidence": 0.4}),
        ("tuned", "#ff4d4f", {"box": [40, 66, 140, 200], "confidence": 0.834}),
    )
    layers = [
        {"name": name, "title": name, "colour": colour, "editable": name == "truth"}
        | {"boxes": [{"label": "Lung_nodule", **box}]}
        for name, colour, box in boxes
    ]
    html = script("viewer.html").replace("STYLE", parts.style).replace("SCRIPT", parts.script)
    shown = f"{json.dumps(picture)}, {json.dumps(layers)}"
    (tmp_path / "page.html").write_text(html.replace("v.show(SHOWN)", f"v.show({shown})"))
    address = (tmp_path / "page.html").as_uri()
    one = Watched(browser, address, {"width": 800, "height": 700})
    one.tab.wait_for_selector(".rv-stage[data-shown=full]")
    yield one.tab
    assert one.wrong == one.told == [] and one.asked_only("file:", "data:")


def _frame(tab, layer="truth"):
    """left, top, width, height of a box on the screen."""
    frame = f"document.querySelector('.rv-{layer} .rv-line').getBoundingClientRect()"
    return tab.evaluate(f"(({{x, y, width, height}}) => [x, y, width, height])({frame})")


def _drag(tab, start, end, button="left"):
    """From a place of the screen to another."""
    tab.mouse.move(*start)
    tab.mouse.down(button=button)
    tab.mouse.move(*end, steps=4)
    tab.mouse.up(button=button)


def _still(tab):
    """Waits until zooming has come to rest."""
    tab.wait_for_function("!v.osd.isAnimating || !v.osd.isAnimating()")
    tab.wait_for_timeout(350)


def _grey(tab, x, y):
    """What is to be seen at a place of the stage."""
    shot = Image.open(io.BytesIO(tab.screenshot()))
    return shot.convert("L").getpixel((x, y))


@pytest.mark.slow
def test_layers_labels_and_confidences(tab):
    names = ["1 Lung nodule", "1 Lung nodule 0.40", "1 Lung nodule 0.83"]
    assert tab.locator(".rv-box text").all_text_contents() == names
    told = tab.get_attribute(".rv-boxes", "aria-label")
    assert told.startswith("A. truth: 1 Lung nodule") and "tuned: 1 Lung nodule 0.83" in told
    for name in ("truth", "base", "tuned"):
        tab.uncheck(f".rv-layers label:has-text('{name}') input")
        assert tab.locator(f".rv-{name}").count() == 0
    tab.keyboard.press("b")
    assert tab.locator(".rv-box").count() == 3
    tab.uncheck(".rv-layers label:has-text('labels') input")
    assert tab.locator(".rv-box text").count() == 0
    assert faults_of(tab) == []


@pytest.mark.slow
def test_a_box_lies_where_its_pixels_are_at_every_zoom_and_size(tab):
    """The record counts 400 x 600 pixels, the file has half of them."""
    for size in ({"width": 800, "height": 700}, {"width": 390, "height": 844}):
        tab.set_viewport_size(size)
        for key in ("f", "+", "+", "o"):
            tab.keyboard.press(key)
            _still(tab)
            x, y, width, height = _frame(tab)
            left, top = tab.evaluate("[v.toScreen(0, 0).x, v.toScreen(0, 0).y]")
            right, bottom = tab.evaluate("[v.toScreen(400, 600).x, v.toScreen(400, 600).y]")
            stage = tab.locator(".rv-stage").bounding_box()
            across, down = (right - left) / 400, (bottom - top) / 600
            assert across == pytest.approx(down, rel=1e-3)
            assert [x - stage["x"] - left, y - stage["y"] - top] == pytest.approx(
                [40 * across, 60 * down], abs=1
            )
            assert [width, height] == pytest.approx([100 * across, 140 * down], abs=1)
        # 1:1 is of the original, which the file may be a smaller copy of.
        assert across == pytest.approx(1, rel=0.02)
        assert tab.inner_text(".rv-zoom") == "100 %"
        assert tab.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.slow
def test_the_last_picture_that_was_asked_for_stays(tab):
    """However late others arrive, and the preview of the same."""
    shown = tab.evaluate(script("last_picture.js"))
    assert shown == [1, WIDTH, HEIGHT, "full"]


@pytest.mark.slow
def test_window_level_and_inversion(tab):
    tab.evaluate("v.toggle()")
    _still(tab)
    stage = tab.locator(".rv-stage").bounding_box()
    left, right = tab.evaluate("[v.toScreen(0, 0).x, v.toScreen(400, 0).x]")
    quarter = int(stage["x"] + left + 0.25 * (right - left)), int(stage["y"] + stage["height"] / 2)
    assert _grey(tab, *quarter) == pytest.approx(64, abs=4)
    tab.keyboard.press("i")
    assert _grey(tab, *quarter) == pytest.approx(191, abs=4)
    tab.keyboard.press("w")
    tab.evaluate("v.level = 0.25; v.span = 0.25; v.filter()")
    assert _grey(tab, *quarter) == pytest.approx(128, abs=12)
    # By the right button: to the right is wider, downward is higher.
    tab.keyboard.press("w")
    _drag(tab, (400, 300), (460, 330), "right")
    assert tab.evaluate("[v.span, v.level]") == pytest.approx([1.2, 0.6])
    tab.click("text=Reset")
    assert _grey(tab, *quarter) == pytest.approx(64, abs=4)


@pytest.mark.slow
def test_boxes_by_mouse(tab):
    _still(tab)
    zoom = tab.evaluate("v.toScreen(1, 0).x - v.toScreen(0, 0).x")
    x, y, width, height = _frame(tab)
    tab.mouse.click(x, y + height * 0.8)  # its left edge, where no other box is
    assert tab.evaluate("v.selected") == 0 and tab.locator(".rv-handle").count() == 8
    across, down = x + width / 2, y + height / 2
    _drag(tab, (across, down), (across + 20 * zoom, down + 10 * zoom))
    (moved,) = tab.evaluate("edits.at(-1)")
    assert moved == pytest.approx([60, 70, 160, 210], abs=1)
    x, y, width, height = _frame(tab)
    _drag(tab, (x + width, y + height), (2000, y + height - 40 * zoom))
    (stretched,) = tab.evaluate("edits.at(-1)")
    assert stretched == pytest.approx([60, 70, 400, 170], abs=1), "no box leaves the picture"
    # To draw, then: dragging beside it draws and does not move the picture.
    tab.evaluate("v.setDrawing({label: 'new', kind: 'answer'})")
    at = tab.evaluate("[v.toScreen(300, 300), v.toScreen(350, 400)].map((p) => [p.x, p.y])")
    stage = tab.locator(".rv-stage").bounding_box()
    (x0, y0), (x1, y1) = ((x + stage["x"], y + stage["y"]) for x, y in at)
    _drag(tab, (x1, y1), (x0, y0))
    assert tab.evaluate("edits.at(-1)[1]") == pytest.approx([300, 300, 350, 400], abs=1)
    assert tab.evaluate("v.selected") == 1
    count = len(tab.evaluate("edits"))
    _drag(tab, (round(x1 + 20), round(y1 + 20)), (x1 + 60, y1 + 50))
    assert len(tab.evaluate("edits")) == count, "beside boxes the picture is moved"
    for _ in range(3):
        tab.keyboard.press("z")
    assert tab.evaluate("edits.at(-1)") == [[40, 60, 140, 200]]


@pytest.mark.slow
def test_boxes_by_keyboard(tab):
    tab.keyboard.press("]")
    step = tab.evaluate("Math.max(1, Math.round(4 / (v.toScreen(1, 0).x - v.toScreen(0, 0).x)))")
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        tab.keyboard.press(key)
    tab.keyboard.press("Shift+ArrowDown")
    assert tab.evaluate("edits.at(-1)") == [[40 + 2 * step, 60 - step, 140 + 2 * step, 200]]
    tab.evaluate("v.setDrawing({label: 'new', kind: 'missed'})")
    tab.keyboard.press("Enter")
    middle = tab.evaluate("edits.at(-1)[1]")
    assert (middle[0] + middle[2]) / 2 == pytest.approx(200, abs=2)
    assert (middle[1] + middle[3]) / 2 == pytest.approx(300, abs=2)
    tab.keyboard.press("Delete")
    assert len(tab.evaluate("edits.at(-1)")) == 1
    tab.keyboard.press("[")
    tab.keyboard.press("Escape")
    before = _frame(tab)
    tab.keyboard.press("ArrowRight")
    _still(tab)
    assert tab.evaluate("v.selected") == -1 and _frame(tab) != before, "the picture is moved"
    # Nothing can be made smaller than can be seen, or pushed out.
    tab.keyboard.press("]")
    for _ in range(200):
        tab.keyboard.press("Shift+ArrowLeft")
    tab.keyboard.press("Shift+ArrowUp")
    x0, _, x1, _ = tab.evaluate("edits.at(-1)[0]")
    assert x1 - x0 == 4


@pytest.mark.slow
def test_names_of_boxes_that_are_nearly_the_same_can_be_read(tab):
    boxes = [{"box": [40, y, 140, 200], "label": f"Finding {y}"} for y in (60, 62, 64, 2, 3)]
    layers = [{"name": "a", "title": "a", "colour": "#fff", "boxes": boxes}]
    tab.evaluate(f"v.show(v.picture, {json.dumps(layers)})")
    tab.wait_for_selector(".rv-stage[data-shown=full]")
    _still(tab)
    lines = tab.evaluate(
        "[...document.querySelectorAll('.rv-box text')].map((one) => +one.getAttribute('y'))"
    )
    assert all(abs(a - b) >= 14 for k, a in enumerate(lines) for b in lines[:k])
