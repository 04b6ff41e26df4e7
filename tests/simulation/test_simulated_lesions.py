"""Simulated lesions: exact boxes, inside the anatomy, as strong as asked, the same every time."""

import csv
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from scipy import ndimage

from cxrjax.records_io.quality import Unusable
from cxrjax.simulation import compose
from cxrjax.simulation.anatomy import LEFT, RIGHT
from cxrjax.simulation.chest import read_chest
from cxrjax.simulation.compose import LesionImage, simulate_lesions
from cxrjax.simulation.findings import CLASSES, Presence
from cxrjax.simulation.lesion_signs import SHAPES, SIGNS, Places
from tests.simulation.rendered_chest import SIDE, rendered_chest

ORGANS = ("Cardiomegaly", "Aortic enlargement")
REAL = Path(__file__).parents[4] / "shared" / "real_lungs"


IMAGE, MASK = rendered_chest()
# Borders as crisp as those of a film.
CRISP, _ = rendered_chest(softness=0.003)


def simulated(label, key="chest", strength=1.0, seed=0, image=IMAGE) -> LesionImage:
    return simulate_lesions(image, MASK, seed, key, [Presence(label, 3, (strength,))])


def difference(one: LesionImage) -> np.ndarray:
    return one.image.astype(int) - IMAGE


def chest_of(image: np.ndarray):
    return read_chest(image.astype(np.float32) / 255, MASK)


