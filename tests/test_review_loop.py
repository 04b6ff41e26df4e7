"""From clicks to a trained step: a review with corrections, its export, the check, training."""

import dataclasses
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax import check_records, review, train
from cxrjax.errors import UserError
from cxrjax.models.presets import PRESETS
from cxrjax.pages.review.review_pages import full_picture
from cxrjax.records import Answer, QARecord, read_records, write_records
from cxrjax.training.config_file import load_config
from tests.images.test_dicom import dataset_of, save
from tests.pages.axe import accessibility_faults
from tests.pages.chromium import chromium

ROOT = Path(__file__).parents[1]
CONFIG = str(ROOT / "configs" / "records_lora.py")
HEIGHT, WIDTH = 240, 200
# Whole pixels of the screen are some pixels of the picture.
NEAR = 3


def _record(name, label, text, boxes, kind="Where", **changes):
    return QARecord(
        dataset="custom",
        split="train",
        image_id=f"i-{name}",
        image_path=f"i-{name}.png",
        question_id=name,
        question=f"Where is the {label}?" if kind == "Where" else f"Is there {label}?",
        question_type=kind,
        variables={"finding": label},
        answers=[
            Answer(
                text=text,
                labels=[label],
                polarity="pos" if boxes else "neg",
                boxes_by_image={f"i-{name}": boxes} if boxes else {},
            )
        ],
        **changes,
    )


RECORDS = [
    _record(
        "moved", "effusion", "The effusion is at <loc_20_30_90_120>.", [[20, 30, 90, 120]],
        reason="Blunted angle, see <loc_20_30_90_120>.",
    ),
    _record("fine", "mass", "The mass is at <loc_40_40_80_80>.", [[40, 40, 80, 80]], reason="A."),
    _record("gone", "ILD", "Yes, there is ILD at <loc_10_10_60_60> and <loc_99_10_150_60>.",
            [[10, 10, 60, 60], [99, 10, 150, 60]], "Is_there", reason="None"),
    _record("seen", "nodule", "No, there is no nodule.", [], "Is_there"),
    _record("bad", "edema", "The edema is at <loc_1_1_9_9>.", [[1, 1, 9, 9]]),
]  # fmt: skip


class Running:
    """`review --serve` as a process, and what reads it."""

    def __init__(self, root: Path):
        self.root, self.out = root, root / "review"
        ramp = np.linspace(0, 255, WIDTH).astype(np.uint8)
        for number, record in enumerate(RECORDS):
            pixels = np.roll(np.tile(ramp, (HEIGHT, 1)), 7 * number, axis=1)
            Image.fromarray(pixels).save(root / record.image_path)
        write_records(root / "records.jsonl", RECORDS)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.flags = [f"--records={root / 'records.jsonl'}", "--sample=5", f"--out={self.out}"]
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "cxrjax.review", "--serve", *self.flags]
        command += ["--reader=anna", "--reader=bao", f"--port={self.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        printed = ""
        for line in self.process.stdout:
            printed += line
            if "Ctrl-C stops" in line:
                break
        self.link = re.search(r"^anna: (\S+)$", printed, re.MULTILINE)[1]

    def stop(self, how: int) -> None:
        self.process.send_signal(how)
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    one = Running(tmp_path_factory.mktemp("loop"))
    yield one
    if one.process.poll() is None:
        one.stop(signal.SIGKILL)


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


@pytest.fixture
def smaller_tiny(monkeypatch):
    """The preset `tiny_192` with fewer and narrower layers."""
    tiny = PRESETS["tiny_192"]
    narrow = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16}
    small = dataclasses.replace(
        tiny,
        vision=dataclasses.replace(tiny.vision, **narrow),
        decoder=dataclasses.replace(tiny.decoder, **narrow, head_dim=8),
    )
    monkeypatch.setitem(PRESETS, "tiny_192", small)


