"""Texts that the small tokenizers of the demo and of synthetic ViX-Ray are trained on."""

import itertools
import random
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from cxrjax import papers
from cxrjax.files import read_json_object, read_packaged
from cxrjax.input_pipeline.tokenizer import LOC_PIECES
from cxrjax.papers.vindr_cxr_vqa.annotation import CLASSES
from cxrjax.papers.vix_ray.records import CONCLUDE, GENDERS, STAGE_TAGS, VIEW_DEFINITIONS, prompt
from cxrjax.simulation.phantoms.vix_ray import LesionCentre, load_grammar

_REPORTS = 3000

_CORPUS = read_packaged(str(__package__), "tokenizer_corpus.toml")
_ANATOMY, _PHRASES = tuple(_CORPUS["anatomy"]), tuple(_CORPUS["phrases"])
_PLACES = tuple(f"{side} {zone}" for side in _CORPUS["sides"] for zone in _CORPUS["zones"])


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
        report = load_grammar().report(lesions, rng)
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
