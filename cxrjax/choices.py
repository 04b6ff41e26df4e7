"""Names that flags choose among, here too so that `--help` imports nothing that has them.

tests/test_wheel.py compares each with the table that it is of.
"""

import difflib
import enum
import re

from cxrjax.errors import UserError
from cxrjax.family_tables import family_tables

# cxrjax.codecs.CODECS
CODECS = (
    *("chexagent", "deepseek_vl2", "florence2", "gemex", "gemini_json", "glm_v", "internvl"),
    *("kosmos2", "llava", "maira2", "medgemma_json", "minigpt", "paligemma", "qwen2.5_vl"),
    *("qwen2.5_vl_448", "qwen2_vl", "qwen3_vl", "qwen_vl", "radvlm", "vindr_px"),
)
# cxrjax.input_pipeline.prompts.PROMPTS
_chats = {name: form for name, form in family_tables("chat").items() if not form.get("prompt")}
_talks = tuple(name for name, form in _chats.items() if form.get("end"))
PROMPTS = tuple(
    sorted(
        (
            *("detect", "gemex", "gemex_chat", "gemex_dialogue", "grounded", "grounded_chat"),
            *("grounding", "medgemma_boxes", *_chats),
            *(f"gemex_{name}" for name in _chats if name not in _talks),
            *(f"{name}{end}" for name in ("vqa", *_talks) for end in ("_reason", "_typed")),
            "vqa",
        )
    )
)
# cxrjax.apps.annotations.formats.FORMATS
ANNOTATION_FORMATS = (
    *("coco", "via", "supervisely", "md_ai", "chestx_det", "labelme", "createml", "darwin"),
    *("labelbox", "encord", "datumaro", "sagemaker", "hugging_face", "swift", "padchest_gr"),
    *("chexlocalize", "superannotate", "vott", "prodigy", "scale", "mmdetection", "fiftyone"),
    *("boxes", "pascal_voc", "cvat", "chat", "yolo", "label_studio", "csv", "dicom_sr", "masks"),
)
# cxrjax.input_pipeline.wording.REWORDINGS
REWORDINGS = ("form", "synonym", "lower", "upper", "title", "no_mark", "typo", "unknown")
# cxrjax.decoding.answer_forms.ANSWER_FORMS
GRAMMARS = (
    *("none", "boxes", "located", "yes_no", "option", "options", "names"),
    *("findings", "detections"),
)
# cxrjax.decoding.box_readings.BOX_READINGS
BOX_READINGS = ("greedy", "smoothed", "median", "expected_iou")
# cxrjax.evaluation.systems: stand_in_images.STAND_INS, systems.WORDINGS, systems.READINGS
STAND_INS = ("shown", "blind", "shuffled", "noise", "blurred", "masked")
WORDINGS = ("plain", "typed", "grounded", "locate")
READINGS = ("whole", "final", "turn")
# cxrjax.apps.results.pictures.PICTURES
PICTURES = ("auto", "file", "folder", "none")


class NamedChoice(enum.StrEnum):
    """Names to choose from. Text of the same value does as well; other text is a `UserError`."""

    @classmethod
    def _missing_(cls, value: object) -> "NamedChoice":
        names = [one.value for one in cls]
        near = difflib.get_close_matches(str(value), names, n=len(names), cutoff=0)
        kind = re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
        raise UserError(
            f"{str(value)!r}: no such {kind}; the nearest is {near[0]!r}; expected one of "
            f"{', '.join(sorted(names))}"
        )


def _members(names: tuple[str, ...]) -> dict[str, str]:
    return {re.sub(r"\W", "_", name): name for name in names}


class Prompt(NamedChoice):
    """Prompt formats: how a question is put to a model (docs/boxes.md)."""

    vars().update(_members(PROMPTS))


class BoxFormat(NamedChoice):
    """Box formats: how a model writes boxes in its text (docs/boxes.md)."""

    vars().update(_members(CODECS))


class AnswerForm(NamedChoice):
    """Grammars of `decoding.grammar`: what answers may be (cxrjax/decoding/answer_forms.py)."""

    vars().update(_members(GRAMMARS))


class BoxReading(NamedChoice):
    """Readings of coordinates, `decoding.boxes` (cxrjax/decoding/box_readings.py)."""

    vars().update(_members(BOX_READINGS))