@pytest.mark.slow
@pytest.mark.usefixtures("smaller_tiny")
def test_clicks_become_records_and_pairs_that_train(
    browser, running, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(ROOT)  # the configuration's base is named from there
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    anna = Reader(context.new_page()).open(running.link)
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
    anna.open(running.link)
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
    assert "records.jsonl (5 questions, 3 corrected, 1 of missed findings)" in told
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

    # The check finds nothing to mend, and both trainings take a step.
    words = [str(out / "records.jsonl"), f"--out={tmp_path / 'check'}", "--processes=1"]
    assert check_records.main(words) == 0, capsys.readouterr().out
    overrides = [
        f"--config.data.train={out / 'records.jsonl'}",
        "--config.model.init=random",
        "--config.model.init_from=None",
        f"--config.model.tokenizer={ROOT / 'data' / 'demo_base' / 'tokenizer.model'}",
        "--config.data.validation=None",
        "--config.data.workers=0",
        "--config.model.unroll=False",
        "--config.training.steps=1",
        "--config.training.batch_images=8",
        "--config.training.best_metric=None",
        "--config.training.eval_every=0",
    ]
    preferred = ["--config.rl.kind=dpo", "--config.rl.group_size=2", "--config.data.prompt=vqa"]
    preferred += [f"--config.rl.pairs={out / 'pairs.jsonl'}"]
    for name, more in (("supervised", []), ("preferred", preferred)):
        train.train(load_config(CONFIG, overrides + more), tmp_path / name)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        figures = json.loads(lines[-1])
        assert figures["step"] == 1 and np.isfinite(figures["train/loss"])
    assert figures["train/rl/preference_loss"] == pytest.approx(np.log(2), abs=1e-3)


@pytest.mark.slow
def test_the_page_has_no_grave_fault_for_anybody(browser, running):
    if running.process.poll() is not None:
        running.start()

    def prepare(tab):
        tab.wait_for_selector("body[data-ready]")
        tab.wait_for_selector(".rv-stage[data-shown]")
        # All that opens is open, and a box is chosen.
        tab.evaluate("document.querySelector('details').open = true; openMissed()")
        tab.evaluate("viewer.select(0)")

    assert accessibility_faults(browser, running.link, prepare) == []


AT, TWO = "The mass is at [box 1].", "Masses: [box 1], [box 2] and [box 3] are seen."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "kept", "added", "said"),
    [
        ({}, [0], 0, AT),
        ({}, [0], 1, "The mass is at [box 1] and [box 2]."),
        ({}, [], 1, "The mass is at [box 1]."),
        ({}, [], 0, "There is no mass."),
        ({"polar": True}, [], 0, "No, there is no mass."),
        ({"words": ""}, [], 0, "The mass is at."),
        ({"english": False}, [], 1, "The mass is at [box 1]."),
        ({"text": TWO, "boxes": 3}, [0, 2], 0, "Masses: [box 1], [box 2] are seen."),
        ({"text": TWO, "boxes": 3}, [1, 2], 0, "Masses: [box 1] and [box 2] are seen."),
        ({"text": TWO, "boxes": 3}, [0, 1], 0, "Masses: [box 1], [box 2] are seen."),
        ({"text": TWO, "boxes": 3}, [2], 1, "Masses: [box 1] and [box 2] are seen."),
        ({"text": "There are 2, at [box 1] and [box 2].", "boxes": 2, "counts": True}, [1], 0,
         "There is 1 region of mass, at [box 1]."),
        ({"counts": True}, [0], 1, "There are 2 regions of mass, at [box 1] and [box 2]."),
        ({"text": "No.", "boxes": 0}, [], 1, "The mass is at [box 1]."),
        ({"text": "A mass.", "writes": False}, [0], 1, "A mass."),
        ({"text": "No.", "boxes": 0, "writes": False}, [], 1, "No."),
    ],
)  # fmt: skip
def test_words_that_are_proposed(page, item, kept, added, said):
    plain = {"text": AT, "boxes": 1, "writes": True, "words": "mass", "english": True,
             "polar": False, "counts": False} | item  # fmt: skip
    boxes = [{"kind": "answer", "origin": place} for place in kept]
    boxes += [{"kind": "answer", "origin": None}] * added
    found = page.evaluate(
        """([item, boxes]) => {
          data.items[current] = {...item, boxes: Array(item.boxes).fill([0, 0, 1, 1])};
          return proposal([...boxes, {kind: "missed", origin: null}]);
        }""",
        [plain, boxes],
    )
    assert found == said


@pytest.fixture(scope="module")
def page(browser, running):
    """The review, open in a tab; what it holds is the test's to change."""
    if running.process.poll() is not None:
        running.start()
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(running.link)
    tab.wait_for_selector("body[data-ready]")
    yield tab
    context.close()


def test_pictures_are_served_at_full_resolution_to_who_has_the_link(running):
    if running.process.poll() is not None:
        running.start()
    host, token = running.link.split("/")[2:4]

    def ask(path):
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, answer.getheader("Content-Type"), content

    status, kind, content = ask(f"/{token}/picture/0")
    assert (status, kind) == (200, "image/png")
    with Image.open(io.BytesIO(content)) as shown:
        assert shown.size == (WIDTH, HEIGHT) and shown.mode == "L"
    for path, right in ((f"/{token}/picture/99", 404), (f"/{token}/picture/-1", 404)):
        assert ask(path)[0] == right
    assert ask("/other/picture/0")[0] == 404


def test_a_dicom_image_is_a_picture_of_all_its_pixels_in_its_window(tmp_path):
    levels = np.arange(60 * 80, dtype=np.uint16).reshape(60, 80)
    file = save(tmp_path, dataset_of(levels, 16, WindowCenter=2400, WindowWidth=2400))
    with Image.open(io.BytesIO(full_picture(file))) as shown:
        grey = np.asarray(shown)
    assert grey.shape == (60, 80)
    assert grey[0, 0] == 0 and grey[-1, -1] == 255 and 100 < grey[30, 0] < 160


def test_an_export_that_cannot_be_is_told_in_one_line(running, tmp_path):
    out = [f"--export={tmp_path / 'x'}"]
    with pytest.raises(UserError, match="no review there"):
        review.main([running.flags[0], "--sample=5", f"--out={tmp_path}", *out])
    with pytest.raises(UserError, match="a review of other questions"):
        review.main([running.flags[0], "--sample=4", running.flags[2], *out])
    with pytest.raises(UserError, match="--reader=eve: reviewed by anna, bao"):
        review.main([*running.flags, *out, "--reader=eve"])
    with pytest.raises(UserError, match="no box codec"):
        review.main([*running.flags, *out, "--codec=none"])
    assert not (tmp_path / "x").exists() and os.path.exists(running.out / "review.sqlite")
