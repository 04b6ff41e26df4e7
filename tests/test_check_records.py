"""`python -m cxrjax.check_records`: every problem by line and field, and a page of true samples."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from cxrjax.apps import record_check
from cxrjax.boxes import iou
from cxrjax.commands import build, check_records
from cxrjax.errors import UserError
from cxrjax.input_pipeline.examples import QuestionEncoder
from cxrjax.records_io.quality import REASONS
from cxrjax.training.config_file import load_config
from tests.apps.annotations.samples import draw_images
from tests.apps.html_tree import Tree
from tests.apps.rows import ROWS
from tests.apps.servers import ROOT, run_as_command

CONFIG = str(ROOT / "configs" / "records_lora.py")


def record(number: int, **fields) -> dict:
    """A record about image <number>.png, 60 high and 80 wide."""
    image_id = f"image-{number}"
    answer = {"text": "Yes, there is ILD at <loc_10_20_40_50>.", "labels": ["ILD"]}
    answer["boxes_by_image"] = {image_id: [[10.2, 19.7, 40.0, 50.0]]}
    told = {"dataset": "custom", "image_id": image_id, "image_path": f"images/{number}.png"}
    told |= {"question_id": f"q{number}", "question": "Is there any ILD?"}
    return told | {"question_type": "Is_there", "answers": [answer]} | fields


def answered(text: str, boxes: list, **fields) -> list:
    return [{"text": text, "boxes_by_image": {"image-0": boxes}} | fields]


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(ROOT)  # the configuration's base is named from there
    names = [f"{number}.png" for number in range(6)]
    return draw_images(tmp_path / "source" / "images", names).parent


def check(source: Path, lines: list, *flags: str, config=True) -> tuple[int, dict]:
    """Exit code and content of check.json."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (source / "records.jsonl").write_text(text + "\n", encoding="utf-8")
    out = source.parent / "out"
    words = [str(source), *[f"--config={CONFIG}"][:config], f"--out={out}", "--processes=1"]
    return check_records.main([*words, *flags]), json.loads((out / "check.json").read_text())


def refused(source: Path, lines: list, *flags: str, config=True) -> dict:
    """The one problem that there is."""
    code, result = check(source, lines, *flags, config=config)
    (problem,) = result["problems"]
    assert code == 2
    return problem


def page_of(source: Path) -> str:
    return (source.parent / "out" / "index.html").read_text()


def test_sound_records_end_with_0_and_nothing_needs_to_be_built(source, capsys):
    code, result = check(source, [record(n) for n in range(6)])
    assert code == 0
    assert (result["questions"], result["images"], result["usable"]) == (6, 6, 6)
    assert result["problems"] == [] and result["warnings"] == {}
    assert "6 of 6 questions usable, on 6 images" in capsys.readouterr().out


LONG = "Is there any ILD? " * 20
PROBLEMS = [
    *((record(0, **fields), *told) for fields, *told in ROWS["problems_of_records"]),
    ("{", "invalid_record", "line", "Invalid JSON"),
    (record(0, question=LONG), "prefix_too_long", "question", "expected at most 24"),
    (record(0, answers=answered(LONG, [])), "answer_too_long", "answers", "expected at most 48"),
]


@pytest.mark.parametrize(("bad", "reason", "field", "found"), PROBLEMS)
def test_each_problem_has_line_field_and_remedy(source, capsys, bad, reason, field, found):
    code, result = check(source, [record(2), record(4), bad])
    assert code == 2 and result["usable"] == 2 and result["counts"] == {reason: 1}
    (problem,) = result["problems"]
    assert (problem["where"], problem["field"]) == ("records.jsonl:3", field)
    assert found in problem["found"], problem
    assert problem["remedy"]
    printed = capsys.readouterr().out
    assert f"records.jsonl:3: {field}: {reason}" in printed and problem["remedy"] in printed


