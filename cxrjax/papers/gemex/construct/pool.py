"""The certain statements of a refined report, pooled, and the templates that word them."""

import dataclasses
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cxrjax.files import read_packaged
from cxrjax.papers.gemex.construct import refine
from cxrjax.papers.gemex.construct.facts import CHEST, SentenceFact, find_facts, words_of
from cxrjax.papers.gemex.construct.offers import Chosen
from cxrjax.papers.gemex.construct.questions import Draft
from cxrjax.papers.gemex.dialogue import LETTERS
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import RefinedSentence
from cxrjax.radiology_text.english import capital, join, load_vocabulary


@dataclasses.dataclass(frozen=True)
class Pool:
    """The statements of a report that a question can rely on."""

    present: dict[str, SentenceFact]  # finding -> what is said of it; several places are one fact
    # Findings that are said not to be there, and are nowhere said to be or to be likely.
    absent: dict[str, SentenceFact]
    doubtful: dict[str, SentenceFact]  # findings that may be there, with where
    normal: dict[str, str]  # region -> the statement that it is normal; none with a finding in it

    def unmentioned(self) -> list[str]:
        """Returns findings of Figure 7's classes without mention, nor of any that resembles them.

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


# What is normal of a region and leaves the rest of it open.
_PARTS = ("lung_volumes", "angles", "pleura", "aorta")


def pool_of(
    sentences: Iterable[RefinedSentence],
    boxed: Collection[str] = (),
    passed_over: Iterable[str] = (),
) -> Pool:
    """Pools the statements of refined sentences; each is about its sentence's region.

    Args:
        boxed: regions that have a box, where any have; zones of a clear lung are among them.
        passed_over: sentences of the report that were left out; what they find may be elsewhere.
    """
    several: dict[str, list[SentenceFact]] = {}
    absent: dict[str, SentenceFact] = {}
    doubtful: dict[str, SentenceFact] = {}
    normal: dict[str, str] = {}
    for sentence in sentences:
        told_places = {fact.subject for fact in find_facts(sentence.text) if fact.located}
        for found in find_facts(sentence.text, (sentence.region,)):
            # A region of one side is a place told by the source, if not by words.
            placed = found.subject in told_places or not sentence.region.startswith("bilateral")
            located = found.located and placed
            fact = dataclasses.replace(found, regions=(sentence.region,), located=located)
            if fact.polarity == "normal":
                # "No acute abnormality" leaves what is old open, too.
                if found.regions and found.subject not in (*_PARTS, CHEST):
                    (told,) = refine.write_facts([fact], sentence.region)
                    normal.setdefault(sentence.region, told)
            elif not fact.certain:
                # "No large effusion": asked about neither as present nor as absent.
                doubtful.setdefault(fact.subject, fact)
            elif fact.polarity == "pos":
                several.setdefault(fact.subject, []).append(fact)
            else:
                absent.setdefault(fact.subject, fact)
    open_ones = [f for text in passed_over for f in find_facts(text) if f.polarity == "pos"]
    doubtful = {fact.subject: fact for fact in open_ones} | doubtful
    zones = _zones(normal)
    normal = {r: zones[r] for r in zones if r in (boxed or zones)} | normal
    present = {name: _merge(facts) for name, facts in several.items()}
    for fact in open_ones:
        known, overlap = present.get(fact.subject), load_regions().overlap
        if known and any(not any(overlap(r, own) for own in known.regions) for r in fact.regions):
            present[fact.subject] = dataclasses.replace(known, located=False)
    seen = [*present.values(), *doubtful.values(), *open_ones]
    seen = [fact for fact in seen if fact.words.kind != "device"]
    affected = {region for fact in seen for region in fact.regions}
    overlap = load_regions().overlap
    absent = {k: f for k, f in absent.items() if k not in present and k not in doubtful}
    if "airspace" in {fact.words.group for fact in seen}:
        absent.pop("opacity", None)  # "no infiltrate": the scar is whiter than the lung, too
    return Pool(
        present,
        absent,
        {k: f for k, f in doubtful.items() if k not in present},
        {r: text for r, text in normal.items() if not any(overlap(r, one) for one in affected)},
    )


def _zones(normal: Mapping[str, str]) -> dict[str, str]:
    """Words that each zone of a clear lung is clear."""
    atoms, spoken = load_regions().atoms, refine.spoken
    clear = [atoms(region) for region, told in normal.items() if told.endswith(" clear.")]
    return {
        region: f"{capital(spoken(region))} {_be(refine.is_many(spoken(region)))} clear."
        for region in load_regions().regions
        if region.endswith(" lung zone") and any(atoms(region) <= whole for whole in clear)
    }


def alone_in(pool: Pool) -> dict[str, list[SentenceFact]]:
    """Maps regions to all that is said to be in them, where no device is, and no doubt or finding
    elsewhere overlaps them."""
    by_region: dict[str, list[SentenceFact]] = {}
    for fact in pool.present.values():
        for region in fact.regions:
            by_region.setdefault(region, []).append(fact)
    doubts = [region for fact in pool.doubtful.values() for region in fact.regions]
    overlap = load_regions().overlap
    return {
        region: facts
        for region, facts in by_region.items()
        if all(fact.located and fact.words.kind != "device" for fact in facts)
        and not any(overlap(region, one) for one in (*doubts, *(by_region.keys() - {region})))
    }


def _merge(facts: list[SentenceFact]) -> SentenceFact:
    """Merges facts of one finding; its severity where all that name one agree."""
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


VERSION = "4"
# Reasons of fewer characters are followed by what the finding looks like, as a rule: of the real
# ones 79 % have 60 to 150 characters (`statistics.json`).
_SHORT, _EXPLAINED = 60, 0.83


def load_wordings() -> dict[str, Any]:
    """Returns the templates, from the package's data file."""
    return read_packaged(str(__package__), f"wordings_v{VERSION}.json")


