"""Readers to compare: this project's, and negspacy and medspaCy's ConText where they are installed.

The two are given a blank English pipeline with spaCy's sentencizer, all names and synonyms of
`--list_findings` to find (the longest wins, whatever the case), and the rules that they bring. What
they say is put into assertions: negspacy knows negated alone; of ConText negated is absent, a
possible existence uncertain, historical and of the family past, hypothetical to be ruled out. They
know no sides, no organs' states and no spelling mistakes.
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.reader import ReportReader

OURS = "cxrjax"
Read = Callable[[Iterable[str]], Iterator[Sequence[Assertion]]]


def open_systems() -> dict[str, Read]:
    """Name -> the reader of English; a new one without anything kept, those installed alone."""
    systems: dict[str, Read] = {OURS: _ours}
    if importlib.util.find_spec("negspacy"):
        systems["negspacy"] = _negspacy()
    if importlib.util.find_spec("medspacy"):
        systems["medspacy"] = _medspacy()
    if len(systems) == 1:
        print("negspacy and medspaCy are not installed; `make readers` installs both beside.")
    return systems


def _ours(texts: Iterable[str]) -> Iterator[Sequence[Assertion]]:
    return map(ReportReader().read, texts)


def _pipeline() -> Any:
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    ruler = nlp.add_pipe("entity_ruler", config={"phrase_matcher_attr": "LOWER"})
    ruler.add_patterns(
        {"label": "FINDING", "id": finding.name, "pattern": wording}
        for finding in load_definitions().findings.values()
        for wording in (finding.name, *finding.synonyms)
    )
    return nlp


def _negspacy() -> Read:
    import negspacy.negation  # noqa: F401  (registers the pipe)

    nlp = _pipeline()
    nlp.add_pipe("negex")

    def read(texts: Iterable[str]) -> Iterator[Sequence[Assertion]]:
        for doc in nlp.pipe(texts):
            yield [_assertion(e, ("absent", "certain") if e._.negex else ()) for e in doc.ents]

    return read


def _medspacy() -> Read:
    import medspacy.context  # noqa: F401  (registers the pipe)

    nlp = _pipeline()
    nlp.add_pipe("medspacy_context")

    def said(entity: Any) -> tuple[str, ...]:
        if entity._.is_hypothetical:
            return ("uncertain", "possible", "to be ruled out")
        if entity._.is_historical or entity._.is_family:
            return ("uncertain", "possible", "past")
        if entity._.is_negated:
            return ("absent", "certain")
        return ("uncertain", "possible") if entity._.is_uncertain else ()

    def read(texts: Iterable[str]) -> Iterator[Sequence[Assertion]]:
        for doc in nlp.pipe(texts):
            yield [_assertion(entity, said(entity)) for entity in doc.ents]

    return read


def _assertion(entity: Any, said: tuple[str, ...]) -> Assertion:
    status, certainty, time = (*said, *("present", "certain", "current")[len(said) :])
    span = (entity.start_char, entity.end_char)
    return Assertion(entity.ent_id_, status, certainty, time, span=span)  # type: ignore[arg-type]
