"""Frame doctor: predictions made wrong in each way, right ones, and random ones."""

import functools

import numpy as np
import pytest

from cxrjax.codecs import CODECS
from cxrjax.codecs.frames import smart_resize
from cxrjax.commands.score import main
from cxrjax.evaluation.frame_doctor import Numbers, diagnose, gather
from cxrjax.records import write_records
from tests.evaluation import made

QUESTIONS = 24
MORE = functools.partial(pytest.param, marks=pytest.mark.slow)


def _records(seed=0, questions=QUESTIONS, sides=(1500, 3200)):
    random = np.random.default_rng(seed)
    records = {}
    for number in range(questions):
        height, width = random.integers(*sides, 2).tolist()
        low = random.uniform(0.05, 0.6, (random.integers(1, 4), 2))
        high = np.minimum(low + random.uniform(0.08, 0.35, low.shape), 0.97)
        boxes = np.concatenate([low, high], axis=1) * [width, height, width, height]
        records[f"q{number}"] = made.record_of(
            f"i{number}",
            asked="Lung Opacity",
            boxes=boxes.tolist(),
            kind="Where",
            question_id=f"q{number}",
            image_hw=(height, width),
        )
    return records


RECORDS = _records()


def _right(record, jitter, random):
    height, width = record.image_hw
    boxes = np.array(record.boxes) / [width, height, width, height]
    return np.clip(boxes + random.normal(0, jitter, boxes.shape), 0, 1)


def _predictions(wrong, jitter=0.01, records=RECORDS, seed=1):
    random = np.random.default_rng(seed)
    lines = []
    for record in records.values():
        boxes = wrong(_right(record, jitter, random), *record.image_hw)
        lines.append(made.line_of(record, "There.", boxes.tolist()))
    return made.predictions_of(lines)


def _pixels(boxes, height, width):
    return boxes * [width, height, width, height]


