"""The certain statements of a refined report, pooled, and the templates that word them."""

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.papers.gemex.construct.facts import CHEST, SentenceFact, find_facts
from cxrjax.papers.gemex.construct.refine import (
    BY_PLACE,
    is_plural,
    phrase,
    severity_word,
    spoken,
    write_facts,
)
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import RefinedSentence
from cxrjax.radiology_text.english import FindingWords, capital, join, load_vocabulary


@dataclasses.dataclass(frozen=True)
class Pool:
    """The statements of a report that a question can rely on.

    Attributes:
        present: finding -> what is said of it; several places are one fact.
        absent: findings that are said not to be there, and are nowhere said to be or to be likely.
        doubtful: findings that may be there, with where.
        normal: region -> the statement that it is normal; none with a finding in it.
    """

    present: dict[str, SentenceFact]
    absent: dict[str, SentenceFact]
    doubtful: dict[str, SentenceFact]
    normal: dict[str, str]

    def unmentioned(self) -> list[str]:
        """Findings of Figure 7's classes that nothing is said of, nor of any that resembles them.

        A report does not list all that is not there; what it passes over counts as absent.
        """
        said = {*self.present, *self.doubtful}
        groups = {words_of(name).group for name in said} - {""}
        return [
            name
            for name, words in load_vocabulary().findings.items()
            if words.class_name not in (None, "Device")
            and name not in said
            and name not in self.absent
            and words.group not in groups
        ]


def words_of(finding: str) -> FindingWords:
    """The vocabulary's entry of a finding."""
    return load_vocabulary().findings[finding]


def pool_of(sentences: Iterable[RefinedSentence]) -> Pool:
    """The statements of refined sentences; each is about its sentence's region."""
    present: dict[str, list[SentenceFact]] = {}
    absent: dict[str, SentenceFact] = {}
    doubtful: dict[str, SentenceFact] = {}
    normal: dict[str, str] = {}
    for sentence in sentences:
        for found in find_facts(sentence.text, (sentence.region,)):
            fact = dataclasses.replace(found, regions=(sentence.region,))
            if fact.polarity == "normal":
                if found.regions or found.subject == CHEST:
                    normal.setdefault(sentence.region, write_facts([fact], sentence.region)[0])
            elif not fact.certain:
                # "No large effusion": asked about neither as present nor as absent.
                doubtful.setdefault(fact.subject, fact)
            elif fact.polarity == "pos":
                present.setdefault(fact.subject, []).append(fact)
            else:
                absent.setdefault(fact.subject, fact)
    merged = {name: _merge(facts) for name, facts in present.items()}
    regions = load_regions()
    affected = {
        region
        for fact in (*merged.values(), *doubtful.values())
        for region in fact.regions
        if words_of(fact.subject).kind != "device"
    }
    return Pool(
        present=merged,
        absent={k: f for k, f in absent.items() if k not in merged and k not in doubtful},
        doubtful={k: f for k, f in doubtful.items() if k not in merged},
        normal={
            region: text
            for region, text in normal.items()
            if not any(regions.overlap(region, other) for other in affected)
        },
    )


def _merge(facts: list[SentenceFact]) -> SentenceFact:
    """One fact for all places; its severity where all that name one agree."""
    regions = load_regions().combine({region for fact in facts for region in fact.regions})
    # "Bilateral lung" is what stands for a place that is not said; another sentence may say it.
    placed = {region for fact in facts if fact.located for region in fact.regions}
    if placed and "bilateral lung" not in placed:
        regions = load_regions().combine(placed)
    severities = {fact.severity for fact in facts if fact.severity}
    return dataclasses.replace(
        facts[0],
        regions=tuple(regions),
        located=any(fact.located for fact in facts),
        severity=severities.pop() if len(severities) == 1 else None,
        cause=next((fact.cause for fact in facts if fact.cause), None),
    )


VERSION = "1"


def load_wordings(version: str = VERSION) -> dict[str, Any]:
    """The templates of a version, from the package's data file."""
    return read_packaged(str(__package__), f"wordings_v{version}.json")


def question(kind: str, content: str, rng: random.Random, **values: str) -> tuple[str, str]:
    """(question, template id): one of the phrasings, filled."""
    phrasings = load_wordings()["questions"][kind][content]
    number = rng.randrange(len(phrasings))
    many = is_many(values.get("region", ""))
    verbs = {"is": "are" if many else "is", "does": "do" if many else "does"}
    text = phrasings[number].format(**verbs, **values)
    return capital(text), f"v{VERSION}/{kind}/{content}/{number}"


def finding_values(fact: SentenceFact) -> dict[str, str]:
    """Returns what question templates say of a finding that is there."""
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
    """Says whether a region, as a sentence has it, takes a plural verb."""
    return spoken_region.endswith(("lungs", "structures")) or " and " in spoken_region


def reason_present(fact: SentenceFact, rng: random.Random, *also: str) -> str:
    """Words a reason: the finding is there, and its "severity" or "cause" where named."""
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
    """Words a reason: these findings are not there."""
    return _reason(
        "neg",
        rng,
        names=join([words_of(name).noun for name in findings], "or"),
        region=spoken(region),
        region_start=capital(spoken(region)),
        shows="show" if is_many(spoken(region)) else "shows",
    )


def reason_normal(pool: Pool, region: str, rng: random.Random) -> str:
    """Words a reason: the region is normal."""
    text = pool.normal[region].rstrip(".")
    return _reason("normal", rng, normal=text, normal_low=text[:1].lower() + text[1:])


def _reason(name: str, rng: random.Random, **values: str) -> str:
    return capital(rng.choice(load_wordings()["reasons"][name]).format(**values))
