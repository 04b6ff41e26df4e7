"""What answers say of what is asked, by the kinds of wording that were read wrongly once."""

import numpy as np
import pytest

from bench.readers.__main__ import grade_file
from bench.readers.sentences import FOLDER
from cxrjax.radiology_text.answer_details import place_said
from cxrjax.radiology_text.answers import EnglishReader, without_reason
from cxrjax.radiology_text.assertions import joined_side

READER = EnglishReader()
# Of 300 answers that an independent annotator labelled.
FLOOR = 0.98


def test_labelled_answers_are_read_right():
    graded = grade_file(FOLDER / "answers_en.tsv")
    right = sum(one.is_right for one in graded) / len(graded)
    assert right >= FLOOR


HEART, LUNGS, CHEST = "Is the heart normal?", "Are the lungs clear?", "Is this chest x-ray normal?"
TRACHEA, ANGLES, BONES = "Is the trachea midline?", "Are the angles sharp?", "Are the bones intact?"
FREE, LEFT_LUNG = "Is the chest free of pneumothorax?", "Is the left lung clear?"
PNEUMONIA, RIGHT = "Is there pneumonia?", "Is there a right pleural effusion?"
EFFUSION, LARGE = "Is there a pleural effusion?", "Is the heart enlarged?"
ANY, WHICH = "Is any abnormality present?", "Which abnormality is seen in the right lung?"
TIP, COUNT = "Where is the tip of the endotracheal tube?", "How many nodules are there?"


def _check(question, outcome, *answers):
    assert {a: READER.read(a, question).outcome for a in answers} == dict.fromkeys(answers, outcome)


def test_yes_to_a_question_of_normality_means_normal():
    _check(HEART, "yes", "Yes", "Normal.", "It is normal.", "No cardiomegaly.", "hart is nrmal")
    _check(HEART, "no", "No", "Enlarged.", "Not normal, it is enlarged.", "Moderate cardiomegaly.")
    _check(HEART, "no", "The heart is not normal.", "Abnormal", "No, there is cardiomegaly.")
    _check(HEART, "undecided", "Borderline.", "I cannot tell", "Yes, the heart is enlarged.")
    _check(HEART, "nothing", "The heart", "banana")
    _check(LUNGS, "yes", "Clear.", "They are.", "Yes, no consolidation.", "Normal chest film.")
    _check(LUNGS, "no", "Not clear.", "No, they are not.", "There is pulmonary edema.")
    _check(LUNGS, "no", "The lungs are not completely clear.")
    _check(LUNGS, "off_topic", "There is no pneumothorax.", "The heart is enlarged.")
    _check(LEFT_LUNG, "off_topic", "Opacity in the right lung.", "The right lung is clear.")
    _check(CHEST, "yes", "Unremarkable.", "The heart is normal and the lungs are clear.")
    _check(CHEST, "no", "The study is abnormal.", "There is a fracture.", "Small left effusion")
    _check(BONES, "yes", "Intact.", "No acute fracture.")
    _check(BONES, "no", "There is a rib fracture.", "Degenerative changes of the spine.")
    _check(FREE, "yes", "No pneumothorax.", "Yes, there is no pneumothorax.")
    _check(FREE, "no", "Small left apical pneumothorax.", "No, there is a pneumothorax.")


def test_what_is_still_there_has_not_resolved():
    resolved = "Has the effusion resolved?"
    _check(resolved, "yes", "Gone.", "Completely resolved.", "It was removed.", "No effusion.")
    _check(resolved, "no", "It is still there.", "Still present", "It is visible at the left base.")
    _check(EFFUSION, "no", "Gone.", "It has resolved.")
    _check(EFFUSION, "yes", "Still there.", "It is visible at the left base.")


def test_a_state_alone_is_the_asked_organs():
    _check(TRACHEA, "no", "Deviated to the left.", "Shifted to the right")
    _check(TRACHEA, "yes", "Midline.", "It is midline")
    _check(LARGE, "yes", "Slightly.", "Mildly.", "Enlarged")
    _check(LARGE, "no", "Normal.", "Not really.", "No, normal.")
    _check("Are the costophrenic angles sharp?", "no", "They are blunted.", "Blunted on the left.")


def test_a_pronoun_stands_for_what_is_asked():
    _check(EFFUSION, "no", "It has resolved.", "It has been removed.")
    _check(EFFUSION, "undecided", "It cannot be excluded.")
    _check(
        EFFUSION, "nothing", "It", "This is a chest x-ray.", "An effusion is a collection of fluid."
    )
    _check("Is the aorta normal?", "no", "Tortuous.", "The aorta is calcified.")


def test_the_answers_own_part_counts():
    _check(PNEUMONIA, "no", "Reasoning: opacity in the left base. Final answer: No")
    _check(PNEUMONIA, "no", "**Answer:** No\n**Explanation:** There is pneumonia elsewhere.")
    _check(PNEUMONIA, "no", "Answer: Yes\nFinal answer after review: No", "My answer is no.")
    _check(PNEUMONIA, "no", "<think>Pneumonia, maybe.</think> No", "No<|im_end|><|user|> Yes")
    _check(PNEUMONIA, "yes", "The base is dense. So the answer is yes.", "Yes, because it is.")
    _check(PNEUMONIA, "yes", "The answer is: Yes.", "Hence: yes", "I would answer yes.")
    _check(PNEUMONIA, "undecided", "The answer is not clear.", "Answer: unknown")


