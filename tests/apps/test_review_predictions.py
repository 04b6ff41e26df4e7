"""A model's answers to review: their order, how they are shown, and their export."""

import json

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.review import review_pages
from cxrjax.apps.review.predicted import PredictedLine, least_certain, uncertainty, with_answer
from cxrjax.commands import review
from cxrjax.errors import UserError
from cxrjax.evaluation.predictions import parse_prediction
from cxrjax.records import read_records, write_records
from tests.apps.page_records import make_record
from tests.apps.rows import ROWS

BOX = [20.0, 10.0, 100.0, 60.0]  # of an image 200 wide and 100 high: a half and a half
FRACTIONS = [0.1, 0.1, 0.5, 0.6]


def _record(name, **fields):
    given = {"image_hw": (100, 200), "variables": {"finding": "mass"}, "image_id": f"i-{name}"}
    given |= {"question": "Where is the mass?", "image_path": "i.png"} | fields
    return make_record(name, "The mass is at <loc_20_10_100_60>.", [BOX], **given)


def _line(name, **fields):
    given = {"question_id": name, "text": "", "boxes": [FRACTIONS], "parse": "ok"} | fields
    return PredictedLine(parse_prediction(given, "p.jsonl:1"), given)


@pytest.mark.parametrize(("first", "second", "expected"), ROWS["uncertainty"])
def test_uncertainty_is_told_by_its_reasons(first, second, expected):
    lines = [_line("a", **one) for one in (first, second)[: 1 + bool(second)]]
    found = uncertainty(_record("a"), lines, "paligemma")
    assert found == pytest.approx(expected, abs=5e-3)


def test_an_answer_is_as_uncertain_as_its_least_certain_box_if_spreads_are_numbers():
    two = {"boxes": [FRACTIONS, FRACTIONS], "box_spreads": [[0.1] * 4, [0.001] * 4]}
    found = uncertainty(_record("a"), [_line("a", **two)], "paligemma")
    assert found["coordinates"] == pytest.approx(0.87, abs=5e-3)
    for wrong in ([[1, "x", 2, 3]], [[1, 2]], 5, {"a": 1}):
        with pytest.raises(UserError, match="its box_spreads are not four numbers"):
            uncertainty(_record("a"), [_line("a", box_spreads=wrong)], "paligemma")


def test_the_least_certain_comes_first_and_nothing_goes_unsaid(tmp_path):
    spread = {name: [[width] * 4] for name, width in (("a", 0.001), ("b", 0.1), ("c", 0.01))}
    system = {name: _line(name, box_spreads=one) for name, one in spread.items()}
    records = [_record(name) for name in "abcd"]
    system["z"] = _line("z")
    queue = least_certain(records, [system], tmp_path, "paligemma", (), None)
    assert [one.question_id for one in queue.sample] == ["b", "c", "a"]
    assert queue.about["b"] == "uncertainty 0.87 (coordinates)"
    assert (queue.without, queue.strange) == (1, 1)
    for count, asked, says in ((4, records, "3 of 4 questions have"), (1, records[3:], "no predi")):
        with pytest.raises(UserError, match=says):
            least_certain(asked, [system], tmp_path, "paligemma", (), count)


def test_a_models_answer_stands_in_place_of_the_records_own(tmp_path):
    text = "The mass is at <loc0102><loc0102><loc0614><loc0512>."
    shown = with_answer(_record("a"), _line("a", text=text).read, tmp_path, "paligemma")
    assert shown.answer_text == "The mass is at <loc_20_10_100_60>." and shown.boxes == [BOX]
    assert shown.answers[0].labels == ["mass"] and shown.answers[0].polarity == "pos"
    assert shown.generator.name == "prediction"
    denied = _line("a", text="No, there is no mass.", boxes=[]).read
    shown = with_answer(_record("a", question="Is there a mass?"), denied, tmp_path, "paligemma")
    assert shown.boxes == [] and shown.answers[0].polarity == "neg"
    # In no notation that is known: the line's boxes stand behind the words.
    odd = _line("a", text="At (1, 2).", boxes=[FRACTIONS, [0.3, 0.3, 0.3, 0.9]]).read
    shown = with_answer(_record("a"), odd, tmp_path, "paligemma")
    assert shown.answer_text == "At (1, 2). <loc_20_10_100_60>"
    choices = {"choices": ["A: Air", "B: Mass", "C: Scar"], "answer_key": "A"}
    for text, answer_key in (("B", "B"), ("Scar.", "C"), ("nothing", None)):
        line = _line("a", text=text, boxes=[]).read
        shown = with_answer(_record("a", **choices), line, tmp_path, "paligemma")
        assert shown.answer_key == answer_key


