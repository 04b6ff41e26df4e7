"""The codecs by name."""

import difflib

from cxrjax.codecs.base import Codec
from cxrjax.codecs.chexagent import CheXagent
from cxrjax.codecs.internvl import InternVl
from cxrjax.codecs.llava import Llava
from cxrjax.codecs.maira2 import Maira2
from cxrjax.codecs.medgemma import GeminiJson, MedGemmaJson
from cxrjax.codecs.minigpt import MiniGpt
from cxrjax.codecs.paligemma import PaliGemma
from cxrjax.codecs.prose import Gemex, VinDrPixels
from cxrjax.codecs.radvlm import RadVlm
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
