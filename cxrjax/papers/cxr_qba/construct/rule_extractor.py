"""Reads sentences, observations and the indication of reports by rules.

The published pipeline prompts a language model; this one needs none. It reads what its vocabulary
has, and the build counts sentences out of which it reads nothing.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from cxrjax.files import read_packaged, read_patterns
from cxrjax.papers.cxr_qba.construct import extraction, phrases
from cxrjax.papers.cxr_qba.construct.extraction import OBSERVED_SECTIONS, Observation
from cxrjax.radiology_text.assertions import Assertion, Time
from cxrjax.radiology_text.definitions import SIDES, Finding, load_definitions
from cxrjax.radiology_text.reader import ReportReader
from cxrjax.records_io.quality import Unusable

# Ten times the longest reports there are; the work on a report grows with its length.
MAX_CHARACTERS = 100_000
# More than this without a full stop is no sentence.
_MAX_SENTENCE = 2_000

_RE = read_patterns(str(__package__), "reference/rule_extractor.toml")
_ITS_LENGTH = 12  # an abbreviation and what stands before it


def split_text(text: str) -> Iterator[str]:
    """Splits a section into sentences, white space joined, list numbers taken off."""
    held = ""
    for piece in _RE["end"].split(text):
        piece = f"{held} {piece}".strip() if held else piece
        if _RE["abbreviation"].search(piece[-_ITS_LENGTH:]):
            held = piece
            continue
        held = ""
        sentence = " ".join(_RE["list_number"].sub("", piece).split())
        if _RE["has_word"].search(sentence):
            yield from (
                sentence[start : start + _MAX_SENTENCE]
                for start in range(0, len(sentence), _MAX_SENTENCE)
            )
    if held and _RE["has_word"].search(held):
        yield " ".join(held.split())


def split_report(report: extraction.ReportSections) -> list[extraction.NumberedSentence]:
    """Splits indication, findings and impression into sentences, numbered S01, S02, ...

    Raises:
        Unusable: `report_too_long`, `empty_report`.
    """
    length = sum(map(len, report.sections.values()))
    if length > MAX_CHARACTERS:
        raise Unusable("report_too_long", f"{length} characters; expected at most {MAX_CHARACTERS}")
    sentences: list[extraction.NumberedSentence] = []
    for section in ("indication", *OBSERVED_SECTIONS):
        for text in split_text(report.sections.get(section, "")):
            number = f"S{len(sentences) + 1:02d}"
            sentences.append(extraction.NumberedSentence(number, section, section.upper(), text))
    if not any(sentence.section in OBSERVED_SECTIONS for sentence in sentences):
        raise Unusable("empty_report", "neither findings nor impression has a sentence")
    return sentences


def read_indication(sentences: list[extraction.NumberedSentence]) -> extraction.Indication | None:
    """Returns the parts of the indication's sentences; None where there is none."""
    own = [sentence for sentence in sentences if sentence.section == "indication"]
    text = ". ".join(sentence.text.rstrip(".") for sentence in own)
    if not text:
        return None
    patient = _RE["patient"].search(text)
    evaluation = _RE["evaluation"].search(text)
    rest = text[: evaluation.start()] if evaluation else text
    if patient:
        rest = rest.replace(patient.group(), " ")
    reason = " ".join(_RE["connective"].sub("", " ".join(rest.split())).strip(" ,.;").split())
    return extraction.Indication(
        indication_summary=" ".join(text.split()),
        patient_info=patient.group() if patient else "",
        indication=reason,
        evaluation=evaluation["what"].strip() if evaluation else "",
        sentence_ids=tuple(sentence.sent_id for sentence in own),
    )


# Reports say the same again and again.
_KEPT_SENTENCES = 1 << 15
_WORDS = read_packaged(str(__package__), "reference/rule_extractor.toml")
_CHANGES: Mapping[Time, str] = _WORDS["changes"]
# Where the words behind "from the" are none of a landmark.
_NO_LANDMARK = ("the", "a", "an", "left", "right")
_SEVERAL = ("spread", "multifocal")
_ONE_ALONE = ("cardiac pacemaker",)  # however often and by whatever part it is told
_SIDES = {"left": "left", "right": "right", "bilateral": "both", None: ""}


