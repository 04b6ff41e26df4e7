"""The codecs by name, from one convention to another, and what a convention costs."""

import difflib
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from cxrjax import boxes as box_arithmetic
from cxrjax.codecs.base import Codec
from cxrjax.codecs.frames import BoxGeometry
from cxrjax.codecs.medgemma import GeminiJson, MedGemmaJson
from cxrjax.codecs.prose import CheXagent, Gemex, InternVl, Llava, MiniGpt, RadVlm, VinDrPixels
from cxrjax.codecs.tokens import Maira2, PaliGemma
from cxrjax.errors import UserError

CODECS: dict[str, Codec] = {
    "paligemma": PaliGemma(),
    "vindr_px": VinDrPixels(),
    "medgemma_json": MedGemmaJson(),
    "gemex": Gemex(),
    "maira2": Maira2(),
    "chexagent": CheXagent(),
    "radvlm": RadVlm(),
    "llava": Llava(),
    "gemini_json": GeminiJson(),
    "internvl": InternVl(),
    "minigpt": MiniGpt(),
}


def get_codec(name: str) -> Codec:
    """The codec of that name.

    Raises:
        UserError: there is none; suggests the nearest.
    """
    if name not in CODECS:
        nearest = difflib.get_close_matches(name, CODECS, n=1, cutoff=0.0)[0]
        raise UserError(
            f"no box codec {name!r}: did you mean {nearest!r}? (known: {', '.join(CODECS)})"
        )
    return CODECS[name]


def transcode(
    text: str,
    source: str,
    target: str,
    height: int,
    width: int,
    geometry: BoxGeometry | None = None,
) -> str:
    """The text with each box rewritten from one convention to another, prose untouched.

    For answers that are truth, so the source is read strictly.

    Args:
        source, target: names of the codec that wrote the boxes, and of the one to write them anew.
        height, width: of the original image, pixels.
        geometry: how the image was placed into the model's input; None is a plain resize.

    Raises:
        UserError: a box is begun that strict reading refuses (it would stay behind as it is), or
            there is no such codec.
    """
    reader, writer = get_codec(source), get_codec(target)
    for failure in reader.decode(text, height, width, geometry, strict=True).failures:
        if failure.category not in ("no_box", "refusal"):
            raise UserError(
                f"{failure.text!r} at character {failure.start} is no {source} box of a "
                f"{width} x {height} image: {failure.category}; correct the answer or set it aside"
            )
    pieces, done = [], 0
    for span in reader.find(text, height, width, geometry, strict=True):
        pieces.append(text[done : span.start])
        pieces.append(writer.encode(span.box[None], height, width, geometry, [span.label]))
        done = span.end
    return "".join([*pieces, text[done:]])


def codec_iou_ceiling(
    codec: str,
    boxes: Num[Any, "n 4"],
    height: int,
    width: int,
) -> Float[np.ndarray, " n"]:
    """IoU of each box with itself after writing and reading: the most a perfect answer can score.

    Of a model whose input is the whole image, resized; `boxes` are fractions of the original.

    Raises:
        UserError: as `Codec.encode`, or there is no such codec.
    """
    convention = get_codec(codec)
    text = convention.encode(boxes, height, width)
    read = convention.decode(text, height, width, strict=True).boxes
    return box_arithmetic.iou(np.asarray(boxes), read)
