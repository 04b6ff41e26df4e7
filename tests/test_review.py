"""`python -m cxrjax.review`: checks, sheet and page, agreement, readers; how each ends."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.review.sheet import DIMENSIONS
from cxrjax.commands import build, review
from cxrjax.errors import UserError
from cxrjax.records import Turn, read_records, write_records
from tests.apps.html_tree import Tree
from tests.apps.rows import ROWS
from tests.apps.servers import run_as_command

SAMPLE = Path(__file__).parents[1] / "data" / "vindr_cxr_vqa" / "sample"
TABLE = SAMPLE / "train.csv"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sample's release, built with its table; an image beside one of the two."""
    out = tmp_path_factory.mktemp("built")
    build.main(["--dataset=vindr_cxr_vqa", f"--source={SAMPLE}", f"--out={out}", "--processes=1"])
    return out


@pytest.fixture
def first(built):
    return next(iter(read_records(next((built / "records").glob("*.jsonl")))))


def _check(tmp_path, *flags):
    code = review.main(["--check", f"--out={tmp_path / 'check'}", "--processes=1", *flags])
    return code, json.loads((tmp_path / "check" / "check.json").read_text())


def test_sound_data_pass(built, tmp_path, capsys):
    code, result = _check(tmp_path, f"--records={built}", f"--source={TABLE}")
    assert code == 0 and result["passed"]
    assert result["faults"]["total"] == 0
    assert result["faults"]["examined"] == {"questions": 6, "questions compared with the table": 6}
    assert result["source_coverage"]["asked_about"] == 2
    assert result["reason_words"]["distribution"]["1-49"] == 6
    assert result["leakage"]["leaks"] == []
    assert result["leakage"]["images_not_hashed"] == ["2 of 2 files are not there"]
    assert "passed" in capsys.readouterr().out


def test_the_release_file_is_checked_by_itself(tmp_path):
    code, result = _check(tmp_path, f"--records={SAMPLE / 'data_v1.json'}", f"--source={TABLE}")
    assert code == 0 and "leakage" not in result
    broken = json.loads((SAMPLE / "data_v1.json").read_text())
    broken[0]["vqa"][0]["gt_finding"] = "ILD"
    del broken[0]["vqa"][1]["reason"]
    broken[1]["vqa"][0]["difficulty"] = "Hard"
    (tmp_path / "data_v1.json").write_text(json.dumps(broken))
    flags = [f"--records={tmp_path / 'data_v1.json'}", f"--source={TABLE}"]
    code, result = _check(tmp_path, *flags)
    assert code == 1 and not result["passed"]
    found = {(e["reason"], e["item"]) for e in result["faults"]["set_aside"]}
    assert found == {
        ("source_mismatch", "sample_heart-0"),
        ("invalid_record", "sample_heart-1"),
        ("invalid_record", "sample_nodules-0"),
    }


def test_leakage_fails_unless_it_is_allowed(built, tmp_path):
    records = [r for f in (built / "records").glob("*.jsonl") for r in read_records(f)]
    moved = [records[0].model_copy(update={"split": "test"}), *records]
    write_records(tmp_path / "leaky.jsonl", moved)
    flags = [f"--records={tmp_path / 'leaky.jsonl'}"]
    # The copy has the question's id too: a fault of structure, whatever the splits.
    moved[0] = moved[0].model_copy(update={"question_id": "new"})
    write_records(tmp_path / "leaky.jsonl", moved)
    code, result = _check(tmp_path, *flags)
    assert code == 1
    assert result["leakage"]["counts"] == {"image_id": 1}
    code, result = _check(tmp_path, *flags, "--allow_leakage")
    assert code == 0 and result["leakage"]["counts"] == {"image_id": 1}


class _Page:
    """Names of radio groups, what the viewer is given, addresses that lead elsewhere."""

    def __init__(self, html):
        root = Tree(html).root
        self.groups, self.outside = {}, []
        for one in root.all("input", type="radio"):
            self.groups.setdefault(one["name"], []).append(one["value"])
        for node in root.all():
            links = [node[name] for name in ("src", "href") if name in node.attributes]
            self.outside += [link for link in links if not link.startswith("data:")]
        self.data = json.loads(next(root.all("script", id="data")).text)


