"""The gate of every build: what fails is rejected, what is sound passes, of every data set."""

import json
import tomllib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.errors import UserError
from cxrjax.records import QARecord, write_records
from cxrjax.records_io import gate
from cxrjax.records_io.own_records import OwnRecordsBuilder, OwnRecordsOptions
from cxrjax.records_io.quality import QualityLog

CASES = tomllib.loads(Path(__file__).with_name("gate.toml").read_text())


def record(number, question, text, **fields):
    about = {"labels": fields.pop("labels", []), "polarity": fields.pop("polarity", "unk")}
    boxes = fields.pop("boxes", [])
    answer = {"text": text, "boxes_by_image": {"i": boxes} if boxes else {}, **about}
    base = {"dataset": "custom", "split": "train", "image_id": "i", "image_path": "i.png",
            "image_hw": [100, 100], "question_id": f"q{number}", "question_type": "x"}  # fmt: skip
    return QARecord(**{**base, "question": question, "answers": [answer], **fields})


def admitted(records):
    log = QualityLog()
    kept = [one.question_id for one in gate.admit(records, log, "train")]
    return kept, [entry.reason for entry in log.entries]


def test_each_kind_of_fault_is_rejected_and_its_sound_neighbour_passes(subtests):
    for number, (reason, question, text, more) in enumerate(CASES["cases"]):
        with subtests.test(question=question, text=text):
            kept, reasons = admitted([record(number, question, text, **more)])
            assert (kept, reasons) == (([], [reason]) if reason else ([f"q{number}"], []))


@pytest.mark.parametrize("kind", [list, iter])
def test_a_denial_is_compared_with_what_the_image_is_known_to_show(kind, subtests):
    for marked, denied, question, rejected in CASES["denials"]:
        with subtests.test(marked=marked, denied=denied):
            pair = [
                record(0, "What is seen?", f"{marked}.", labels=[marked], polarity="pos"),
                record(1, question, f"No {denied}.", labels=[denied], polarity="neg"),
            ]
            assert admitted(kind(pair))[1] == ["denied_class"] * rejected


def test_a_build_counts_what_fails_and_strict_ends_it(tmp_path):
    PIL.Image.fromarray(np.full((100, 100), 90, np.uint8)).save(tmp_path / "i.png")
    sound = record(0, "Is the heart large?", "No, it is not.")
    write_records(tmp_path / "records.jsonl", [sound, record(1, "Is it?", "No report says so.")])
    for strict in (False, True):
        options = OwnRecordsOptions(tmp_path, tmp_path / "out", strict=strict)
        if strict:
            with pytest.raises(UserError, match="speaks_of_text"):
                OwnRecordsBuilder(options).build()
        else:
            OwnRecordsBuilder(options).build()
        quality = json.loads((tmp_path / "out" / "quality.json").read_text())
        assert quality["counts"]["speaks_of_text"] == 1 == quality["total"]
        assert len((tmp_path / "out" / "records" / "train.jsonl").read_text().splitlines()) == 1
