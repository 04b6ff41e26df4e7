"""The presets hold together, and answers are found in what such systems write."""

import itertools
import time

import pytest

from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.evaluation.systems import systems
from cxrjax.evaluation.systems.systems import READINGS, SYSTEMS, read_answer
from tests.evaluation.systems.conftest import CASES


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


def test_the_papers_lists_are_whole_and_other_names_refused():
    """GEMeX, section 4.1; ViX-Ray, section 4.1 (Qwen2.5-VL twice, by size)."""
    listed = [system.listed for system in SYSTEMS.values()]
    assert listed.count("GEMeX") == 10
    assert listed.count("ViX-Ray") == 7
    for system in SYSTEMS.values():
        assert system.title in systems.describe_systems()
    with pytest.raises(UserError, match="did you mean radvlm"):
        systems.get_system("radvml")
    for wording in systems.WORDINGS[2:]:
        with pytest.raises(UserError, match=r"use one of plain, typed$"):
            systems.check_wording(wording, SYSTEMS["xraygpt"])


def test_answers_are_read_as_each_system_writes_them_at_any_length(subtests):
    for reading, written, answer in CASES["the_answer_in_what_was_written"]:
        with subtests.test(written):
            assert READINGS[reading](written) == answer
    units = ("\n", "\n ", " ", "*", "**f", "#", "<think>", "<unused94>", "final answer ", "\nUser")
    for reading, unit in itertools.product(sorted(READINGS), units):
        text = unit * (200_000 // len(unit))
        started = time.process_time()
        with subtests.test(reading, unit=unit):
            READINGS[reading](text)
            assert time.process_time() - started < 0.2


def test_boxes_labels_and_faults_of_an_answer(record, subtests):
    for reading, codec, finding, written, boxes, told in CASES["answers_with_boxes"]:
        with subtests.test(written, codec=codec):
            line = read_answer(record(1, finding=finding), written, reading, codec or None)
            assert line["boxes"] == [pytest.approx(box) for box in boxes]
            assert line.get("written", line["text"]) == written
            assert told == {name: line[name] for name in told}
            assert ("repaired_boxes" in line) == ("repaired_boxes" in told)
    assert systems.no_answer(record(1), "timeout")["parse"] == "timeout"