def _square(boxes, height, width, side, by):
    off = np.array([(side - width) // 2, (side - height) // 2] * 2)
    return (_pixels(boxes, height, width) + off) / by


def _smart(boxes, height, width):
    input_height, input_width = smart_resize(height, width, 1_003_520)
    return boxes * [input_width, input_height, input_width, input_height]


def _xywh(boxes):
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


TURNED = [1, 0, 3, 2]
WRONG = {
    "pixels of the image": _pixels,
    "0-100": lambda b, h, w: b * 100,
    "0-1000": lambda b, h, w: b * 1000,
    "0-999": lambda b, h, w: b * 999,
    "0-1023": lambda b, h, w: b * 1023,
    "pixels of a 224 x 224 input": lambda b, h, w: b * 224,
    "pixels of a 896 x 896 input": lambda b, h, w: b * 896,
    "xywh": lambda b, h, w: _xywh(b),
    "of the image mirrored left to right": lambda b, h, w: (
        b[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [1, 0, 1, 0]
    ),
    "xywh pixels of the image": lambda b, h, w: _xywh(_pixels(b, h, w)),
    "y-first": lambda b, h, w: b[:, TURNED],
    "y-first 0-1000": lambda b, h, w: b[:, TURNED] * 1000,
    "of the padded square": lambda b, h, w: _square(b, h, w, max(h, w), max(h, w)),
    "y-first 0-1000 of the padded square": lambda b, h, w: (
        _square(b, h, w, max(h, w), max(h, w))[:, TURNED] * 1000
    ),
    "of the centre crop": lambda b, h, w: _square(b, h, w, min(h, w), min(h, w)),
    "of the long side, along x and y": lambda b, h, w: _pixels(b, h, w) / max(h, w),
    "pixels of Qwen2.5-VL's input of at most 1,003,520 pixels": _smart,
    "0-1000 (they were divided by the image's size)": lambda b, h, w: b * 1000 / [w, h, w, h],
    "pixels of the image (they were divided by 1000)": lambda b, h, w: _pixels(b, h, w) / 1000,
}


# Made of two that are told one by one, or of the same kind as another.
ALIKE = ("0-1023", "pixels of a 224 x 224 input", "xywh pixels of the image", "y-first 0-1000")


@pytest.mark.parametrize("frame", [MORE(name) if name in ALIKE else name for name in WRONG])
def test_a_wrong_frame_is_told(frame):
    jitter = 0.0 if frame == "0-999" else 0.003
    found = diagnose(gather(RECORDS, _predictions(WRONG[frame], jitter), None))
    assert found is not None
    assert found.frame == frame
    assert found.f1[0] <= found.f1[1]
    assert found.f1[1] > 0.95
    assert found.miou[0] < 0.8 < 0.9 < found.miou[1]


@pytest.mark.parametrize("frame", ["of the padded square", "of the centre crop"])
@pytest.mark.parametrize(
    ("records", "jitter"),
    [
        # Images that are nearly square, and boxes that are not quite right.
        (_records(sides=(2200, 3100), questions=80), 0.003),
        # Few are enough where nothing else is wrong.
        (_records(5, 20, sides=(1500, 1800)), 0.0),
    ],
    ids=["nearly_square", "few"],
)
def test_a_frame_that_moves_boxes_by_little_is_told(frame, records, jitter):
    found = diagnose(gather(records, _predictions(WRONG[frame], jitter, records), None))
    assert found is not None
    assert found.frame == frame


@pytest.mark.parametrize(("jitter", "seed"), [(0.0, 0), (0.02, 1), (0.05, 2)])
def test_right_boxes_are_left_alone(jitter, seed):
    lines = _predictions(lambda b, h, w: b, jitter, seed=seed)
    assert diagnose(gather(RECORDS, lines, None)) is None


@pytest.mark.parametrize("seed", [0, MORE(1)])
@pytest.mark.parametrize("by", [[-0.08, -0.08, 0.08, 0.08], [0.05] * 4, [0.02, 0.02, -0.02, -0.02]])
def test_boxes_a_little_off_are_in_no_other_frame(by, seed):
    lines = _predictions(lambda b, h, w: np.clip(b + np.array(by), 0, 1), seed=seed)
    assert diagnose(gather(RECORDS, lines, None)) is None


@pytest.mark.parametrize(("scale", "seed"), [(1.0, 0), MORE(1.0, 1), MORE(1.0, 2), (1000.0, 3)])
def test_random_boxes_fit_nowhere(seed, scale):
    random = np.random.default_rng(seed)

    def drawn(boxes, height, width):
        corners = np.sort(random.uniform(0, 1, (len(boxes), 2, 2)), axis=1)
        return corners.reshape(-1, 4) * scale

    assert diagnose(gather(RECORDS, _predictions(drawn), None)) is None


@pytest.mark.parametrize("seed", [0, MORE(1), MORE(2)])
def test_boxes_of_other_images_fit_nowhere(seed):
    """They are as large as true ones and where these mostly are."""
    others = list(_records(seed + 10).values())
    random = np.random.default_rng(seed)

    def borrowed(boxes, height, width):
        return _right(others[random.integers(len(others))], 0, random) * 0.8

    assert diagnose(gather(RECORDS, _predictions(borrowed), None)) is None


def test_few_images_say_nothing_however_many_their_questions():
    few = dict(list(RECORDS.items())[:4])
    lines = _predictions(WRONG["y-first"], records=few)
    assert diagnose(gather(few, lines, None)) is None
    assert diagnose(gather(RECORDS, [], None)) is None
    few = {}
    for copy in range(10):
        for name, record in list(RECORDS.items())[:4]:
            few[f"{name}.{copy}"] = record.model_copy(update={"question_id": f"{name}.{copy}"})
    assert diagnose(gather(few, _predictions(WRONG["y-first"], records=few), None)) is None


WRITTEN = {
    "chexagent": (lambda b: "<|box|>({:.2f},{:.2f}),({:.2f},{:.2f})<|/box|>".format(*b), ""),
    "internvl": (lambda b: "<box>[[{}, {}, {}, {}]]</box>".format(*(b * 100).round()), "0-100"),
    "gemini_json": (lambda b: "box_2d: [{}, {}, {}, {}]".format(*(b * 1000).round()), "x-first"),
    "radvlm": (lambda b: "[{:.0f}, {:.0f}, {:.0f}, {:.0f}]".format(*b * 100), "0-100"),
}


@pytest.mark.parametrize("codec", WRITTEN)
def test_boxes_in_text_are_read_in_other_frames_too(codec):
    write, frame = WRITTEN[codec]
    random = np.random.default_rng(1)
    texts = {
        name: " ".join(write(box) for box in _right(record, 0, random))
        for name, record in RECORDS.items()
    }
    lines = made.predictions_of({"question_id": n, "text": text} for n, text in texts.items())
    found = diagnose(gather(RECORDS, lines, CODECS[codec]))
    assert found is not None
    assert frame in found.frame
    assert found.f1[1] > 0.9


def test_the_command_tells_and_applies_nothing(tmp_path, capsys):
    records = list(RECORDS.values())[:12]
    write_records(tmp_path / "records.jsonl", records)
    random = np.random.default_rng(0)
    for system, order in (("right", [0, 1, 2, 3]), ("turned", TURNED)):
        lines = [
            made.line_of(record, "Lung opacity.", _right(record, 0.003, random)[:, order].tolist())
            for record in records
        ]
        made.write_lines(tmp_path / f"{system}.jsonl", lines)
    main(made.flags_of(tmp_path, "right", "turned", out="plain", resamples=0))
    assert "boxes fit" not in capsys.readouterr().out
    main([*made.flags_of(tmp_path, "right", "turned", out="told", resamples=0), "--diagnose"])
    printed = capsys.readouterr().out
    assert "turned: boxes fit y-first: F1 0." in printed
    assert "right: boxes fit" not in printed
    plain, told = ((tmp_path / out / "metrics.json").read_text() for out in ("plain", "told"))
    assert plain == told


def test_what_fits_the_truth_of_any_image_better_is_no_frame():
    """All true boxes are large and in the middle, the predicted ones there and small."""
    random, many = np.random.default_rng(0), 40

    def in_the_middle(half, deviation):
        middle = 0.5 + random.normal(0, 0.05, (many, 2))
        half = half + random.normal(0, deviation, (many, 2))
        return np.clip(np.concatenate([middle - half, middle + half], axis=1), 0, 1)

    truth, small, each = in_the_middle(0.3, 0.03), in_the_middle(0.15, 0.05), np.arange(many)
    sizes = np.full((many, 2), 1000.0)
    assert diagnose(Numbers(small, small, each, list(truth[:, None]), sizes, each)) is None
