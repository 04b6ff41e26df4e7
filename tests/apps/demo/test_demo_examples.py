"""Pictures to begin with, and their truth."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from cxrjax.apps.demo.rendering import CLASSES, TrueBox, asked_about, render_examples
from cxrjax.commands import build

RADIOGRAPHS = Path(__file__).parents[3] / "data/radiographs"


def test_examples_are_the_same_every_time_and_know_what_is_asked_about(tmp_path):
    nowhere = tmp_path / "nowhere"
    examples = render_examples(tmp_path / "a", nowhere)
    again = render_examples(tmp_path / "b", nowhere)
    assert [one[1:] for one in examples] == [one[1:] for one in again]
    assert len({one.sha256 for one in examples}) == len(examples)
    assert all(one.path.is_file() and one.truth for one in examples)
    (detect,) = (one for one in examples if one.question == "detect ILD")
    assert [one.label for one in asked_about(detect.truth, detect.question)] == ["ILD", "ILD"]
    truth = (TrueBox("ILD", (0, 0, 1, 1)), TrueBox("Cardiomegaly", (0, 0, 0.5, 1)))
    assert "Pneumothorax" in CLASSES
    assert asked_about(truth, "detect ild") == truth[:1]
    assert asked_about(truth, "What findings are present?") == truth
    assert asked_about(truth, "Is there Pneumothorax?") == ()


def test_examples_are_radiographs_with_the_lesions_of_the_demo(tmp_path):
    """As `make demo` builds its held-out pictures of them, seed 0 and contrast 1.5."""
    examples = {one.path.stem: one for one in render_examples(tmp_path, RADIOGRAPHS)}
    source = tmp_path / "few"
    for folder, ending in (("images", "jpeg"), ("masks", "png")):
        (source / folder).mkdir(parents=True)
        for name in examples:
            shutil.copy(RADIOGRAPHS / folder / f"{name}.{ending}", source / folder)
    table = (RADIOGRAPHS / "lungs.csv").read_text().splitlines(keepends=True)
    kept = [table[0], *(row for row in table if row.partition(".")[0] in examples)]
    (source / "lungs.csv").write_text("".join(kept))
    built = tmp_path / "built"
    build.main(
        ["--dataset=grafts", f"--source={source}", "--contrast=1.5", "--processes=1"]
        + ["--normal_percent=0", f"--out={built}"]
    )
    for name, example in examples.items():
        assert example.truth
        theirs = np.asarray(Image.open(built / "images" / f"{name}-0.png"))
        np.testing.assert_array_equal(np.asarray(Image.open(example.path)), theirs)
    lungs = examples["IM-0177-0001"].truth
    assert [one.label for one in lungs] == ["right lung", "left lung"]
    assert asked_about(lungs, "Where is the right lung?") == lungs[:1]
    held_out = [row for row in kept[1:] if row.strip().endswith(",validation")]
    assert len(held_out) == len(examples)