def test_every_class_is_simulated_the_same_every_time():
    assert {*SHAPES, *ORGANS} == set(CLASSES) and {*SHAPES} == set(SIGNS)
    with pytest.raises(Unusable, match="1 lungs"):
        simulate_lesions(IMAGE, MASK & (np.arange(SIDE) < SIDE // 2), 0, "chest", None)
    first, again = simulated("Nodule/Mass"), simulated("Nodule/Mass")
    assert np.array_equal(first.image, again.image) and first.lesions == again.lesions
    assert repr(first.readers) == repr(again.readers)
    assert simulated("Nodule/Mass", key="other").lesions != first.lesions
    assert simulated("Nodule/Mass", seed=1).lesions != first.lesions


@pytest.mark.parametrize("label", SHAPES)
def test_box_is_the_extent_of_the_difference_inside_the_lungs_and_the_picture(label):
    near = ndimage.binary_dilation(MASK, iterations=round(0.06 * SIDE))
    for key in ("a", "b", "c"):
        one = simulated(label, key)
        change = difference(one)
        rows, columns = (np.flatnonzero(change.any(axis=k)) for k in (1, 0))
        extent = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert np.abs(np.subtract(extent, one.lesions[0].box)).max() <= 1
        assert one.labels == [label]
        assert not change[~near].any()
        x0, y0, x1, y1 = one.lesions[0].box
        assert 0 < x0 < x1 < SIDE and 0 < y0 < y1 < SIDE
        change[y0:y1, x0:x1] = 0
        assert not change.any()


def test_without_findings_the_picture_stays_and_a_dial_is_for_all_lesions():
    plain = simulate_lesions(IMAGE, MASK, 0, "chest", [])
    assert np.array_equal(plain.image, IMAGE)
    assert not plain.lesions and not any(plain.readers.values())
    presences = [Presence("Nodule/Mass", 3, (0.5,))]
    faint, plain = (simulate_lesions(IMAGE, MASK, 0, "k", presences, c).lesions[0] for c in (1, 2))
    assert plain.contrast_to_noise == pytest.approx(2 * faint.contrast_to_noise, rel=0.1)


@pytest.mark.parametrize("label", ["Nodule/Mass", "Lung Opacity", "Infiltration", "ILD"])
@pytest.mark.parametrize("strength", [0.6, 1.0])
def test_contrast_to_noise_is_as_asked(label, strength):
    one = simulated(label, strength=strength)
    asked = SIGNS[label]["contrast_to_noise"] * strength
    assert one.lesions[0].contrast_to_noise == pytest.approx(asked, rel=0.1)
    # By another way: the mean change of the half that changed most, over the texture there.
    chest, change = chest_of(IMAGE), np.abs(difference(one))
    core = change > 0.45 * np.percentile(change[change > 0], 98)
    ratio = change[core].mean() / (255 * chest.texture[core].mean())
    assert ratio == pytest.approx(asked, rel=0.4)


def test_two_of_a_class_are_seen_as_two():
    both = [Presence("Pleural thickening", 3, (1.0, 1.0))]
    for key in range(16, 32):
        boxes = [x.box for x in simulate_lesions(IMAGE, MASK, 0, str(key), both).lesions]
        low, high = np.max(boxes, 0)[:2], np.min(boxes, 0)[2:]
        smaller = min(np.prod(np.subtract(box[2:], box[:2])) for box in boxes)
        shared = np.prod(np.clip(high - low, 0, None)) if len(boxes) > 1 else 0
        assert shared < 0.5 * smaller, (key, boxes)


def test_grain_and_pleural_lines_are_those_of_a_radiograph():
    """The finest differences between neighbours are as large within a lesion as before."""
    for label in ("Lung Opacity", "Consolidation", "Pleural effusion"):
        one = simulated(label, strength=1.2)
        x0, y0, x1, y1 = one.lesions[0].box
        inside = (picture[y0:y1, x0:x1].astype(float) for picture in (IMAGE, one.image))
        before, after = (np.diff(part, 2).std() for part in inside)
        assert after == pytest.approx(before, rel=0.15)
    for key in "abcdef":
        change = difference(simulated("Pneumothorax", key))
        air, line = change < -3, change > 3
        at_air = line & ndimage.binary_dilation(air, iterations=3)
        # As long as the air is high, and about as bright as the air is dark.
        assert at_air.sum() > 0.8 * np.ptp(np.flatnonzero(air.any(axis=1)))
        assert change[at_air].max() > -0.6 * np.percentile(change[air], 10)


def test_heart_is_enlarged_beyond_half_the_chest():
    before = chest_of(IMAGE).cardiothoracic_ratio()
    for strength in (0.7, 1.2):
        one = simulated("Cardiomegaly", strength=strength)
        after = chest_of(one.image)
        assert after.cardiothoracic_ratio() > max(0.5, before + 0.03)
        x0, y0, x1, y1 = one.lesions[0].box
        rows = slice(y0, y1)
        assert after.hearts[RIGHT][rows].min() == pytest.approx(x0, abs=0.03 * SIDE)
        assert after.hearts[LEFT][rows].max() == pytest.approx(x1, abs=0.03 * SIDE)


def test_the_arch_bulges_within_its_box_and_black_is_full():
    one = simulated("Aortic enlargement", strength=1.2)
    _, y0, x1, y1 = one.lesions[0].box
    before, after = (chest_of(picture).hearts[LEFT] for picture in (IMAGE, one.image))
    middle = slice(round(0.65 * y0 + 0.35 * y1), round(0.35 * y0 + 0.65 * y1))
    assert (after - before)[middle].mean() > 0.01 * SIDE
    assert after[y0:y1].max() < x1 + 0.03 * SIDE
    # What transmits nothing has no room for more, and no pixel of a picture is no number.
    through = np.full((40, 40), -1e-8, np.float32)
    lack = compose._lack(through, np.ones_like(through), np.zeros_like(through), 0.3, 2.0)
    assert (lack == 0).all()


def test_air_is_darker_and_without_markings():
    def markings(picture):
        fine, coarse = (ndimage.gaussian_filter(picture.astype(float), k) for k in (0.9, 3))
        return fine - coarse

    before = markings(IMAGE)
    for key in "abcdef":
        change = difference(simulated("Pneumothorax", key, 1.2))
        beyond = change < -4
        assert beyond.sum() > 0.02 * MASK.sum()
        after = markings(IMAGE + change)
        deep = ndimage.binary_erosion(beyond, iterations=3)
        assert after[deep].std() < 0.85 * before[deep].std()


def test_fluid_lies_in_the_costophrenic_angle_and_climbs_at_the_wall():
    rows = np.flatnonzero(MASK.any(axis=1))
    for key in "abcd":
        one = simulated("Pleural effusion", key, 1.2)
        x0, _, x1, y1 = one.lesions[0].box
        assert y1 > rows[-1] - 0.06 * SIDE
        changed = difference(one) > 3
        tops = np.where(changed.any(axis=0), changed.argmax(axis=0), SIDE)[x0:x1]
        lateral, medial = (tops[:8], tops[-8:]) if x1 < SIDE / 2 else (tops[-8:], tops[:8])
        assert lateral.min() < medial.min()


def test_the_heart_leaves_no_outline_where_its_border_was():
    one = simulated("Cardiomegaly", image=CRISP)
    before, after = (chest_of(picture).hearts[LEFT] for picture in (CRISP, one.image))
    rows = np.flatnonzero((after - before > 8) & MASK.any(axis=1))
    assert len(rows) > 20

    def outline(picture: np.ndarray) -> np.ndarray:
        fine = picture - ndimage.gaussian_filter(picture.astype(float), 2)
        columns = np.round(before[rows]).astype(int)
        return np.array([fine[rows, columns + k].mean() for k in range(-4, 5)])

    then, now = outline(CRISP), outline(one.image)
    assert (then * now).sum() < 0.1 * (then * then).sum()


@pytest.mark.parametrize(
    "label", ["Nodule/Mass", "Consolidation", "Lung Opacity", "Infiltration", "Other lesion"]
)
def test_no_lesion_is_cut_off_by_its_window(label):
    chest = chest_of(IMAGE)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        weight = SHAPES[label](Places(chest, rng), SIGNS[label]).weight
        assert max(part.max() for part in (weight[0], weight[-1], weight[:, 0], weight[:, -1])) == 0


def test_thick_pleura_lies_at_the_wall_not_beside_the_mediastinum():
    columns = np.arange(SIDE)
    for key in "abcdefgh":
        change = difference(simulated("Pleural thickening", key, 1.2))
        for lung, side in zip(np.split(MASK, 2, axis=1), (RIGHT, LEFT), strict=True):
            top = np.flatnonzero(lung.any(axis=1))[0]
            for row in range(top + round(0.06 * SIDE), SIDE):
                own = np.flatnonzero(MASK[row] & ((columns - SIDE // 2) * side > 0))
                if len(own):
                    inner = own.min() if side == LEFT else own.max()
                    beyond = ((columns - inner) * side < 0) & ((columns - SIDE // 2) * side > 0)
                    assert not change[row][beyond].any()


def test_fluid_hides_the_diaphragm_and_leaves_the_chest_wall_alone():
    outer = ndimage.binary_dilation(MASK, np.ones((1, 9)))
    below = np.cumsum(MASK, axis=0) > 0
    seams = []
    for key in "abcd":
        one = simulated("Pleural effusion", key, 1.2, image=CRISP)
        change = one.image.astype(int) - CRISP
        assert not change[~outer & ~below].any()
        columns = np.flatnonzero((change > 3).sum(axis=0) > 0.12 * SIDE)
        bottom = np.array([np.flatnonzero(MASK[:, x])[-1] for x in columns])
        down = np.array([one.image[bottom + k, columns].mean() for k in range(-9, 6)])
        seams.append(down[:3].mean() - down.min())
    assert np.mean(seams) < 12


@pytest.mark.skipif(not REAL.is_dir(), reason="no real radiographs beside the repository")
def test_real_radiographs():
    with open(REAL / "lungs.csv", newline="") as table:
        rows = [r for r in csv.DictReader(table) if r["finding"] == "normal" and r["right_lung"]]
    for row in rows[:60:10]:
        image = np.asarray(PIL.Image.open(REAL / "images" / row["file"]).convert("L"))
        name = Path(row["file"]).stem + ".png"
        mask = np.asarray(PIL.Image.open(REAL / "masks" / name)) > 0
        one = simulate_lesions(image, mask, 0, row["file"], contrast=1.5)
        assert one.lesions and one.image.shape == image.shape
        changed = one.image != image
        outside = ~ndimage.binary_dilation(mask, iterations=round(0.06 * SIDE))
        if not {*one.labels} & {*ORGANS}:
            assert not (changed & outside).any()


def test_grain_elsewhere_makes_a_lesion_no_stronger():
    image, mask = rendered_chest()
    presences = [Presence("Nodule/Mass", 3, (1.0,))]
    plain = simulate_lesions(image, mask, 0, "chest", presences)
    x0, y0, x1, y1 = plain.lesions[0].box
    here = (slice(y0 - SIDE // 8, y1 + SIDE // 8), slice(x0 - SIDE // 8, x1 + SIDE // 8))
    grainy = image + np.random.default_rng(0).normal(0, 12, image.shape)
    grainy[here] = image[here]
    grainy = np.clip(grainy, 0, 255).astype(np.uint8)
    other = simulate_lesions(grainy, mask, 0, "chest", presences)
    changes = [
        np.abs(one.image[here].astype(int) - before[here]).sum()
        for one, before in ((plain, image), (other, grainy))
    ]
    assert changes[1] == pytest.approx(changes[0], rel=0.1)
