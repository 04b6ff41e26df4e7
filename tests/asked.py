"""Questions that tests ask."""

from cxrjax.records import QARecord


def asked(**changes) -> QARecord:
    record = {
        "dataset": "custom",
        "split": "validation",
        "image_id": "i",
        "image_path": "i.png",
        "image_hw": (300, 200),
        "question_id": "q",
        "question": "Where?",
        "question_type": "free",
    }
    return QARecord(**record | changes)
