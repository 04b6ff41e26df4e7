"""Records as lines of JSON: what is read back, and what is refused."""

import json

import pytest

from cxrjax.errors import UserError
from cxrjax.records import QARecord, parse_record, read_records, write_records

FIELDS = {
    **{"dataset": "custom", "split": "test", "image_id": "a", "image_path": "a.png"},
    **{"question_id": "a-0", "question": "Có gì?", "question_type": "What"},
}


def test_records_are_read_as_written_and_name_their_finding(tmp_path):
    records = [QARecord(**FIELDS, age=40.5), QARecord(**FIELDS, image_hw=(3, 2))]
    assert write_records(tmp_path / "new" / "r.jsonl", records) == 2
    assert list(read_records(tmp_path / "new" / "r.jsonl")) == records
    with pytest.raises(UserError, match=r"none\.jsonl: cannot read records"):
        list(read_records(tmp_path / "none.jsonl"))
    for variables in (None, {"region": "lung"}, {"finding": ""}):
        assert QARecord(**FIELDS, variables=variables).finding is None
    assert QARecord(**FIELDS, variables={"finding": "Mass"}).finding == "Mass"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "r:1: line: Invalid JSON"),
        (b'{"question": "\xff"}', "r:1: line: not UTF-8"),
        (json.dumps({**FIELDS, "split": None}), "r:1: split: Input should be a valid string"),
        (json.dumps({**FIELDS, "colour": "grey"}), "r:1: colour: Extra inputs are not permitted"),
        (json.dumps({**FIELDS, "image_hw": [0, 5]}), r"r:1: image_hw: .*\[0, 5\] is not a size"),
        # A field that means something else by then must not be read as if it did not.
        (json.dumps({**FIELDS, "schema_version": 2}), "r:1: schema_version: .* expected 1"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_field(line, said):
    with pytest.raises(UserError, match=said):
        parse_record(line, "r:1")
