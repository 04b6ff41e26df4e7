"""Answers in parts with each part's boxes behind it."""

from cxrjax.images.geometry import IDENTITY
from cxrjax.input_pipeline.prompts import PROMPTS, BoxText
from cxrjax.records import Answer, QARecord


def test_parts_carry_their_boxes_on_the_records_image():
    record = QARecord(
        dataset="cxr_qba",
        split="train",
        image_id="i",
        image_path="i.png",
        image_hw=(100, 200),
        question_id="q",
        question="What is seen?",
        question_type="B01_describe_all",
        answers=[
            Answer(
                text="There is an effusion.",
                boxes_by_image={"i": [[0, 0, 100, 50]], "other": [[1, 2, 3, 4]]},
            ),
            Answer(answer_type="related", text="Not said.", boxes_by_image={"i": [[1, 2, 3, 4]]}),
            Answer(text="There is no pneumothorax."),
        ],
    )
    boxes = BoxText("vindr_px", "vindr_px", 100, 200, IDENTITY)
    expected = "There is an effusion. <loc_0_0_100_50> There is no pneumothorax."
    assert PROMPTS["grounded"].target(record, boxes) == expected
    assert PROMPTS["grounded"].prefix(record) == "What is seen?\n"
    assert expected in PROMPTS["grounded_chat"].target(record, boxes)