def content_of(finding: str) -> str:
    """Returns the content type of a question whether a finding is there."""
    return "disease" if words_of(finding).kind == "disease" else "abnormality"


def content_type_of(chosen: Chosen) -> str:
    """Returns a question's content: of several findings a disease where all right ones are."""
    findings, content = load_vocabulary().findings, chosen.offer.content
    if chosen.offer.kind != "multi_choice" or content != "abnormality":
        return content
    named = [findings[one.about].kind for one in chosen.right if one.about in findings]
    return "disease" if named.count("disease") == len(chosen.right) else content


def with_article(finding: str) -> str:
    """Returns the finding's noun with its article: "a pneumothorax", "atelectasis"."""
    words = words_of(finding)
    return f"{words.article} {words.noun}".strip()


def places(fact: SentenceFact) -> str:
    """Joins the fact's regions: "the left upper lung zone and the spine"."""
    return join([refine.spoken(region) for region in fact.regions])


def _be(many: bool) -> str:
    return "are" if many else "is"


def _verbs(prefix: str, many: bool) -> dict[str, str]:
    return {f"{prefix}is": _be(many), f"{prefix}does": "do" if many else "does"}


class Asker:
    """Words questions about a pool, and the reasons of their answers, by one random stream."""

    def __init__(self, pool: Pool, rng: random.Random) -> None:
        self.pool, self.rng = pool, rng

    def ask(self, chosen: Chosen) -> Draft:
        """Words a question by one of its phrasings, its options in random order."""
        offer, right, wrong, phrasing = chosen
        phrasings = load_wordings()["questions"][offer.kind][offer.asked]
        number = phrasing % len(phrasings)
        region = refine.spoken(offer.region) if offer.region else ""
        slots = {"region": region, **_verbs("", refine.is_many(region))}
        if offer.about:
            fact, words = self.pool.present.get(offer.about), words_of(offer.about)
            # Whether it is there is asked of one: a plural would give the answer away.
            many = offer.asked != "presence" and fact is not None and refine.is_several(fact)
            slots |= _verbs("name_", many or refine.is_many_of(offer.about))
            slots |= {"finding": with_article(offer.about)}
            slots |= {"name": words.plural if many and words.plural else words.noun}
        options = [(capital(one.text), one in right) for one in (*right, *wrong)]
        self.rng.shuffle(options)
        answer: str | tuple[str, ...] = offer.answer or right[0].text
        if offer.kind.endswith("_choice"):
            lettered = zip(LETTERS, options, strict=False)
            answer = tuple(letter for letter, (_, holds) in lettered if holds)
            answer = answer[0] if offer.kind == "single_choice" else answer
        reason, regions = offer.tell(right, wrong)
        return Draft(
            offer.kind,
            content_type_of(chosen),
            capital(phrasings[number].format(**slots)),
            answer,
            reason,
            tuple(dict.fromkeys(regions)),
            tuple(text for text, _ in options) if offer.kind.endswith("_choice") else (),
            f"v{VERSION}/{offer.kind}/{offer.asked}/{number}",
        )

    def present(self, facts: Sequence[SentenceFact], cause: bool = False, sign: bool = True) -> str:
        """Words a reason: the findings are there, those of one place in one sentence.

        Args:
            cause: name the first one's cause.
            sign: what a single finding looks like may follow, as of a reason that stands alone.
        """
        together: dict[str, list[SentenceFact]] = {}
        for fact in facts:
            together.setdefault(places(fact) if refine.is_placed(fact) else "", []).append(fact)
        parts = [self._there(place, group) for place, group in together.items()]
        told = facts[0].cause if cause else None
        if told:
            parts.append(self._reason("cause", cause=told, cause_start=capital(told)))
        text = " ".join(parts)
        if not sign or told or len(facts) > 1:
            return text
        several = refine.is_several(facts[0]) and not refine.is_many_of(facts[0].subject)
        return self._with_sign(text, "present", facts[0].subject, "each" if several else None)

    def _there(self, place: str, facts: Sequence[SentenceFact]) -> str:
        """Words one sentence: these findings are at a place, not named where it is empty."""
        finding = join([refine.phrase(fact) for fact in facts])
        return self._reason(
            ("pos" if len(facts) == 1 else "several") + ("" if place else "_fixed"),
            region=place,
            region_start=capital(place),
            shows="show" if refine.is_many(place) else "shows",
            finding=finding,
            finding_start=capital(finding),
            **{"is": "are" if refine.is_several(facts[0]) else "is"},
        )

    def absent(self, findings: Sequence[str], sign: bool = True) -> str:
        """Words a reason: these findings are not there."""
        names = join([words_of(name).noun for name in findings], "or")
        named = join([with_article(name) for name in findings], "or")
        verb = "are" if refine.is_many_of(findings[-1]) else "is"
        text = self._reason("neg", names=names, named=named, **{"is": verb})
        if not sign or len(findings) > 1:
            return text
        return self._with_sign(text, "absent", findings[0])

    def normal(self, region: str, sign: bool = True) -> str:
        """Words a reason: the region is normal; without `sign`, as one of several, plainly."""
        told = self.pool.normal[region]
        if not sign:
            return told
        text = self._reason("normal", normal=told, normal_low=told[:1].lower() + told[1:])
        if len(text) >= _SHORT or self.rng.random() >= _EXPLAINED:
            return text
        looks = load_wordings()["signs"]["part"]
        look = next(looks[part] for part in looks if part in told.lower())
        return f"{text.rstrip('.')}: {self.rng.choice(look)}."

    def _with_sign(self, text: str, polarity: str, finding: str, it: str | None = None) -> str:
        signs = load_wordings()["signs"]
        look = signs["finding"].get(finding)
        if look is None or len(text) >= _SHORT or self.rng.random() >= _EXPLAINED:
            return text
        many = refine.is_many_of(finding)
        it = it or ("they" if many else "it")
        appears = "appear" if many else "appears"
        slots = {"sign": look, "it": it, "appears": appears, **_verbs("", many)}
        return f"{text} {capital(self.rng.choice(signs[polarity]).format(**slots))}"

    def _reason(self, name: str, **values: str) -> str:
        return capital(self.rng.choice(load_wordings()["reasons"][name]).format(**values))