@pytest.fixture
def loop(tmp_path):
    """`loop(*flags)`: runs `review` on six questions, two of them unanswered, and predictions."""
    Image.fromarray(np.zeros((100, 200), np.uint8)).save(tmp_path / "i.png")
    bare = {"answers": []}
    records = [
        *(_record(name, image_id="i-1") for name in ("where", "again")),
        _record("count", image_id="i-1", template_id="boxes/how_many"),
        _record("outside"),
        _record("new", **bare),
        _record("waits", **bare),
    ]
    write_records(tmp_path / "records.jsonl", records)
    lines = [
        {"question_id": name, "text": "", "boxes": [FRACTIONS], "decision_logprob": sure}
        for name, sure in (("where", -0.7), ("new", -0.6), ("waits", -0.1))
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    run = {"settings": {"workdir": str(tmp_path / "my run")}}
    (tmp_path / "p.jsonl.run.json").write_text(json.dumps(run))
    flags = [f"--records={tmp_path / 'records.jsonl'}", f"--predictions={tmp_path / 'p.jsonl'}"]
    return lambda *more: review.main([*flags, f"--out={tmp_path / 'out'}", *more])


def test_an_export_is_the_whole_set_with_what_changed(loop, tmp_path, capsys):
    loop("--sample=2")
    printed = capsys.readouterr().out
    assert "3 questions have no prediction and are not in this review" in printed
    assert (
        f"--predictions={tmp_path / 'p.jsonl'} --sample=2 --out={tmp_path / 'out'} --ex" in printed
    )
    html = (tmp_path / "out" / "index.html").read_text()
    assert "uncertainty 0.99 (confidence)" in html and "The record's own answer" in html
    data = json.loads(html.partition('type="application/json">')[2].partition("</script>")[0])
    assert [item["own"] for item in data["items"]] == [[BOX], []]
    sheet = (tmp_path / "out" / "sheet.csv").read_text().splitlines()
    moved = {
        "boxes": [{"box": [30, 10, 100, 60], "origin": 0}],
        "answer": "The mass is at [box 1].",
    }
    new = {"box": [110, 10, 150, 60], "label": "mass"}
    moved["boxes"].append(new)
    quoted = json.dumps(moved).replace('"', '""')
    assert sheet[1].endswith(',yes,"box 1: x 20 to 100, y 10 to 60",not applicable,,,,')
    one = sheet[1].removesuffix(",,,,") + f',major,major,,"{quoted}"'
    two = sheet[2].removesuffix(",,,,") + ",acceptable,minor,,"
    (tmp_path / "out" / "anna.csv").write_text("\n".join([sheet[0], one, two]) + "\n")
    loop("--sample=2", f"--export={tmp_path / 'next'}")
    printed = capsys.readouterr().out
    assert (
        "records.jsonl: 4 questions, 1 corrected, 1 with the same boxes as one of these, 1 "
        "predictions accepted, 0 of missed findings, 1 unchanged; pairs.jsonl: 1 preferred"
    ) in printed
    assert "1 left out: its boxes were corrected in another question: again" in printed
    assert "questions.jsonl: 1 without an answer yet" in printed
    assert "next: python -m cxrjax.train --config=configs/records_lora.py '--config.model.init" in (
        printed
    )
    found = {one.question_id: one for one in read_records(tmp_path / "next" / "records.jsonl")}
    assert [*found] == ["where", "count", "outside", "new"]
    assert found["where"].boxes == [[30, 10, 100, 60], new["box"]]
    assert found["count"].boxes == found["where"].boxes
    assert found["count"].answer_text == (
        "There are 2 masses, at <loc_30_10_100_60> and <loc_110_10_150_60>."
    )
    assert found["new"].boxes == [BOX] and found["outside"].boxes == [BOX]
    assert all(one.image_path == "../i.png" for one in found.values())
    (waits,) = read_records(tmp_path / "next" / "questions.jsonl")
    assert waits.question_id == "waits"
    told = json.loads((tmp_path / "next" / "export.json").read_text())
    assert (told["corrected"], told["followed"], told["accepted"], told["unanswered"]) == (
        1,
        1,
        1,
        1,
    )


def test_a_record_keeps_its_own_answer_where_nothing_is_objected_to(tmp_path):
    from cxrjax.apps.review.export import export_reviews

    Image.fromarray(np.zeros((100, 200), np.uint8)).save(tmp_path / "i.png")
    record = _record("a", reason="Round.")
    line = _line("a", text="Here.", boxes=[[0.1, 0.1, 0.4, 0.6]]).read
    shown = with_answer(record, line, tmp_path, "paligemma")
    fine = dict.fromkeys(("answer_appropriateness", "spatial_reference"), "acceptable")
    found = export_reviews(
        [shown], {"anna": {"a": fine}}, tmp_path, tmp_path, "paligemma", (), [record]
    )
    assert found.records[0].boxes == [BOX] and found.records[0].reason == "Round."
    assert (found.confirmed, found.accepted, found.unchanged) == (1, 0, 1)


def test_a_served_page_is_there_before_its_images_are_read(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((100, 200), np.uint8)).save(tmp_path / "i.png")
    monkeypatch.setattr(review_pages, "read_image", None)
    records = [_record("a"), _record("b", image_path="none.png")]
    page = review_pages.render_review_page(records, tmp_path, served=True)
    assert page.without == 1 and page.correctable["a"].image_hw == (100, 200)
    assert '"uri": "picture/0"' in page.html.replace('":"', '": "')
