"""Pages for people who see or point otherwise: axe-core finds no violation.

The review itself is tested in tests/test_review_loop.py, where it is served.
"""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.review.agreement import agreement, markdown
from cxrjax.apps.review.review_pages import render_agreement
from cxrjax.apps.review.sheet import DIMENSIONS, Ratings
from cxrjax.commands import build, check_records
from cxrjax.errors import UserError
from cxrjax.evaluation.overlays import COLOURS, TRUTH
from cxrjax.evaluation.sample_page import SampleBox, SampleImage, SampleSection, write_sample_page
from cxrjax.metrics.bootstrap import Bootstrap
from tests.apps.annotations.samples import draw_images
from tests.apps.axe import accessibility_faults, faults_of

ROOT = Path(__file__).parents[2]


def _whole(tab) -> None:
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    width = tab.viewport_size["width"]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_the_agreement(browser, tmp_path):
    first, second = (
        Ratings(name, {f"q{k}": {d: k * step % 3 for d in DIMENSIONS} for k in range(9)}, {})
        for name, step in (("anna", 1), ("bao", 2))
    )
    result = agreement([first, second], Bootstrap(resamples=20))
    html = render_agreement(result, markdown(result), ["anna.csv", "bao.csv", "agreement.json"])
    assert result["disagreements"]
    (tmp_path / "page.html").write_text(html)
    assert accessibility_faults(browser, (tmp_path / "page.html").as_uri(), _whole) == []


@pytest.mark.slow
def test_the_check_of_records(browser, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # the configuration's base is named from there
    Image.fromarray(np.full((60, 80), 90, np.uint8)).save(tmp_path / "a.png")
    answer = {"text": "At <loc_10_20_40_50>.", "boxes_by_image": {"a": [[10, 20, 40, 50]]}}
    line = {"dataset": "custom", "image_id": "a", "question": "Where is it?"}
    line |= {"question_type": "Where", "answers": [answer]}
    lines = [line | {"image_path": path, "question_id": path} for path in ("a.png", "none.png")]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = [str(tmp_path), f"--out={tmp_path / 'out'}", "--processes=1"]
    assert check_records.main(flags) == 2
    page = tmp_path / "out" / "index.html"

    def look(tab):
        tab.click("button.look")
        tab.wait_for_selector(".rv-stage[data-shown=full]")
        assert tab.locator(".rv-truth").count() == tab.locator(".rv-base").count() == 1
        tab.uncheck(".rv-layers label:has-text('tokens') input")
        assert tab.locator(".rv-base").count() == 0

    assert accessibility_faults(browser, page.as_uri(), _whole, look) == []


@pytest.mark.slow
def test_boxes_as_they_were_read(browser, tmp_path):
    source = draw_images(tmp_path / "data" / "images", size=(600, 800)).parent
    rows = ["image,class,x_min,y_min,x_max,y_max", "a.png,Effusion,100,200,400,500"]
    rows += [f"{name}.png,Nodule,40,50,9000,170" for name in "bcd"]
    (source / "boxes.csv").write_text("\n".join(rows))
    command = ["--dataset=boxes", f"--source={source}", f"--out={tmp_path / 'out'}"]
    with pytest.raises(UserError, match="inspect it, then pass --accept"):
        build.main([*command, "--processes=1"])
    page = tmp_path / "out" / "look" / "index.html"

    def look(tab):
        tab.locator("button.look").last.click()
        tab.wait_for_selector("#closely[open] .rv-stage[data-shown=full]")
        assert "800 x 600 pixels" in tab.inner_text("#closely header")
        assert "Shown smaller" not in tab.inner_text("#closely")
        assert tab.locator(".rv-truth").count() == 1
        tab.keyboard.press("b")  # boxes off: what is bright now is the picture
        tab.wait_for_timeout(300)
        shot = Image.open(io.BytesIO(tab.locator(".rv-stage").screenshot()))
        assert np.asarray(shot.convert("L")).max() > 200

    assert accessibility_faults(browser, page.as_uri(), _whole, look) == []


@pytest.mark.slow
def test_samples(browser, tmp_path):
    image = np.full((60, 80), 90, np.uint8)
    box = SampleBox("true", COLOURS[TRUTH], (0.1, 0.2, 0.5, 0.6))
    images = [SampleImage("a.png", "an effusion", image, [box]), SampleImage("b.png", "", None)]
    sections = [SampleSection("Kept", ["Two images."], images, columns=2)]
    write_sample_page(tmp_path / "page.html", "Samples", ["A note."], sections)
    assert accessibility_faults(browser, (tmp_path / "page.html").as_uri(), _whole) == []


@pytest.mark.slow
def test_faults_are_found(browser):
    tab = browser.new_context(bypass_csp=True).new_page()
    faint = "<p style='color:#999;background:#aaa'>faint</p>"
    tab.set_content(
        f"<html lang='en'><title>t</title><main><h1>t</h1><textarea></textarea>{faint}</main>"
    )
    assert [one.partition(" ")[0] for one in faults_of(tab)] == ["color-contrast", "label"]
