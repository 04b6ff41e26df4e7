"""Pools what a refined report states for certain, in the form questions are made from."""

import dataclasses
from collections.abc import Iterable

from cxrjax.papers.gemex.construct.facts import CHEST, SentenceFact, find_facts
from cxrjax.papers.gemex.construct.refine import write_facts
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import RefinedSentence
from cxrjax.radiology_text.vocabulary import FindingWords, load_vocabulary


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
