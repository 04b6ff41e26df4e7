"""From one convention to another, and what a convention costs."""

from typing import Any

import numpy as np
from jaxtyping import Float, Num

from cxrjax import boxes as box_arithmetic
from cxrjax.codecs.frames import BoxGeometry
from cxrjax.codecs.table import get_codec
from cxrjax.errors import UserError


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
        text: prose with boxes in the source's exact grammar, or without any.
        source: name of the codec that wrote the boxes. target: of the one to write them anew.
        height: of the original image, pixels. width: likewise.
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

    Of a model whose input is the whole image, resized.

    Args:
        codec: its name.
        boxes: xyxy, fractions of the original image.
        height: of the original image, pixels. width: likewise.

    Raises:
        UserError: as `Codec.encode`, or there is no such codec.
    """
    convention = get_codec(codec)
    text = convention.encode(boxes, height, width)
    read = convention.decode(text, height, width, strict=True).boxes
    return box_arithmetic.iou(np.asarray(boxes), read)
