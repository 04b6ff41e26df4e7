"""data/README.md says what cxrjax/records.py does."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cxrjax import records
from cxrjax.codecs import CODECS
from cxrjax.records_io.quality import REASONS

PAGE = (Path(__file__).parents[1] / "data" / "README.md").read_text()


def table(heading):
    """Rows of the first table below a heading, cells without backticks."""
    section = PAGE.split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def documented(rows):
    """Field -> whether it is required, as the table says."""
    return {row["field"].strip("`"): row["required"].startswith("yes") for row in rows}


def required(model):
    return {name: field.is_required() for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    ("heading", "model"), [("Fields of a record", records.QARecord), ("An answer", records.Answer)]
)
def test_every_field_is_documented_in_order_and_none_besides(heading, model):
    assert list(documented(table(heading)).items()) == list(required(model).items())


def test_smaller_objects_and_records_are_documented():
    for name, model in {
        "turn": records.Turn,
        "reader box": records.ReaderBox,
        "fused boxes": records.Fused,
        "generator": records.GeneratorInfo,
        "provenance": records.Provenance,
    }.items():
        rows = [row for row in table("Smaller objects") if row["object"] == name]
        assert documented(rows) == required(model), name
    (line,) = re.findall(r"```json\n(.*)\n```", PAGE)
    record = records.parse_record(line, "data/README.md")
    assert record.image_hw is not None
    height, width = record.image_hw
    decoded = CODECS["vindr_px"].decode(record.answer_text, height, width, strict=True)
    pixels = decoded.boxes * [width, height, width, height]
    np.testing.assert_allclose(pixels, record.boxes, atol=1e-3)
    # No field that the page calls optional is needed, answers aside.
    fields = json.loads(line)
    for name in ("answers", "image_hw"):
        del fields[name]
    records.parse_record(json.dumps(fields), "questions")
    for name in fields:
        with pytest.raises(records.UserError, match=f"{name}: Field required"):
            rest = {key: value for key, value in fields.items() if key != name}
            records.parse_record(json.dumps(rest), "questions")
    # Above this one stands the table of what reading says; take the table of reasons.
    reasons = re.findall(r"^\| `(\w+)` \| ", PAGE.split("| reason in `quality.json`")[1], re.M)
    assert reasons and set(reasons) <= set(REASONS)