class RuleExtractor:
    """Reads English chest radiology reports. Same report, same extraction."""

    name = "cxrjax-rules"

    def __init__(self) -> None:
        self.definitions = load_definitions()
        self.version = self.definitions.version
        self._reader = ReportReader()
        self._kept = functools.lru_cache(maxsize=_KEPT_SENTENCES)(self._read)

    def extract(self, report: extraction.ReportSections) -> extraction.Extraction:
        """See `extraction.Extractor`.

        Raises:
            Unusable: the report is too long or has nothing to read.
        """
        sentences = split_report(report)
        found: list[Observation] = []
        silent = []
        for sentence in sentences:
            if sentence.section not in OBSERVED_SECTIONS:
                continue
            observations = self.read_sentence(sentence.text, sentence.sent_id)
            found += observations
            if not observations:
                silent.append(sentence.sent_id)
        indication = read_indication(sentences)
        return extraction.Extraction(
            tuple(sentences), tuple(merge_similar(found)), indication, tuple(silent)
        )

    def read_sentence(self, sentence: str, sent_id: str = "S01") -> list[Observation]:
        """Returns the observations of one sentence; those that another is taken for are its
        children."""
        return [_in_sentence(observation, sent_id) for observation in self._kept(sentence)]

    def _read(self, sentence: str) -> list[Observation]:
        sentence = _RE["subsegmental"].sub("", _RE["removed"].sub(r"\1 angle", sentence))
        found = [_no_surer(one, sentence) for one in self._reader.read(sentence)]
        found = [
            _several(self._of_its_organ(self._on_named_side(one, found)), sentence) for one in found
        ]
        # A normal organ denies several findings in one statement.
        statements: dict[tuple[int, int, str], list[int]] = {}
        for number, one in enumerate(found):
            if one.is_now:
                statements.setdefault((*one.span, one.organ), []).append(number)
        groups = list(statements.values())
        group_of = {number: place for place, group in enumerate(groups) for number in group}
        parents = [group_of.get(found[group[0]].source, -1) for group in groups]  # type: ignore[arg-type]
        said = [[found[number] for number in group] for group in groups]
        return [
            self._observe(place, said, parents)
            for place, parent in enumerate(parents)
            if parent < 0
        ]

    def _on_named_side(self, one: Assertion, said: Sequence[Assertion]) -> Assertion:
        """Returns a statement on the side that its sentence tells elsewhere of the same finding, as
        in "right pleural fluid blunts the costophrenic angle"."""
        same = (one.finding, one.status)
        sides = {each.side for each in said if each.side and (each.finding, each.status) == same}
        if one.side or len(sides) != 1 or not sides & {*SIDES}:
            return one
        (side,) = sides
        on_side = self.definitions.on_side
        regions = [name for region in one.regions for name in on_side(region, side)]
        return dataclasses.replace(one, side=side, regions=tuple(regions))

    def _of_its_organ(self, one: Assertion) -> Assertion:
        """Returns a statement of bones alone as one of a finding that bones have."""
        above = self.definitions.region_ancestors
        bones = one.regions and all("bones" in (name, *above(name)) for name in one.regions)
        other = _WORDS["of_bones"].get(one.finding)
        return dataclasses.replace(one, finding=other) if bones and other else one

    def _observe(
        self, place: int, said: Sequence[Sequence[Assertion]], parents: Sequence[int]
    ) -> Observation:
        one, parent = said[place][0], parents[place]
        positive = one.status != "absent" and one.certainty != "unlikely"
        certainty = _WORDS["certainties"][f"{one.status} {one.certainty}"]
        names = tuple(each.finding for each in said[place])
        findings = [self.definitions.findings[name] for name in names]
        places = self._places(one, findings, said[parent][0] if parent >= 0 else None)
        modifiers = phrases.one_severity(one.modifiers, names)
        distances = tuple(d for d in one.distances if d.split()[-1] not in _NO_LANDMARK)
        if one.organ:
            side = one.side if one.side in SIDES else ""
            (organ,) = self.definitions.on_side(one.organ, side)
            name, summary = phrases.describe_normal(organ)
        else:
            sizes = [f"measuring {' and '.join(one.sizes)}"] if one.sizes else []
            measured = [*distances, *sizes]
            name, summary = phrases.describe(
                findings, places, modifiers, positive, certainty, measured
            )
        changed = one.time in _CHANGES and (positive or one.time == "resolved")
        change = (_CHANGES[one.time],) if changed else ()
        return Observation(
            name=name,
            summary_sentence=summary,
            entity=names,
            regions=tuple(places),
            side=_SIDES[one.side],
            positive=positive,
            probability=one.cue,
            certainty=certainty,
            # "No acute disease" denies what is acute, and no more.
            modifiers=tuple(m for m in modifiers if positive or m == phrases.ACUTE),
            distances=distances if positive else (),
            change=change,
            change_sentence=phrases.describe_change(findings, change),
            children=tuple(
                self._observe(other, said, parents)
                for other, parent in enumerate(parents)
                if parent == place and said[other][0].finding != one.finding
            ),
        )

    def _places(
        self, one: Assertion, findings: Sequence[Finding], sign: Assertion | None
    ) -> list[str]:
        """Returns the regions of a statement; `sign` is what it was taken from."""
        regions = one.regions
        if one.finding in _WORDS["whole"]:
            return []
        if not one.organ:
            if alone := self._own_place(one, sign):
                regions = self._usual(findings, alone)
            regions = tuple(name for name in regions if self._may_be_in(one.finding, name))
            regions = regions or self._usual(findings, self._side(one))
        return self.definitions.resolve_regions(regions, "")[0]

    def _side(self, one: Assertion) -> str:
        sides = {self.definitions.regions[name].side for name in one.regions} - {""}
        return "both" if len(sides) > 1 else next(iter(sides), _SIDES[one.side])

    def _may_be_in(self, finding: str, region: str) -> bool:
        """Returns false for bones and the like, over which what is in lungs projects."""
        around = {region, *self.definitions.region_ancestors(region)}
        outside = (e["regions"] for e in _WORDS["never_in"] if finding in e["findings"])
        return all(around.isdisjoint(regions) for regions in outside)

    def _own_place(self, one: Assertion, parent: Assertion | None) -> str:
        """Returns the side where a finding's place is that of another organ's sign, else "".

        An effusion that a retrocardiac opacity suggests is on the left, not behind the heart; an
        opacity beside an effusion is in the lung.
        """
        known = self.definitions
        finding, side = known.findings[one.finding], self._side(one)
        if parent is not None and parent.regions == one.regions:
            other = known.findings[parent.finding].subcategory != finding.subcategory
            return side if other else ""
        pleural = any(
            "pleural spaces" in (name, *known.region_ancestors(name)) for name in one.regions
        )
        return side if finding.subcategory == "lungs" and pleural else ""

    def _usual(self, findings: Sequence[Finding], side: str) -> tuple[str, ...]:
        """Returns findings' usual regions on the side that the report names."""
        if not side:
            return ()
        defaults = [region for finding in findings for region in finding.regions]
        regions, _ = self.definitions.resolve_regions(defaults, side)
        return tuple(region for region in regions if self.definitions.regions[region].side)


