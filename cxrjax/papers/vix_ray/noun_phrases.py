"""Noun phrases of reports, counted: body parts in findings, diagnoses in impressions.

The paper reads them off Stanza's parse trees and filters the anatomical ones (section 3.2); Stanza
needs PyTorch and models that no registry has. Here a phrase is a run of nouns and what qualifies
them, by pyvi's part-of-speech tags, corrected by a list of terms (`terms_v1.json`): the tags were
trained on news. Both are approximations; figures of the two are not comparable one by one.

Words come of segmentation: blanks separate syllables, and a word has one or several. The paper
segments with VnCoreNLP (section 3.3), which needs Java and a model that no registry has; the
default is pyvi, whose model comes with its package.
"""

import collections
import dataclasses
import functools
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from cxrjax.errors import UserError, optional
from cxrjax.files import read_packaged
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


VERSION = "1"
_NOUN_TAGS = ("N", "Np", "Nc", "Nu", "Ny", "Nb")
_QUALIFYING_TAGS = ("A", "M")
_PIECE = re.compile(r"[\w/]+|[^\w\s/]")
# Kinds of a token within a phrase.
_NOUN, _QUALITY, _BREAK = "noun", "quality", "break"


@dataclasses.dataclass(frozen=True)
class Terms:
    """A list of terms: syllables in lower case -> kind."""

    kinds: dict[tuple[str, ...], str]

    @functools.cached_property
    def longest(self) -> int:
        """Syllables of the longest."""
        return max(map(len, self.kinds))


@functools.cache
def _terms(*names: str) -> Terms:
    """The terms under these names, from the package's data file."""
    data = read_packaged(str(__package__), f"terms_v{VERSION}.json")
    kinds = {"qualities": _QUALITY, "breaks": _BREAK}
    return Terms(
        {tuple(term.split()): kinds.get(name, _NOUN) for name in names for term in data[name]}
    )


def body_parts(texts: Iterable[str]) -> collections.Counter[str]:
    """Anatomical terms in the noun phrases of findings -> how often."""
    terms, anatomy = _terms("anatomy", "qualities", "breaks"), _terms("anatomy").kinds
    return collections.Counter(
        " ".join(part)
        for text in texts
        for phrase in _phrases(text, terms)
        for part in phrase
        if part in anatomy
    )


def diagnoses(texts: Iterable[str]) -> collections.Counter[str]:
    """Noun phrases of impressions, whole -> how often."""
    terms = _terms("anatomy", "findings", "qualities", "breaks")
    return collections.Counter(
        " ".join(syllable for part in phrase for syllable in part)
        for text in texts
        for phrase in _phrases(text, terms)
    )


def _phrases(text: str, terms: Terms) -> Iterator[list[tuple[str, ...]]]:
    """The noun phrases of a text: their terms and words, as syllables in lower case."""
    phrase: list[tuple[str, ...]] = []
    for syllables, kind in [*_tokens(normal(text).lower(), terms), ((), _BREAK)]:
        if kind == _NOUN or (kind == _QUALITY and phrase):
            phrase.append(syllables)
        elif phrase:
            yield phrase
            phrase = []


def _tokens(text: str, terms: Terms) -> Iterator[tuple[tuple[str, ...], str]]:
    """Terms, the longest first, and between them words as the tagger sees them."""
    pieces = _PIECE.findall(text)
    between: list[str] = []
    start = 0
    while start < len(pieces):
        for length in range(min(terms.longest, len(pieces) - start), 0, -1):
            term = tuple(pieces[start : start + length])
            if term in terms.kinds:
                yield from _tagged(" ".join(between))
                between = []
                yield term, terms.kinds[term]
                start += length
                break
        else:
            between.append(pieces[start])
            start += 1
    yield from _tagged(" ".join(between))


@functools.lru_cache(maxsize=100_000)
def _tagged(text: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """The words of a stretch without terms, each with its kind by the tag it gets."""
    if not text:
        return ()
    # Not at the top: seconds to import.
    tokenizer = optional("pyvi.ViTokenizer", "vietnamese")
    tagger = optional("pyvi.ViPosTagger", "vietnamese")
    words, tags = tagger.postagging(tokenizer.tokenize(text))
    kinds = dict.fromkeys(_NOUN_TAGS, _NOUN) | dict.fromkeys(_QUALIFYING_TAGS, _QUALITY)
    return tuple(
        (tuple(word.split("_")), kinds.get(str(tag), _BREAK))
        for word, tag in zip(words, tags, strict=True)
    )
