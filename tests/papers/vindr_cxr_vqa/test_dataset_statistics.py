"""Counts computed from records, and their comparison with published figures."""

from cxrjax.records_io.statistics import Published, RecordStatistics, compare
from tests.evaluation import made

CASES = made.cases_of(__file__)


def _record(number, boxes, kind, **fields):
    fields = {"split": "train", "difficulty": "Easy", "gt_finding": "ILD"} | fields
    shown = [[k, 0, k + 1, 1] for k in range(boxes)]
    return made.record_of(f"i{number // 2}", number, boxes=shown, kind=kind, **fields)


def test_values_and_what_is_null():
    statistics = RecordStatistics()
    absent = {"split": "validation", "difficulty": "Medium", "gt_finding": None}
    for record in (
        _record(0, 2, "What", reason="one two three"),
        _record(1, 3, "Where", reason="one"),
        _record(2, 0, "What", **absent),
    ):
        statistics.add(record)
    values = statistics.values()
    assert values == CASES["statistics"]
    values = RecordStatistics().values()
    assert values["questions"] == 0
    assert values["questions_per_image"] is None and values["reason_words_mean"] is None


def test_compare():
    table = compare(
        {"a": 5, "b": 16.0, "c": 17.5, "d": 16.5, "e": None, "x": 1},
        {
            "a": Published(7, "Table 1"),
            **dict.fromkeys("bcd", Published((16.4, 17.0), "Table 3")),
            "e": Published(2, ""),
            "f": Published(300, "not here"),
        },
    )
    assert table["a"] == {"value": 5, "paper": 7, "difference": -2, "note": "Table 1"}
    assert [table[name]["difference"] for name in "bcd"] == [-0.4, 0.5, 0]
    assert table["b"]["paper"] == [16.4, 17.0]
    assert table["e"]["difference"] is None
    assert table["f"] == {"value": None, "paper": 300, "difference": None, "note": "not here"}
    assert table["x"] == {"value": 1, "paper": None, "difference": None, "note": ""}
