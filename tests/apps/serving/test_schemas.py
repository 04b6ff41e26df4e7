"""JSON schemas that answers are written in: what fills them, and which are refused."""

import tomllib
from pathlib import Path

import pytest

from cxrjax.apps.serving.refusals import RefusedError
from cxrjax.apps.serving.schemas import AnswerSchema
from tests.papers.cases import data

ROWS = tomllib.loads(Path(__file__).with_name("schemas.toml").read_text(encoding="utf-8"))
LINE = data(__file__)["line"]


@pytest.mark.parametrize("name", ROWS["filled"])
def test_a_schema_is_filled(name):
    told = ROWS["filled"][name]
    schema = AnswerSchema({"type": "object", **told["schema"]})
    assert schema.form == told.get("form")
    line = (
        LINE if told.get("boxes", True) else {**LINE, "boxes": [], "text": told.get("text", "No.")}
    )
    assert schema.fill(line, (100, 200)) == told["object"]


@pytest.mark.parametrize(("schema", "says"), ROWS["refused"])
def test_what_nothing_fills_is_refused_by_name(schema, says):
    with pytest.raises(RefusedError, match=says):
        AnswerSchema(schema)
