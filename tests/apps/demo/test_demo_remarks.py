"""What is said of words, answers and pictures that models take as they come."""

import numpy as np
import pytest

from cxrjax.apps.demo import remarks
from cxrjax.apps.demo.answers import AnswerBox, Answered
from cxrjax.images.decode import audit_image
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vindr_cxr_vqa.construct.templates import load_templates
from tests.apps.rows import ROWS


@pytest.mark.parametrize(("question", "words"), ROWS["unknown_words"])
def test_words_that_are_none_of_radiologys(question, words):
    said = remarks.of_question(question)
    assert bool(said) == bool(words) and all(f"“{word}”" in said for word in words)
    assert ("meant?" in said) == any(word in ("cardiomegaly", "effusion") for word in words)


@pytest.mark.parametrize(("question", "text", "is_other"), ROWS["other_findings"])
def test_answers_about_another_finding(question, text, is_other):
    box = AnswerBox((16, 6, 31, 18), (0.2, 0.1, 0.4, 0.3), 0.25)
    said = Answered(text, "", (box,), (), 0.5, 0.5, "ok")
    assert remarks.of_answer(question, said) == (remarks.OTHER_FINDING if is_other else "")


def test_empty_pictures_and_unknown_words_are_remarked_on():
    flat = np.full((60, 80, 3), 90, np.uint8)
    ramp = np.broadcast_to(np.arange(80, dtype=np.uint8)[None, :, None] * 3, (60, 80, 3))
    assert remarks.of_picture(audit_image(flat)) == remarks.EMPTY
    assert remarks.of_picture(audit_image(ramp)) == ""
    for version in ("5", "6"):
        for wordings in load_templates(version).questions.values():
            for wording in wordings:
                for name in CLASSES:
                    fields = ("finding", "the_finding", "a_finding", "findings")
                    question = wording.format_map(dict.fromkeys(fields, name))
                    assert remarks.of_question(question) == "", question


@pytest.mark.parametrize(("question", "said"), ROWS["unanswerable"])
def test_questions_that_no_model_here_can_answer(question, said):
    assert remarks.of_question(question) == (said and getattr(remarks, said))
