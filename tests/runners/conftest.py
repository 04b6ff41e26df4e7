"""Records that runners' tests ask about."""

import pytest

from cxrjax.records import Answer, QARecord


@pytest.fixture
def record():
    """Makes a record; `boxes` are pixels of an image of 100 by 200, `said` the answer's text."""

    def make(number, *, boxes=(), said=None, labels=(), polarity="unk", **fields):
        image_id = fields.pop("image_id", "i")
        finding = fields.pop("finding", None)
        answer = Answer(
            text=said or "",
            labels=list(labels),
            polarity=polarity,
            boxes_by_image={image_id: [list(box) for box in boxes]} if boxes else {},
        )
        given = {
            "dataset": "custom",
            "split": "train",
            "image_path": f"{image_id}.png",
            "image_hw": (100, 200),
            "question": "What is seen?",
            "question_type": "What",
            "variables": {"finding": finding} if finding else None,
            "answers": [] if said is None else [answer],
        }
        return QARecord(image_id=image_id, question_id=f"q{number}", **{**given, **fields})

    return make
