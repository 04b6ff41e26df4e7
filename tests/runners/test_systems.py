"""The presets hold together, and answers are found in what such systems write."""

import itertools
import time

import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.runners import systems
from cxrjax.runners.systems import READINGS, SYSTEMS, read_answer
from tests.runners.conftest import CASES


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_a_system_can_be_asked_and_read(system, record):
    assert system.runners and set(system.runners) <= {"openai", "hf"}
    assert system.reading in READINGS
    assert system.codec is None or system.codec in CODECS
    assert system.locate.count("{finding}") in (0, 1)
    assert system.template.count("{image}") == system.template.count("{question}") == 1
    # What it can't be asked for, or what the words are not, is said.
    assert system.unknown or system.source
    # Boxes are asked for only where they can be read, and the other way round.
    assert not (system.box_request or system.locate) or system.codec
    wording = systems.default_wording(system)
    systems.check_wording(wording, system)
    asked = systems.question_text(record(1, finding="mass"), wording, system)
    assert asked.startswith("What is seen?")
    if system.locate:
        located = systems.question_text(record(1, finding="mass"), "locate", system)
        assert "mass" in located and "{finding}" not in located
        assert systems.question_text(record(1), "locate", system) is None


def test_the_papers_lists_are_whole():
    """GEMeX, section 4.1; ViX-Ray, section 4.1 (Qwen2.5-VL twice, by size)."""
    listed = [system.listed for system in SYSTEMS.values()]
    assert listed.count("GEMeX") == 10
    assert listed.count("ViX-Ray") == 7
    for system in SYSTEMS.values():
        assert system.title in systems.describe_systems()


def test_unknown_names_and_wordings():
    with pytest.raises(UserError, match="did you mean radvlm"):
        systems.get_system("radvml")
    for wording in systems.WORDINGS[2:]:
        with pytest.raises(UserError, match=r"use one of plain, typed$"):
            systems.check_wording(wording, SYSTEMS["xraygpt"])


def test_the_answer_in_what_was_written(subtests):
    for reading, written, answer in CASES["the_answer_in_what_was_written"]:
        with subtests.test(written):
            assert READINGS[reading](written) == answer


def test_boxes_are_those_of_the_answer_alone(record):
    written = "<think>[0.10, 0.10, 0.20, 0.20]</think>At [0.30, 0.30, 0.60, 0.60] and [0.1"
    line = read_answer(record(1, finding="mass"), written, "final", "radvlm")
    assert line["boxes"] == [pytest.approx([0.3, 0.3, 0.6, 0.6])]
    assert line["labels"] == ["mass"] and line["box_scores"] == [1.0]
    assert line["parse"] == "truncated" and line["written"] == written


def test_what_was_mended_in_an_answer_is_told(record):
    line = read_answer(record(1, finding="mass"), "[0.60, 0.10, 0.30, 0.20]", "whole", "radvlm")
    assert line["boxes"] == [pytest.approx([0.6, 0.1, 0.3, 0.2])]  # swapped, as it was written
    assert "repaired_boxes" not in line
    line = read_answer(record(1, finding="mass"), "[0.3,0.1,0.6,0.2]", "whole", "radvlm")
    assert len(line["boxes"]) == 1 and line["repaired_boxes"] == 1


def test_a_label_of_the_systems_own_goes_before_the_findings_name(record):
    written = "<ref>opacity</ref><box>[[1, 2, 30, 40]]</box>"
    line = read_answer(record(1, finding="mass"), written, "whole", "internvl")
    assert line["labels"] == ["opacity"]


def test_boxes_of_a_model_that_crops_are_of_the_whole_image(record):
    """MAIRA-2 sees the middle square: of 200 columns those from 50 to 150."""
    line = read_answer(record(1), "<box><x0><y0><x49><y99></box>", "whole", "maira2")
    assert line["boxes"] == [pytest.approx([0.2525, 0.005, 0.4975, 0.995])]


def test_a_declined_answer_and_none(record):
    for codec in ("radvlm", None):
        line = read_answer(record(1), "I'm sorry, but I can't help with that.", "whole", codec)
        assert line["parse"] == "refusal" and line["boxes"] == []
    assert systems.no_answer(record(1), "timeout")["parse"] == "timeout"
    # Without a form for boxes, numbers in brackets are words.
    assert read_answer(record(1), "[0.1, 0.2, 0.3, 0.4]", "whole", None)["boxes"] == []


def test_an_answer_of_200_kilobytes_is_read_at_once(subtests):
    units = ("\n", "\n ", " ", "*", "**f", "#", "<think>", "<unused94>", "final answer ", "\nUser")
    for reading, unit in itertools.product(sorted(READINGS), units):
        text = unit * (200_000 // len(unit))
        started = time.process_time()
        with subtests.test(reading, unit=unit):
            READINGS[reading](text)
            assert time.process_time() - started < 0.2