def test_every_reason_has_a_remedy_and_boxes_of_the_text_are_held_against_the_record(source):
    bad = record(0, answers=answered("At <loc_10_20_40_50>.", [[10, 20, 40, 58]]))
    problem = refused(source, [bad])
    assert problem["reason"] == "box_mismatch"
    assert "[10.0, 20.0, 40.0, 50.0] is not in boxes_by_image" in problem["found"]
    assert "the nearest is [10.0, 20.0, 40.0, 58.0]" in problem["found"]
    assert set(record_check.REMEDIES) <= set(REASONS)
    source = (ROOT / "cxrjax" / "records_io" / "own_records.py").read_text()
    named = set(re.findall(r'"(\w+)"', source)) & set(REASONS)
    assert named and named <= set(record_check.REMEDIES)


def test_texts_and_notations_of_a_file_are_read_as_configured(source):
    lines = "\ufeff" + json.dumps(record(0)) + "\r\n" + json.dumps(record(1))
    code, result = check(source, [lines])
    assert code == 0 and result["usable"] == 2
    problem = refused(source, [record(0) | GEMEX, record(1)], config=False)
    assert (problem["reason"], problem["where"]) == ("box_text", "records.jsonl:1")


def last_line(capsys) -> list[str]:
    return shlex.split(capsys.readouterr().out.splitlines()[-1])


def test_the_last_line_is_the_train_command_with_all_that_the_data_need(source, capsys):
    boxes = [[x, 20, x + 5, 30] for x in range(0, 50, 5)]
    text = " ".join("<loc_{}_{}_{}_{}>".format(*box) for box in boxes)
    told = [{"text": text, "boxes_by_image": {"image-1": boxes}}]
    lines = [record(0, question="Is there any ILD? " * 12), record(1, answers=told)]
    code, result = check(source, lines)
    assert code == 2 and set(result["counts"]) == {"prefix_too_long", "answer_too_long"}
    words = last_line(capsys)
    assert words[:3] == ["python", "-m", "cxrjax.train"]
    assert "--config.data.max_boxes=10" in words
    # With them every question fits.
    settings = [word for word in words[5:] if "_buckets" in word or "max_" in word]
    assert len(settings) == 4
    assert check(source, lines, *settings)[0] == 0
    assert set(settings) <= set(last_line(capsys))


def test_a_build_is_checked_with_its_other_splits(source, capsys):
    long = record(5, question="Is there any ILD? " * 12, split="validation")
    lines = [record(n, split="train") for n in range(4)] + [long]
    (source / "records.jsonl").write_text("\n".join(map(json.dumps, lines)))
    out = source.parent / "built"
    build.main(["--dataset=records", f"--source={source}", f"--out={out}", "--processes=1"])
    words = [str(out), f"--config={CONFIG}", f"--out={source.parent / 'out'}", "--processes=1"]
    assert check_records.main(words) == 0
    train = last_line(capsys)
    assert f"--config.data.train={out / 'records/train.jsonl'}" in train
    assert f"--config.data.validation={out / 'records/validation.jsonl'}" in train
    assert any(word.startswith("--config.data.prefix_buckets=(") for word in train)


def test_all_problems_of_a_record_are_told_at_once(source):
    fields = record(0, colour="red", image_hw=[0, 4])
    del fields["question"]
    boxes = [[1, 2, 81, 4], [5, 2, 5, 4]]
    _, result = check(source, [fields, record(1), record(0, answers=answered("Yes.", boxes))])
    found = [(problem["where"][-1], problem["field"]) for problem in result["problems"]]
    boxes_of = "answers.0.boxes_by_image.image-0."
    first = [("1", field) for field in ("colour", "image_hw", "question")]
    assert sorted(found) == [*first, ("3", f"{boxes_of}0"), ("3", f"{boxes_of}1")]
    assert (result["questions"], result["usable"]) == (3, 1)


