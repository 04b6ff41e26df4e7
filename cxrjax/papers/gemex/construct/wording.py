"""Words of the offline generator: questions, findings, places and reasons from templates."""

import functools
import importlib.resources
import json
import random
from collections.abc import Sequence
from typing import Any

from cxrjax.papers.gemex.construct.facts import SentenceFact
from cxrjax.papers.gemex.construct.pool import Pool, words_of
from cxrjax.papers.gemex.construct.refine import BY_PLACE, is_plural, phrase, severity_word, spoken
from cxrjax.radiology_text.english import capital, join

VERSION = "1"


@functools.cache
def load_wordings(version: str = VERSION) -> dict[str, Any]:
    """The templates of a version, from the package's data file."""
    file = importlib.resources.files(__package__).joinpath(f"wordings_v{version}.json")
    return json.loads(file.read_text(encoding="utf-8"))


def question(kind: str, content: str, rng: random.Random, **values: str) -> tuple[str, str]:
    """(question, template id): one of the phrasings, filled."""
    phrasings = load_wordings()["questions"][kind][content]
    number = rng.randrange(len(phrasings))
    many = is_many(values.get("region", ""))
    verbs = {"is": "are" if many else "is", "does": "do" if many else "does"}
    text = phrasings[number].format(**verbs, **values)
    return capital(text), f"v{VERSION}/{kind}/{content}/{number}"


def finding_values(fact: SentenceFact) -> dict[str, str]:
    """What question templates say of a finding that is there."""
    words = words_of(fact.subject)
    return {"finding": with_article(fact.subject), "name": words.noun, "region": places(fact)}


def with_article(finding: str) -> str:
    """The finding's noun with its article: "a pneumothorax", "atelectasis"."""
    words = words_of(finding)
    return f"{words.article} {words.noun}".strip()


def places(fact: SentenceFact) -> str:
    """The fact's regions, joined: "the left upper lung zone and the spine"."""
    return join([spoken(region) for region in fact.regions])


def is_many(spoken_region: str) -> bool:
    """Whether a region, as a sentence has it, takes a plural verb."""
    return spoken_region.endswith(("lungs", "structures")) or " and " in spoken_region


def reason_present(fact: SentenceFact, rng: random.Random, *also: str) -> str:
    """Why: the finding is there, and, by name ("severity", "cause"), what more is known of it."""
    words = words_of(fact.subject)
    finding = phrase(fact)
    named = "pos" if words.region in BY_PLACE else "pos_fixed"
    parts = [
        _reason(
            named,
            rng,
            region=places(fact),
            region_start=capital(places(fact)),
            shows="show" if is_many(places(fact)) else "shows",
            finding=finding,
            finding_start=capital(finding),
            **{"is": "are" if is_plural(fact) else "is"},
        )
    ]
    if "severity" in also and fact.severity:
        name = "size" if words.sized else "severity"
        parts.append(_reason(name, rng, severity=severity_word(fact) or ""))
    if "cause" in also and fact.cause:
        parts.append(_reason("cause", rng, cause=fact.cause, cause_start=capital(fact.cause)))
    return " ".join(parts)


def reason_absent(findings: Sequence[str], region: str, rng: random.Random) -> str:
    """Why: these findings are not there."""
    return _reason(
        "neg",
        rng,
        names=join([words_of(name).noun for name in findings], "or"),
        region=spoken(region),
        region_start=capital(spoken(region)),
        shows="show" if is_many(spoken(region)) else "shows",
    )


def reason_normal(pool: Pool, region: str, rng: random.Random) -> str:
    """Why: the region is normal."""
    text = pool.normal[region].rstrip(".")
    return _reason("normal", rng, normal=text, normal_low=text[:1].lower() + text[1:])


def _reason(name: str, rng: random.Random, **values: str) -> str:
    return capital(rng.choice(load_wordings()["reasons"][name]).format(**values))