def test_the_sheet_and_the_page_hold_the_same_questions(built, tmp_path):
    (tmp_path / "images").mkdir()
    pixels = np.full((240, 200), 90, np.uint8)
    Image.fromarray(pixels).save(tmp_path / "images" / "sample_heart.dicom", "PNG")
    flags = [f"--records={built}", f"--image_root={tmp_path}", "--sample=6"]
    review.main([*flags, f"--out={tmp_path / 'a'}"])
    rows = _read_csv(tmp_path / "a" / "sheet.csv")
    assert len(rows) == len({row["question_id"] for row in rows}) == 6
    assert all(row["has_box"] == "yes" and row["reasoning_accuracy"] == "" for row in rows)
    html = (tmp_path / "a" / "index.html").read_text()
    page = _Page(html)
    assert len(page.groups) == 18
    assert all(v == ["acceptable", "minor", "major"] for v in page.groups.values())
    hearts = [row for row in rows if row["image_id"] == "sample_heart"]
    shown = [item for item in page.data["items"] if item["image"] == "sample_heart"]
    assert len(shown) == len(hearts) == 3 and all(len(item["boxes"]) == 1 for item in shown)
    assert page.data["pictures"]["sample_heart"]["uri"].startswith("data:image/jpeg")
    assert page.data["pictures"]["sample_nodules"]["why"] == "sample_nodules.dicom is missing"
    assert page.outside == []
    # The same seed gives the same files.
    review.main([*flags, f"--out={tmp_path / 'b'}"])
    for name in ("sheet.csv", "index.html"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()


def test_hostile_texts_and_failed_checks(first, tmp_path, capsys):
    hostile = first.model_copy(update={"reason": "</script><script>alert(1)</script>"})
    write_records(tmp_path / "r.jsonl", [hostile])
    flags = [f"--records={tmp_path / 'r.jsonl'}", "--sample=1", f"--out={tmp_path}"]
    review.main(flags)
    assert "alert(1)</script>" not in (tmp_path / "index.html").read_text()
    broken = json.loads((SAMPLE / "data_v1.json").read_text())
    broken[0]["vqa"][0]["difficulty"] = "Hard"
    (tmp_path / "data_v1.json").write_text(json.dumps(broken))
    words = ["--check", f"--out={tmp_path}", f"--records={tmp_path / 'data_v1.json'}"]
    assert run_as_command("review", *words) == 1
    told = capsys.readouterr().out
    assert "FAULT invalid_record: 1" in told and "FAILED" in told


def _read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _filled(path, rows, ratings):
    levels = (dict(zip(DIMENSIONS, one, strict=True)) for one in ratings)
    _write_csv(path, [row | of for row, of in zip(rows, levels, strict=True)])
    return path


def test_from_sheet_to_consensus(built, tmp_path, capsys):
    review.main([f"--records={built}", "--sample=6", f"--out={tmp_path}"])
    rows = _read_csv(tmp_path / "sheet.csv")
    fine, poor = ("acceptable",) * 3, ("minor", "major", "acceptable")
    anna = _filled(tmp_path / "anna.csv", rows, [fine, poor, poor, fine, fine, fine])
    bao = _filled(tmp_path / "bao.csv", rows, [fine, poor, fine, fine, fine, fine])
    flags = [f"--sheets={anna}", f"--sheets={bao}", f"--out={tmp_path}", "--resamples=200"]
    assert review.main(flags) == 0
    result = json.loads((tmp_path / "agreement.json").read_text())
    pooled = result["dimensions"]["pooled"]
    assert pooled["n"] == 18 and pooled["observed_agreement"] == pytest.approx(16 / 18)
    assert pooled["table"] == [[14, 0, 0], [1, 1, 0], [1, 0, 1]]
    # Chance: (14 * 16 + 2 * 1 + 2 * 1) / 18 ** 2.
    chance = (14 * 16 + 2 + 2) / 324
    kappa = pooled["kappa"]["unweighted"]
    assert kappa["value"] == pytest.approx((16 / 18 - chance) / (1 - chance))
    low, high = kappa["bootstrap_ci"]
    assert low <= kappa["value"] <= high
    # Nobody finds fault with a place: all alike, so agreement beyond chance is undefined.
    spatial = result["dimensions"]["spatial_reference"]
    assert spatial["observed_agreement"] == 1 and spatial["kappa"]["linear"]["value"] is None
    assert [d["question_id"] for d in result["disagreements"]] == [rows[2]["question_id"]] * 2
    assert "kappa, unweighted" in (tmp_path / "agreement.md").read_text()

    settled = tmp_path / "consensus.csv"
    items = _read_csv(settled)
    with pytest.raises(UserError, match=r"consensus.csv:5: .* accepted is ''"):
        review.main([*flags, f"--consensus={settled}"])
    for item in items:
        item["outcome"], item["accepted"] = item["outcome"] or "acceptable", "yes"
    _write_csv(settled, items)
    kept = settled.read_bytes()
    assert review.main(flags) == 0
    assert settled.read_bytes() == kept, "a file that somebody fills in is not written over"
    capsys.readouterr()
    assert review.main([*flags, f"--consensus={settled}"]) == 0
    summary = json.loads((tmp_path / "consensus.json").read_text())
    assert summary["initial_disagreements"] == 2
    assert summary["questions_accepted_on_all_dimensions"] == 6
    assert "2 of 18 ratings differed at first" in capsys.readouterr().out


def test_readers_of_a_table_and_of_records_are_the_same(built, tmp_path):
    review.main([f"--readers={TABLE}", f"--out={tmp_path / 'table'}", "--resamples=50"])
    review.main([f"--readers={built}", f"--out={tmp_path / 'records'}", "--resamples=50"])
    table, records = (
        json.loads((tmp_path / name / "readers.json").read_text()) for name in ("table", "records")
    )
    values = [
        {truth: p["strict"]["detection/f1@0.3"]["value"] for truth, p in r["ceiling"].items()}
        for r in (table, records)
    ]
    assert values[0] == values[1]
    assert table["boxes"]["raw"]["Cardiomegaly"] == 3
    assert table["boxes"]["components"]["Cardiomegaly"] == 1
    # The table has the normal image too, which no question is about.
    assert (table["images_read"], records["images_read"]) == (3, 2)


@pytest.mark.parametrize(("flags", "says"), ROWS["unusable_flags_of_review"])
def test_unusable_flags_end_with_code_2(flags, says, capsys):
    with pytest.raises(SystemExit) as end:
        review.main([*flags, "--out=o"])
    assert end.value.code == 2 and says in capsys.readouterr().err


def test_unusable_input_is_told_in_one_line(tmp_path):
    for flags, says in (
        ([f"--records={tmp_path}"], "no records/*.jsonl in it"),
        ([f"--records={tmp_path / 'none.jsonl'}"], "cannot read records"),
        ([f"--readers={SAMPLE / 'nothing.csv'}"], "cannot read the table"),
    ):
        with pytest.raises(UserError, match=says.replace("*", r"\*")):
            review.main([*flags, f"--out={tmp_path}"])
    write_records(tmp_path / "empty.jsonl", [])
    with pytest.raises(UserError, match="no question to check"):
        review.main(["--check", f"--records={tmp_path / 'empty.jsonl'}", f"--out={tmp_path}"])


def test_wording_of_change_and_shared_questions_are_counted_per_split(built, tmp_path, capsys):
    train = list(read_records(built / "records" / "train.jsonl"))
    first, second, *others = read_records(built / "records" / "validation.jsonl")
    asked = train[0].question.rstrip("?")
    changed = [
        first.model_copy(update={"question": "Is it unchanged?", "reason": "It has worsened."}),
        second.model_copy(update={"question": f"{asked}s?"}),
        *(record.model_copy(update={"question": "Is it again there?"}) for record in others),
    ]
    folder = tmp_path / "own" / "records"
    write_records(folder / "validation.jsonl", changed)
    write_records(folder / "train.jsonl", train)
    review.main(["--check", f"--records={tmp_path / 'own'}", f"--out={tmp_path / 'out'}"])
    result = json.loads((tmp_path / "out" / "check.json").read_text())
    wording = result["longitudinal_wording"]
    assert wording["validation"] == {"records": 3, "questions": 2, "answers": 1}
    assert wording["train"] == {"records": len(train), "questions": 0, "answers": 0}
    (shared,) = result["leakage"]["shared_text"].values()
    assert shared["distinct_questions"] == 3
    assert shared["distinct_questions_nearly_the_same"] == 1
    assert shared["same_question"] == 0
    printed = capsys.readouterr().out
    assert "validation: wording of change over time in 2 questions and 1 answers" in printed
    assert "of its 3 different questions 1 are there nearly the same" in printed


def _shown(tmp_path, record):
    """The page of one record whose picture is 50 x 40, and its sheet's row."""
    (tmp_path / "r").mkdir(exist_ok=True)
    Image.fromarray(np.full((40, 50), 90, np.uint8)).save(tmp_path / "r" / "small.png")
    write_records(tmp_path / "r.jsonl", [record.model_copy(update={"image_path": "r/small.png"})])
    root = f"--image_root={tmp_path}"
    review.main([f"--records={tmp_path / 'r.jsonl'}", root, "--sample=1", f"--out={tmp_path}"])
    (row,) = _read_csv(tmp_path / "sheet.csv")
    return (tmp_path / "index.html").read_text(), row


def test_boxes_lie_right_on_a_picture_that_is_stored_smaller(first, tmp_path):
    boxes = [[100.0, 80.0, 300.0, 240.0], [400.0, 320.0, 480.0, 400.0]]
    text = "Here <loc_100_80_300_240> and <loc_400_320_480_400>."
    of_image = {first.image_id: boxes}
    answer = first.answers[0].model_copy(update={"text": text, "boxes_by_image": of_image})
    changes = {"image_hw": (400, 500), "answers": [answer]}
    html, row = _shown(tmp_path, first.model_copy(update=changes))
    data = _Page(html).data
    (item,) = data["items"]
    # The viewer is told what boxes are counted in, whatever the picture's size.
    assert (item["width"], item["height"], item["boxes"]) == (500, 400, boxes)
    assert [data["pictures"][item["image"]][side] for side in ("width", "height")] == [50, 40]
    # Numbers, not pixels, are what somebody who looks at the picture can follow.
    assert row["answer"] == "Here [box 1] and [box 2]." and row["answer"] in html
    assert row["boxes"] == "box 1: x 100 to 300, y 80 to 240; box 2: x 400 to 480, y 320 to 400"
    assert "<loc" not in html.partition('<script id="data"')[0] and "<loc_" not in json.dumps(data)


def test_options_earlier_turns_and_parts_are_shown(first, tmp_path):
    part = first.answers[0].model_copy(update={"text": "A part.", "answer_type": "details"})
    answer = first.answers[0].model_copy(update={"sub_answers": [part], "regions": ["left lung"]})
    changes = {"choices": ["A: Normal", "B: Nodule", "C: Mass"], "answer_key": ["A", "C"]}
    changes["history"] = [Turn(question_id="q", question="What was it?", answer="A scar.")]
    changes |= {"answers": [answer], "view": "PA", "age": 70.0}
    html, row = _shown(tmp_path, first.model_copy(update=changes))
    before = "Before: What was it? A scar."
    assert row["question"].split("\n") == [before, first.question, *changes["choices"]]
    assert row["answer"] == "A: Normal\nC: Mass"
    for shown in ("B: Nodule", "A part.", "left lung", "(PA, 70 years)"):
        assert shown in html