def test_splits_that_cannot_be_and_a_file_without_records(source):
    of_p = {"patient_id": "p"}
    lines = [record(0, split="train", **of_p), record(1, split="test", **of_p), record(2)]
    code, result = check(source, lines)
    assert code == 2 and result["counts"] == {"split_conflict": 2}
    assert [problem["where"][-1] for problem in result["problems"]] == ["2", "3"]
    for lines in ([], ["\n"]):
        with pytest.raises(UserError, match="no records in it"):
            check(source, lines)


def test_what_is_odd_is_counted_and_no_error(source):
    unwritten = record(1)
    unwritten["answers"][0]["text"] = "Yes, there is ILD."
    lost = {"text": "Yes.", "boxes_by_image": {"Image-2": [[10, 20, 40, 50]]}}
    code, result = check(source, [record(0, answers=[]), unwritten, record(2, answers=[lost])])
    assert code == 0 and result["usable"] == 3
    assert sorted(text.split(":")[0] for text in result["warnings"]) == [
        "answers whose boxes the model does not learn",
        "answers with boxes of other images than the record's, which count not",
        "questions without an answer",
    ]


def _sides(rect) -> list[float]:
    return [float(rect[name]) for name in ("x", "y", "width", "height")]


def test_the_page_shows_what_the_tokens_say(source):
    check(source, [record(0)])
    root = Tree(page_of(source)).root
    prompt, target = (one.text for one in root.all("pre"))
    assert prompt.strip() == "Is there any ILD?"
    assert re.fullmatch(r"Yes, there is ILD at (<loc\d{4}>){4}\s?\.", target)
    (picture,) = root.all("image")
    assert picture["href"].startswith("data:image/jpeg;base64,")
    (svg,) = (one for one in root.all("svg") if "viewbox" in one.attributes)
    size = [float(side) for side in svg["viewbox"].split()[2:]] * 2
    read, true = (
        np.divide(_sides(next(svg.all("rect", kind))), size) for kind in ("tokens", "record")
    )
    # Pixels over the image's size; the tokens have 1024 bins of the whole pixels in the text.
    np.testing.assert_allclose(true, [10.2 / 80, 19.7 / 60, 29.8 / 80, 30.3 / 60], atol=1e-4)
    np.testing.assert_allclose(read, [10 / 80, 20 / 60, 30 / 80, 30 / 60], atol=2 / 1024)


