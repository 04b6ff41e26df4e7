"""What is said of words, answers and pictures that models take as they come."""

import numpy as np
import pytest

from cxrjax.images.decode import audit_image
from cxrjax.pages.demo import remarks
from cxrjax.pages.demo.answers import AnswerBox, Answered
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vindr_cxr_vqa.construct.templates import load_templates

BOX = AnswerBox((16, 6, 31, 18), (0.2, 0.1, 0.4, 0.3), 0.25)


def _said(text, boxes=(BOX,)):
    return Answered(text, "", boxes, (), 0.5, 0.5, "ok")


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("where is the cardiomegaly?", ()),
        ("WHERE IS THE PLEURAL EFFUSION", ()),
        ("Does this image show Pleural thickening?", ()),
        ("Could you please tell me whether anything suspicious is visible", ()),
        ("where is the foobaritis?", ("foobaritis",)),
        ("where is the cardiomegly?", ("cardiomegly", "cardiomegaly")),
        ("Is there a banana or an effusoin?", ("banana", "effusion")),
        ("Có tràn dịch màng phổi không?", ()),  # its own reader's words
        ("", ()),
    ],
)
def test_words_that_are_none_of_radiologys(question, words):
    said = remarks.of_question(question)
    assert bool(said) == bool(words) and all(f"“{word}”" in said for word in words)
    assert ("meant?" in said) == any(word in ("cardiomegaly", "effusion") for word in words)


@pytest.mark.parametrize(
    ("question", "text", "is_other"),
    [
        ("where is the cardiomegaly?", "Cardiomegaly <loc0001><loc0002><loc0003><loc0004>", False),
        ("where is the cardiomegaly?", "The pleural effusion is here.", True),
        ("detect ILD", "Pleural thickening <loc0001><loc0002><loc0003><loc0004>", True),
        ("detect ILD", "ILD <loc0001><loc0002><loc0003><loc0004>", False),
        ("Is there a pneumothorax?", "There is no pneumothorax.", False),
        ("Is there a pneumothorax?", "Yes", False),
        ("Where is the pneumothorax?", "Unknown.", False),
        ("What findings are present?", "Cardiomegaly", False),
        ("Where are the lungs?", "<loc0001><loc0002><loc0003><loc0004>", False),
    ],
)
def test_answers_about_another_finding(question, text, is_other):
    assert remarks.of_answer(question, _said(text)) == (remarks.OTHER_FINDING if is_other else "")


def test_empty_pictures():
    flat = np.full((60, 80, 3), 90, np.uint8)
    ramp = np.broadcast_to(np.arange(80, dtype=np.uint8)[None, :, None] * 3, (60, 80, 3))
    assert remarks.of_picture(audit_image(flat)) == remarks.EMPTY
    assert remarks.of_picture(audit_image(ramp)) == ""


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("is the effusion bigger than before?", remarks.COMPARES),
        ("Has the nodule grown?", remarks.COMPARES),
        ("Is there a new pneumothorax?", remarks.COMPARES),
        ("Is the left lung larger than the right?", ""),
        ("Is the heart enlarged?", ""),
        ("how old is the patient?", remarks.NAMES_NOTHING),
        ("how many nodules are there?", ""),
        ("what do you see in this picture?", ""),
        ("Is this normal?", ""),
        ("detect ILD", ""),
        ("left lung", ""),
        ("where are the lungs", ""),
        ("Are there any rib fractures", ""),
        ("is there an endotracheal tube?", ""),
    ],
)
def test_questions_that_no_model_here_can_answer(question, said):
    assert remarks.of_question(question) == said


def test_the_words_that_models_learn_from_are_known():
    for version in ("1", "3"):
        for wordings in load_templates(version).questions.values():
            for wording in wordings:
                for name in CLASSES:
                    fields = ("finding", "the_finding", "a_finding", "findings")
                    question = wording.format_map(dict.fromkeys(fields, name))
                    assert remarks.of_question(question) == "", question
