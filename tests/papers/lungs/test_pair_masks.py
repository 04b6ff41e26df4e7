"""Masks by number paired with images: drawn sets whose pairs are known."""

import csv
import itertools
import re

import numpy as np
import PIL.Image
import pytest

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.tools import pair_masks


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels.astype(np.uint8)).save(path)


def drawn_set(folder, seed=0, count=80):
    """Images, masks by number of about half of them, predicted masks; the true pairs."""
    rng = np.random.default_rng(seed)
    truth, number = {}, 0
    # In two blocks, the later names first, as V7 has them.
    for n in (*range(count // 2, count), *range(count // 2)):
        # Every third has a size of its own, the others one of two.
        height, width = (100 + n, 120) if n % 3 == 0 else (90, 100 + 10 * (n % 2))
        top, bottom = rng.uniform(0.05, 0.4), rng.uniform(0.6, 0.95)
        inner, outer = rng.uniform(0.03, 0.1), rng.uniform(0.25, 0.45)
        y, x = np.mgrid[:height, :width] + 0.5
        y, x = y / height, np.abs(x / width - 0.5)
        mask = (y > top) & (y < bottom) & (x > inner) & (x < outer)
        name = f"person{n + 100}_virus_{n + 1}"
        save(folder / "images" / f"{name}.png", np.full((height, width), 90))
        guessed = (y > top + 0.01) & (y < bottom) & (x > inner) & (x < outer - 0.01)
        save(folder / "predicted" / f"{name}.png", 255 * guessed)
        if rng.random() < 0.7:
            number += 1 + int(rng.random() < 0.2)
            save(folder / "masks" / f"{number}.png", 255 * mask)
            truth[f"{name}.png"] = str(number)
    return truth


def paired(folder, *more):
    flags = [f"--{name}={folder / name}" for name in ("images", "masks", "predicted")]
    pair_masks.main([*flags, f"--out={folder}-out", *more])
    with open(f"{folder}-out/lungs.csv", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def test_a_drawn_set_is_paired_as_it_was_drawn(tmp_path, capsys):
    truth = drawn_set(tmp_path / "set")
    found = paired(tmp_path / "set")
    given = {name: row["v7_mask"] for name, row in found.items() if row["v7_mask"]}
    assert {name: truth.get(name) for name in given} == given
    assert len(given) >= 0.85 * len(truth)  # nothing beyond a block's outer anchors
    probabilities = [float(found[name]["pair_probability"]) for name in given]
    assert sum(one < 1 for one in probabilities) >= 10 and min(probabilities) > 0.5
    said = r"turn: (\d+) of \d+ got a mask, (\d+) the right"
    given_back, right = re.search(said, capsys.readouterr().out).groups()
    assert int(given_back) == int(right) >= 8
    source = tmp_path / "set-out"
    (tmp_path / "set" / "images").rename(source / "images")
    build.main(["--dataset=lungs", f"--source={source}", f"--out={tmp_path}/b", "--processes=1"])


def test_probabilities_are_those_of_all_matchings_in_order():
    logs = np.random.default_rng(1).normal(0, 2, (3, 4))
    logs[1, 2] = -np.inf
    weights = np.exp(logs)
    total, having = 0.0, np.zeros((3, 4))
    for size in range(4):
        for rows in itertools.combinations(range(3), size):
            for columns in itertools.combinations(range(4), size):
                weight = np.prod(weights[rows, columns])
                total += weight
                having[rows, columns] += weight
    assert pair_masks.match_probabilities(logs) == pytest.approx(having / total)


def test_one_of_two_images_of_a_size_is_no_anchor():
    assert pair_masks.find_anchors([(1, 1), (1, 1), (2, 2), None], [(2, 2), (1, 1)]) == {2: 0}


def test_too_few_anchors_are_said(tmp_path):
    drawn_set(tmp_path / "set", count=9)
    with pytest.raises(UserError, match=r"masks have a size that one image alone has; expected 10"):
        paired(tmp_path / "set")
