"""Trains the small tokenizer of the demo and the tests.

    python -m bench.tokenizer_training --out=data/demo_base/tokenizer.model

2,048 pieces: PaliGemma's special ids, 1,024 `<loc>`, 128 `<seg>`, the newline, 256 bytes (so that
no text is lost), and what is left for words of chest radiography. Takes seconds; the same corpus
gives the same bytes. In Vietnamese, from the questions and reports of ViX-Ray's synthetic set:

    python -m bench.tokenizer_training --corpus=vix_ray \\
        --out=data/vix_ray/tokenizer.model
"""

import argparse
import io
import itertools
import random
import re
import string
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from cxrjax import papers
from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.files import read_json_object, reading
from cxrjax.input_pipeline.tokenizer import (
    BOS_ID,
    EOS_ID,
    LOC_PIECES,
    PAD_ID,
    SEG_PIECES,
    UNK_ID,
    Tokenizer,
)
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vix_ray.records import CONCLUDE, GENDERS, STAGE_TAGS, VIEW_DEFINITIONS, prompt
from cxrjax.simulation.vix_ray import LesionCentre, word_report
from cxrjax.untrusted.foreign_files import read_text

VOCAB_SIZE = 2048
_REPORTS = 3000

_CORPUS = tomllib.loads(Path(__file__).with_name("tokenizer_corpus.toml").read_text())
_ANATOMY, _PHRASES = tuple(_CORPUS["anatomy"]), tuple(_CORPUS["phrases"])
_PLACES = tuple(f"{side} {zone}" for side in _CORPUS["sides"] for zone in _CORPUS["zones"])
# Single characters of English stay single pieces instead of a byte each or a missing one.
_CHARACTERS = string.ascii_letters + string.digits + string.punctuation


def template_corpus() -> Iterator[str]:
    """Questions and answers about every finding and structure, and the datasets' own wordings."""
    things = (*CLASSES, *(name.lower() for name in CLASSES), *_ANATOMY)
    for phrase in (*_PHRASES, *_dataset_wordings()):
        slots = _Slots(things)
        for _ in things:
            yield re.sub(r"\{(\w+)\}", slots.fill, phrase)


def vix_ray_corpus() -> Iterator[str]:
    """Questions and reports in Vietnamese, of made-up patients and lesions."""
    for number in range(_REPORTS):
        rng = random.Random(f"{number}/corpus")
        lesions = [
            LesionCentre(label, rng.random(), rng.random())
            for label in rng.sample(CLASSES, rng.randrange(5))
        ]
        report = word_report(lesions, rng)
        view, sex = rng.choice([*VIEW_DEFINITIONS]), rng.choice([*GENDERS])
        yield from (report.findings, report.impression, *STAGE_TAGS.values())
        yield from (prompt(view, sex, rng.randrange(18, 100)), CONCLUDE)


CORPORA: dict[str, Callable[[], Iterable[str]]] = {
    "templates": template_corpus,
    "vix_ray": vix_ray_corpus,
}


class _Slots:
    """Fills a phrase's slots, each time with the next value of its kind."""

    def __init__(self, things: Sequence[str]) -> None:
        boxes = ["".join(LOC_PIECES[k : k + 4]) for k in range(0, len(LOC_PIECES), 4)]
        lists = [f"{a}, {b} and {c}" for a, b, c in zip(things, things[1:], things[2:])]  # noqa: B905
        values = {
            ("thing", "finding", "a_finding", "the_finding", "The_finding"): things,
            ("structure",): _ANATOMY,
            ("findings",): lists,
            ("place",): _PLACES,
            ("box", "boxes", "boxes_and"): boxes,
            ("count",): string.digits,
            ("range",): ["1 to 2", "2 to 4", "0 to 3"],
        }
        self._values = {name: itertools.cycle(of) for names, of in values.items() for name in names}

    def fill(self, slot: re.Match[str]) -> str:
        return next(self._values[slot[1]])


def _dataset_wordings() -> Iterator[str]:
    """Questions and answers in the datasets' template files."""
    for folder in papers.__path__:
        for path in sorted(Path(folder).glob("*/construct/templates*.json")):
            wordings = read_json_object(path)
            yield from _strings([wordings["questions"], wordings["answers"]])


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def train_tokenizer(corpus: Iterable[str]) -> bytes:
    """A serialised SentencePiece model (BPE) of 2,048 pieces, PaliGemma's special ones among them.

    Text comes back from its ids unchanged: nothing is normalised, digits stand alone, unknown
    characters are spelled in bytes.

    Raises:
        UserError: the corpus is too small for so many pieces.
    """
    model = io.BytesIO()
    try:
        # Read from an iterator and written to memory: a path would end up inside the model.
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus),
            model_writer=model,
            model_type="bpe",
            vocab_size=VOCAB_SIZE,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            bos_id=BOS_ID,
            unk_id=UNK_ID,
            pad_piece="<pad>",
            eos_piece="<eos>",
            bos_piece="<bos>",
            unk_piece="<unk>",
            user_defined_symbols=[*LOC_PIECES, *SEG_PIECES, "\n"],
            required_chars=_CHARACTERS,
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(
            f"tokenizer: SentencePiece finds no {VOCAB_SIZE} pieces in this corpus ({error}); "
            "give it more text"
        ) from None
    return model.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train the small SentencePiece tokenizer with <loc> and <seg> pieces."
    )
    parser.add_argument("--out", required=True, type=Path, help="tokenizer.model to write")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", type=Path, help="corpus, a sentence a line (default: templates)")
    text.add_argument("--corpus", choices=sorted(CORPORA), default="templates", help="one of ours")
    arguments = parser.parse_args()
    if arguments.text is None:
        corpus: Iterable[str] = CORPORA[arguments.corpus]()
    else:
        with reading(arguments.text, "the corpus"):
            corpus = read_text(arguments.text).splitlines()
    model = train_tokenizer(corpus)
    tokenizer = Tokenizer(model, str(arguments.out))
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_bytes(model)
    except OSError as error:
        raise UserError(f"{arguments.out}: cannot write: {error.strerror}") from None
    print(f"{arguments.out}: {tokenizer.vocab_size} pieces, {len(model)} bytes")


if __name__ == "__main__":
    run(main)
