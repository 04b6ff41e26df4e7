"""Records for tests of pages: what a test does not name is some question about an image `i`."""

from typing import Any

from cxrjax.records import Answer, QARecord
from tests.apps.rows import ROWS


def make_record(question_id: str, text: str, boxes: Any = (), /, answer=(), **fields) -> QARecord:
    """A record of one answer with boxes on its image; `answer` has more fields of that."""
    image_id = fields.get("image_id", "i")
    on_it = {image_id: [list(box) for box in boxes]} if boxes else {}
    given = {"dataset": "custom", "split": "train", "image_path": f"{image_id}.png"}
    given |= {"question": "Where is it?", "question_type": "Where", "image_id": image_id}
    answers = [Answer(text=text, boxes_by_image=on_it, **dict(answer))]
    return QARecord(**given | {"question_id": question_id, "answers": answers} | fields)


def records_of(name: str) -> list[QARecord]:
    """Those of rows.toml."""
    rows = ROWS["records"][name]
    return [make_record(*told, answer=answer, **fields) for *told, answer, fields in rows]