def test_what_is_taken_back_does_not_count_and_what_is_gainsaid_decides_nothing():
    _check(PNEUMONIA, "no", "Yes, correction: no.", "Yes - scratch that. There is no pneumonia.")
    _check(PNEUMONIA, "no", "Yes. Let me correct myself: there is no pneumonia.")
    _check(PNEUMONIA, "yes", "No, I meant yes.", "No. Correction: there is pneumonia.")
    _check(PNEUMONIA, "undecided", "Yes no yes no", "yes/no", "Yes. No.", "No. Actually yes.")
    _check(PNEUMONIA, "undecided", "Present. Absent.", "True. False.", "Yes, scratch that.")
    _check(PNEUMONIA, "undecided", "Yes, there is no pneumonia.", "Pneumonia is present (no).")


def test_the_side_asked_decides():
    _check(RIGHT, "no", "Yes, a left effusion, and no effusion on the right.")
    _check(RIGHT, "no", "Yes, there is an effusion, but on the left; none on the right.")
    _check(RIGHT, "no", "No, the effusion is on the left.", "No effusion on either side.")
    _check(RIGHT, "off_topic", "Left effusion.", "On the left.", "Yes, a left effusion.")
    _check(RIGHT, "off_topic", "There is no left effusion.")
    _check(RIGHT, "no", "Left: yes. Right: no.")
    _check(RIGHT, "yes", "Bilateral effusions.", "On the right.")
    _check("Is there a right aortic arch?", "no", "No right aortic arch is identified.")


def test_who_refuses_decides_nothing_unless_something_is_said():
    _check(PNEUMONIA, "undecided", "I am not able to interpret X-rays.", "No image was provided.")
    _check(PNEUMONIA, "undecided", "It's not possible to determine this.", "I won't answer that.")
    _check(PNEUMONIA, "undecided", "I cannot determine whether pneumonia is present.", "50/50")
    _check(PNEUMONIA, "undecided", "I don't have enough information.", "I am not entirely sure.")
    _check(PNEUMONIA, "undecided", "Je suis désolé, je ne peux pas répondre.", "No puedo responder")
    _check(PNEUMONIA, "no", "I can't see any pneumonia.", "I am unable to find pneumonia.")
    _check(PNEUMONIA, "no", "I can't give medical advice, but the lungs are clear.")
    _check(PNEUMONIA, "yes", "I can't be certain, but there is likely pneumonia.")


def test_general_questions():
    _check(ANY, "yes", "Small effusion.", "Cardiomegaly.", "Abnormal")
    _check(ANY, "no", "The chest is normal.", "No abnormality.", "Everything is normal.")
    _check(ANY, "off_topic", "No pneumothorax.")
    _check(WHICH, "yes", "Nodule.")
    _check(WHICH, "no", "None.", "The right lung is clear.", "The right lung is normal.")
    _check(WHICH, "off_topic", "Left-sided effusion.")
    _check(PNEUMONIA, "no", "Cardiomegaly, otherwise normal.")
    _check("Is there lung opacity?", "yes", "Consolidation.", "Diffuse edema")


def test_places_sizes_and_numbers_answer():
    _check(TIP, "yes", "4 cm above the carina.", "At the level of the clavicles.")
    _check(COUNT, "yes", "Two nodules.", "At least two.", "I count four.", "3")
    _check(COUNT, "no", "0", "There are none.", "No nodules.")
    _check(EFFUSION, "yes", "Small.", "Moderate, on the right.", "Left-sided.")


def test_courtesy_noise_and_other_languages():
    _check(EFFUSION, "nothing", "Sure, I'd be happy to help you with that!", "The image", "👍")
    _check(EFFUSION, "no", "Sure! There is no pleural effusion.", '{"answer": false}', "(B) No")
    _check(
        EFFUSION, "no", "Não", "Nein", "Không", "No hay derrame pleural.", "absnt", "Effusion? No."
    )
    _check(EFFUSION, "yes", "Sí", "có", "Oui", "ja", "Certainly! There is an effusion.", "A) Yes")
    _check(EFFUSION, "yes", "Pneumothorax? No. Effusion? Yes.")
    _check(EFFUSION, "no", "| Feature | Seen |\n| effusion | no |\n| edema | yes |")
    _check(EFFUSION, "undecided", "Pleural effusion?", "Further CT to rule out an effusion.")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("No. Reasoning: an effusion", "No. "),
        ("Yes, because it is", "Yes, "),
        ("Reasoning: an effusion", "Reasoning: an effusion"),
        ("No effusion for this reason", "No effusion for this reason"),
    ],
)
def test_a_reason_is_cut_off(text, kept):
    assert without_reason(text) == kept


def test_sides_of_boxes_are_the_patient_s():
    """His right is on the picture's left."""
    left, right, middle = [0.6, 0.2, 0.8, 0.4], [0.1, 0.2, 0.3, 0.4], [0.45, 0.1, 0.56, 0.9]
    for boxes, sides in (([left], {"left"}), ([right, middle], {"right"}), ([middle], set())):
        assert place_said("There.", np.array(boxes)).sides == sides
    assert place_said("On the right.", np.array([left])).sides == {"right"}
    assert joined_side(["left", None, "right"]) == joined_side(["bilateral", "left"]) == "bilateral"
    assert joined_side(["left", None, "left"]) == "left" and joined_side([None]) is None
