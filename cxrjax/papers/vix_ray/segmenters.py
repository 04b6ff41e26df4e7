"""Words of Vietnamese texts: blanks separate syllables, and a word has one or several.

The paper segments with VnCoreNLP (section 3.3), which needs Java and a model that no registry has;
the default is pyvi, whose model comes with its package.
"""

import functools
import os
import re
import unicodedata
from collections.abc import Callable, Sequence

from cxrjax.errors import UserError, optional
from cxrjax.paths import to_path

# Text -> words, the syllables of each joined by "_", punctuation as words of its own.
Segment = Callable[[str], list[str]]

VNCORENLP_FOLDER = "VNCORENLP_DIR"
_IS_WORD = re.compile(r"\w")
# Of what pyvi is given at once: its time grows with the square. No report is as long.
_AT_ONCE = re.compile(r".{1,5000}(?=\s|\Z)|.{1,5000}", re.DOTALL)
_SYLLABLE = re.compile(r"\w+(?:[.,/-]\w+)*|[^\w\s]")


def words(segment: Segment, text: str) -> list[str]:
    """The words of a text, punctuation left out."""
    return [word for word in segment(normal(text)) if _IS_WORD.search(word)]


def normal(text: str) -> str:
    """The text in Unicode's form NFC, which the segmenters were trained on."""
    return unicodedata.normalize("NFC", text)


def _syllables() -> Segment:
    return lambda text: _SYLLABLE.findall(normal(text))


def _pyvi() -> Segment:
    tokenizer = optional("pyvi.ViTokenizer", "vietnamese")  # seconds to import

    def segment(text: str) -> list[str]:
        pieces = _AT_ONCE.findall(normal(text))
        return [word for piece in pieces for word in tokenizer.tokenize(piece).split()]

    return segment


def _vncorenlp() -> Segment:
    folder = os.environ.get(VNCORENLP_FOLDER)
    if not folder or not to_path(folder).is_dir():
        raise UserError(
            f"--segmenter=vncorenlp: the environment's {VNCORENLP_FOLDER} is {folder!r}, expected "
            "the folder with VnCoreNLP's jar and models/ (py_vncorenlp.download_model makes it)"
        )
    try:
        import py_vncorenlp
    except ImportError:
        raise UserError(
            "--segmenter=vncorenlp: py_vncorenlp is not installed (pip install py_vncorenlp; it "
            "needs Java)"
        ) from None
    model = py_vncorenlp.VnCoreNLP(annotators=["wseg"], save_dir=str(to_path(folder).resolve()))

    def segment(text: str) -> list[str]:
        sentences: Sequence[str] = model.word_segment(normal(text))
        return [word for sentence in sentences for word in sentence.split()]

    return segment


SEGMENTERS: dict[str, Callable[[], Segment]] = {
    "pyvi": _pyvi,
    "syllables": _syllables,
    "vncorenlp": _vncorenlp,
}


@functools.cache
def load_segmenter(name: str = "pyvi") -> Segment:
    """The segmenter of this name.

    Raises:
        UserError: it is not known, or what it needs is not installed.
    """
    if name not in SEGMENTERS:
        raise UserError(f"--segmenter={name}: expected one of {', '.join(SEGMENTERS)}")
    return SEGMENTERS[name]()
