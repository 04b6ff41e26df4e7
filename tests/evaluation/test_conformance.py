"""The conformance suite's agreed results hold for `cxrjax.score`."""

import sys

import pytest

from bench.conformance.run import HERE, command, load_suite, ours, run_case, written

SUITE = load_suite()
CASES = {case["name"]: case for case in SUITE["cases"]}


def _check(subtests, names):
    for name in names:
        with subtests.test(name):
            assert run_case(CASES[name], SUITE["perfect"], ours) == []


def test_some_cases_come_out_as_agreed(subtests):
    _check(subtests, list(CASES)[::8])


@pytest.mark.slow
def test_every_case_comes_out_as_agreed(subtests):
    _check(subtests, CASES)


def test_cases_differ_and_another_result_is_a_disagreement():
    assert len(CASES) == len(SUITE["cases"]) >= 120
    files = [(case.get("references"), written(case, SUITE["perfect"])) for case in SUITE["cases"]]
    assert len(set(files)) == len(files)
    # A harness that takes every file, and one whose figures are those of a perfect system.
    assert run_case(CASES["empty_file"], SUITE["perfect"], lambda *_: 0) != []

    def perfect(benchmark, references, predictions, out, codec):
        predictions.write_bytes(written(CASES["perfect"], SUITE["perfect"]))
        return ours(benchmark, references, predictions, out)

    assert run_case(CASES["perfect"], SUITE["perfect"], perfect) == []
    assert run_case(CASES["constant_yes"], SUITE["perfect"], perfect) != []


def test_harnesses_are_commands_that_write_what_is_expected():
    """pycocotools by its adapter; it takes a box of NaN for a hit, which was not agreed."""
    pytest.importorskip("pycocotools")
    harness = command(f"{sys.executable} {HERE / 'coco.py'} {{references}} {{predictions}} {{out}}")
    found = {
        name: run_case(CASES[name], SUITE["perfect"], harness, ["detection/f1@0.3"])
        for name in ("out_of_frame", "copy_within_an_answer", "no_boxes_no_codec", "nan_coordinate")
    }
    assert [name for name, lines in found.items() if lines] == ["nan_coordinate"]

    def none(benchmark, references, predictions, out, codec):
        return 0

    def other(benchmark, references, predictions, out, codec):
        out.mkdir()
        (out / "metrics.json").write_text('{"vqa/accuracy": 1}')
        return 0

    for harness in (none, other):
        (told,) = run_case(CASES["perfect"], SUITE["perfect"], harness)
        assert "missing or laid out otherwise" in told
