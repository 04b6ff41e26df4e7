"""The codecs by name, from one convention to another, and what a convention costs."""

import difflib
import re
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from cxrjax.cli import input_sizes
from cxrjax.codecs import prose
from cxrjax.codecs.base import NOT_BEGUN, Codec
from cxrjax.codecs.frames import BoxGeometry
from cxrjax.codecs.medgemma import GeminiJson, MedGemmaJson, Qwen3Vl, Qwen25Vl, Qwen25VlInput
from cxrjax.codecs.tokens import Florence2, Kosmos2, Maira2, PaliGemma
from cxrjax.errors import UserError

CODECS: dict[str, Codec] = {
    "paligemma": PaliGemma(),
    "vindr_px": prose.VinDrPixels(),
    "medgemma_json": MedGemmaJson(),
    "gemex": prose.Gemex(),
    "maira2": Maira2(),
    "chexagent": prose.CheXagent(),
    "radvlm": prose.RadVlm(),
    "llava": prose.Llava(),
    "gemini_json": GeminiJson(),
    "internvl": prose.InternVl(),
    "minigpt": prose.MiniGpt(),
    "qwen_vl": prose.QwenVl(),
    "qwen2_vl": prose.Qwen2Vl(),
    "qwen2.5_vl": Qwen25Vl(),
    "qwen2.5_vl_448": Qwen25VlInput((448, 448)),
    "qwen3_vl": Qwen3Vl(),
    "deepseek_vl2": prose.DeepSeekVl2(),
    "glm_v": prose.GlmV(),
    "florence2": Florence2(),
    "kosmos2": Kosmos2(),
}


_OF_INPUT = re.compile(r"qwen2\.5_vl_([1-9]\d{1,4}x[1-9]\d{1,4}(?:,[1-9]\d{1,4}x[1-9]\d{1,4})*)")


def is_codec(name: str) -> bool:
    """Returns whether `get_codec` knows the name."""
    return name in CODECS or _OF_INPUT.fullmatch(name) is not None


def get_codec(name: str) -> Codec:
    """The codec of that name, of `CODECS` or of `Qwen25VlInput`.

    Raises:
        UserError: there is none; suggests the nearest.
    """
    if found := _OF_INPUT.fullmatch(name):
        return Qwen25VlInput(*input_sizes(found[1]))
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
    move: Callable[[Float[np.ndarray, "n 4"]], Float[np.ndarray, "n 4"]] | None = None,
) -> str:
    """The text with each box rewritten from one convention to another, prose untouched.

    For answers that are truth, so the source is read strictly.

    Args:
        source, target: names of the codec that wrote the boxes, and of the one to write them anew.
        height, width: of the original image, pixels.
        geometry: how the image was placed into the model's input; None is a plain resize.
        move: takes all boxes, fractions of the original, to where the changed image has them, in
            the order in which they are to be written.

    Raises:
        UserError: a box is begun that strict reading refuses (it would stay behind as it is), or
            there is no such codec.
    """
    reader, writer = get_codec(source), get_codec(target)
    for failure in reader.decode(text, height, width, geometry, strict=True).failures:
        if failure.category not in NOT_BEGUN:
            raise UserError(
                f"{failure.text!r} at character {failure.start} is no {source} box of a "
                f"{width} x {height} image: {failure.category}; correct the answer or set it aside"
            )
    pieces, done = [], 0
    spans = reader.find(text, height, width, geometry, strict=True)
    boxes = np.array([span.box for span in spans], np.float32).reshape(-1, 4)
    for span, box in zip(spans, boxes if move is None else move(boxes), strict=True):
        pieces.append(text[done : span.start])
        pieces.append(writer.encode(box[None], height, width, geometry, [span.label]))
        done = span.end
    return "".join([*pieces, text[done:]])