def test_boxes_of_a_letterboxed_image_are_moved_with_it(source, tmp_path):
    (source / "records.jsonl").write_text(json.dumps(record(0)) + "\n")
    config = load_config(CONFIG, ["--config.data.geometry=letterbox"])
    checked = record_check.check_file(source, config, tmp_path / "out")
    encoder = checked.encoder
    side = encoder.config.image_size
    of_its_aspect = ((side, side), (3 * side // 4, side))
    on_grids = dataclasses.replace(encoder.config, grids=of_its_aspect)
    for config, size, expected in (
        # 60 x 80 in a square: a border of 10 / 80 above and below.
        (encoder.config, of_its_aspect[0], (10 / 80, (20 + 10) / 80, 30 / 80, 30 / 80)),
        (on_grids, of_its_aspect[1], (10 / 80, 20 / 60, 30 / 80, 30 / 60)),
    ):
        encoder = QuestionEncoder(encoder.tokenizer, config)
        encoded = encoder.encode(checked.usable[0].line.record)
        asked = dataclasses.replace(checked.usable[0], encoded=encoded)
        view = record_check.model_view(asked, encoder)
        ((x, y, width, height),) = (box.values() for box in view["boxes"])
        assert view["input_hw"] == size
        found = (x / size[1], y / size[0], width / size[1], height / size[0])
        np.testing.assert_allclose(found, expected, atol=2 / 1024)
        assert view["lowest_iou"] > 0.95


def test_samples_are_drawn_by_seed_and_cannot_break_the_page(source):
    def ids(*flags):
        check(source, [record(n) for n in range(6)], *flags)
        return re.findall(r"<h3>(q\d)", page_of(source))

    assert len(set(ids())) == 6
    assert ids("--samples=3") == ids("--samples=3") and len(ids("--samples=3")) == 3
    assert ids("--samples=3") != ids("--samples=3", "--seed=1")
    bad = record(0, question="<script>alert(1)</script>")
    check(source, [bad, record(1, image_path="<script>")])
    html = page_of(source)
    assert "<script>alert" not in html and 'image_path "<script>' not in html


def test_a_mixture_needs_a_source_and_takes_its_prompt(source):
    (source / "records.jsonl").write_text(json.dumps(record(0)) + "\n")
    words = [str(source), f"--config={ROOT / 'configs' / 'mixture.py'}:tiny", "--processes=1"]
    words.append(f"--out={source.parent / 'out'}")
    with pytest.raises(UserError, match=r"--source=NAME.* one of cxr_qba, gemex, vindr"):
        check_records.main(words)
    assert check_records.main([*words, "--source=vindr"]) == 0
    # GEMeX's prompt begins with an instruction that this record does not have.
    assert check_records.main([*words, "--source=gemex"]) == 2
    (problem,) = json.loads((source.parent / "out" / "check.json").read_text())["problems"]
    assert (problem["reason"], problem["field"]) == ("not_encodable", "question")


GEMEX = {"dataset": "gemex", "answers": answered("At <location>[[28, 75, 112, 187]]", [])}


def test_without_a_configuration_answers_are_read_as_their_data_set_writes_boxes(source, capsys):
    boxes = [[28 / 224 * 80, 75 / 224 * 60, 40.0, 187 / 224 * 60]]
    text = GEMEX["answers"][0]["text"]
    lines = [record(n, dataset="gemex", answers=answered(text, [])) for n in (0, 1)]
    lines[0]["answers"] = answered(text, boxes)
    code, result = check(source, lines, config=False)
    # The second has boxes in its text alone: gemex's notation was understood.
    assert code == 2 and [p["reason"] for p in result["problems"]] == ["box_mismatch"]
    assert "data.record_codec='gemex'" in capsys.readouterr().out
    assert check(source, lines[:1], config=False)[0] == 0
    capsys.readouterr()
    assert check(source, [record(0)], config=False)[0] == 0
    assert "record_codec" not in capsys.readouterr().out


@pytest.mark.parametrize("flag", [f"--config={CONFIG}", "--config.data.record_codec=vindr_px"])
def test_what_is_given_decides_and_the_remedy_names_the_flag(source, flag):
    problem = refused(source, [record(0) | GEMEX], flag, config=False)
    assert problem["reason"] == "box_text"
    assert "--config.data.record_codec=NAME" in problem["remedy"]


def test_the_process_ends_with_2_and_one_line_for_what_cannot_be(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    words = [str(tmp_path / "none.jsonl"), f"--out={tmp_path}"]
    assert run_as_command("check_records", *words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and "none.jsonl" in last
    with pytest.raises(SystemExit) as end:
        check_records.main(["x.jsonl", "--samples=0"])
    assert end.value.code == 2 and "--samples" in capsys.readouterr().err


def test_the_read_back_boxes_do_not_come_from_the_record(source, tmp_path):
    """Where the text says another place than boxes_by_image, within rounding, the page shows it."""
    line = record(0, answers=answered("At <loc_10_20_40_50>.", [[10.4, 20.4, 40.4, 50.4]]))
    (source / "records.jsonl").write_text(json.dumps(line) + "\n")
    checked = record_check.check_file(source, load_config(CONFIG), tmp_path / "out")
    view = record_check.model_view(checked.usable[0], checked.encoder)
    sides = [np.array([_sides(box) for box in view[name]]) for name in ("boxes", "record_boxes")]
    pair = (np.hstack([one[:, :2], one[:, :2] + one[:, 2:]]) for one in sides)
    assert 0.9 < float(iou(*pair)[0]) < 0.999
