"""The script that turns real radiographs with lung boxes into records; on made-up ones."""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.errors import UserError
from cxrjax.records import read_records
from cxrjax.records_io.own_records import OwnRecordsBuilder, OwnRecordsOptions

SCRIPT = Path(__file__).parents[2] / "data" / "real_cxr" / "make_records.py"
spec = importlib.util.spec_from_file_location("make_records", SCRIPT)
make_records = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_records)


def _source(folder: Path, **changes) -> Path:
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(8):
        name = f"images/{number}.png"
        PIL.Image.fromarray(np.full((50, 60), 9, np.uint8)).save(folder / name)
        sides = make_records._SIDES
        boxes = [
            {"label": "Lung", "xyxy": [5.0, 6.0, 25.0, 40.0], "side": sides["right lung"]},
            {"label": "Lung", "xyxy": [33.0, 7.0, 55.0, 44.0], "side": sides["left lung"]},
        ]
        line = {"image": name, "width": 60, "height": 50, "patient_id": str(number // 2)}
        lines.append(json.dumps(line | {"view": "PA", "boxes": boxes} | changes))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_three_questions_an_image_divided_by_patient(tmp_path):
    source, file = _source(tmp_path / "source"), tmp_path / "made" / "records.jsonl"
    make_records.main([f"--source={source}", f"--out={file}"])
    records = list(read_records(file))
    assert len(records) == 24
    sides = {
        split: {r.patient_id for r in records if r.split == split}
        for split in ["train", "validation"]
    }
    assert len(sides["validation"]) == 1 and not sides["train"] & sides["validation"]
    texts = [record.answer_text for record in records[:3]]
    assert texts == [
        "The right lung is located at <loc_5_6_25_40>.",
        "The left lung is located at <loc_33_7_55_44>.",
        "The lungs are located at <loc_5_6_25_40> and <loc_33_7_55_44>.",
    ]
    assert (file.parent / records[0].image_path).resolve() == source / "images" / "0.png"
    OwnRecordsBuilder(OwnRecordsOptions(file, tmp_path / "out")).build()
    assert json.loads((tmp_path / "out" / "quality.json").read_text())["total"] == 0


def test_boxes_must_fit_the_file_and_be_one_a_side(tmp_path):
    with pytest.raises(UserError, match=r"50x60 \(height x width\).*50x61"):
        make_records.main([f"--source={_source(tmp_path / 'a', width=61)}", f"--out={tmp_path}/r"])
    with pytest.raises(UserError, match="0 boxes with side"):
        make_records.main([f"--source={_source(tmp_path / 'b', boxes=[])}", f"--out={tmp_path}/r"])
    with pytest.raises(UserError, match="cannot read"):
        make_records.main([f"--source={tmp_path / 'c'}", f"--out={tmp_path}/r"])


def test_the_real_radiographs(tmp_path):
    beside = Path(__file__).parents[3] / "shared" / "real_cxr"
    source = Path(os.environ.get("CXRJAX_REAL_CXR", beside))
    if not source.is_dir():
        pytest.skip(f"no real radiographs at {source}; name their folder in CXRJAX_REAL_CXR")
    make_records.main([f"--source={source}", f"--out={tmp_path / 'records.jsonl'}"])
    records = list(read_records(tmp_path / "records.jsonl"))
    assert len(records) == 270 and len({r.patient_id for r in records}) == 48