def _no_surer(one: Assertion, sentence: str) -> Assertion:
    """Returns an effusion of which only its sign, a blunted angle, is stated as likely."""
    only_sign = _RE["blunted"].search(sentence, *one.span) and one.status == "present"
    return dataclasses.replace(one, certainty="likely") if only_sign else one


def _several(one: Assertion, sentence: str) -> Assertion:
    """Returns a lump whose noun is in the plural as one of several."""
    many = _RE["lumps"].search(sentence, *one.span) and one.status == "present"
    if not many or phrases.says_many(one.modifiers) or one.side == "bilateral":
        return one
    return dataclasses.replace(one, modifiers=(*one.modifiers, _SEVERAL))


def _in_sentence(observation: Observation, sent_id: str) -> Observation:
    children = tuple(_in_sentence(child, sent_id) for child in observation.children)
    return dataclasses.replace(observation, sentence_ids=(sent_id,), children=children)


def merge_similar(observations: Sequence[Observation]) -> list[Observation]:
    """Returns observations with what findings and impression both say stated once.

    Two are similar where entity and polarity agree and their regions are the same, or one of them
    names none, or, of what is there, those of one are parts of the other's. The more specific one
    stays, with the sentences, changes and children of both.
    """
    kept: list[Observation] = []
    for observation in observations:
        for number, other in enumerate(kept):
            if _similar(observation, other):
                kept[number] = _merged(other, observation)
                break
        else:
            kept.append(observation)
    return [_without_told(one, kept) for one in kept]


