"""Box <-> text, in every convention that a dataset or a model uses.

`base` says what decoding accepts and how it counts failures, `frames` what numbers can count;
`prose`, `tokens` and `medgemma` have the grammars; `table` lists them.
"""

from cxrjax.codecs.base import FAILURE_CATEGORIES, BoxSpan, Codec, Decoded, Failure, FailureCategory
from cxrjax.codecs.frames import BoxGeometry
from cxrjax.codecs.table import CODECS, get_codec, transcode

__all__ = [
    "CODECS",
    "FAILURE_CATEGORIES",
    "BoxGeometry",
    "BoxSpan",
    "Codec",
    "Decoded",
    "Failure",
    "FailureCategory",
    "get_codec",
    "transcode",
]