def _without_told(one: Observation, told: Sequence[Observation]) -> Observation:
    """Returns an observation without what it is taken for and another states outright."""
    sure = [other for other in told if other is not one and other.certainty == "certain"]
    children = (c for c in one.children if not any(_similar(c, other) for other in sure))
    return dataclasses.replace(one, children=tuple(children))


def _similar(first: Observation, second: Observation) -> bool:
    if (first.entity, first.positive) != (second.entity, second.positive):
        return False
    lengths = sorted(map(_longest, (first, second)))
    if 0 < lengths[0] < 0.8 * lengths[1]:
        return False  # two of a kind, and not one that was rounded
    if first.positive and {*first.entity} <= {*_ONE_ALONE}:
        return True
    if not first.regions or not second.regions or {*first.regions} == {*second.regions}:
        return True
    # Of both sides, and one of them again.
    inner, outer = sorted((first, second), key=lambda one: len(one.regions))
    within = {*inner.regions} <= {*outer.regions} and {*inner.modifiers} <= {*outer.modifiers}
    if first.positive and within and first.certainty == second.certainty:
        return True
    return first.positive and (_tells_where(first, second) or _tells_where(second, first))


def _longest(one: Observation) -> float:
    """Returns the longest of the lengths that are told, in millimetres; 0 where none is."""
    told = one.summary_sentence.partition(", measuring ")[2].split(" and ")
    lengths = [
        float(number) * (10 if "c" in size else 1)
        for size in told
        for number in _RE["number"].findall(size)
    ]
    return max(lengths, default=0.0)


def _tells_where(inner: Observation, outer: Observation) -> bool:
    """Returns whether one tells more closely where the other is: in parts of its regions, on as
    many sides, and as surely."""
    known = load_definitions()

    def sides(one: Observation) -> set[str]:
        return {
            s for name in one.regions for s in known.sides.get(name) or {known.regions[name].side}
        }

    above = (
        {*known.region_ancestors(name), *_WORDS["in_lobe"].get(name, ())} for name in inner.regions
    )
    parts = all(around & {*outer.regions} for around in above)
    sure = phrases.CERTAINTIES.index(inner.certainty) <= phrases.CERTAINTIES.index(outer.certainty)
    return parts and sure and {*inner.regions} != {*outer.regions} and sides(inner) == sides(outer)


def _merged(first: Observation, second: Observation) -> Observation:
    specific, other = first, second
    more = (len(second.regions), len(second.modifiers)) > (len(first.regions), len(first.modifiers))
    if _tells_where(second, first) or (more and not _tells_where(first, second)):
        specific, other = second, first
    named = {child.entity for child in specific.children}
    return dataclasses.replace(
        specific,
        change=tuple(dict.fromkeys((*first.change, *second.change))),
        change_sentence=specific.change_sentence or other.change_sentence,
        children=specific.children + tuple(c for c in other.children if c.entity not in named),
        sentence_ids=tuple(dict.fromkeys((*first.sentence_ids, *second.sentence_ids))),
    )
