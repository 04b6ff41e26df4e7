"""Checks of CXR-QBA's records by rules of their own, that share nothing with what made them.

A record: its words agree with its tags (yes and no, sides, regions), its boxes with sides, places
and numbers, its parts with the answer above them, and its sentences are English as far as rules can
tell. A study: what one question is answered, another does not deny.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from cxrjax.files import read_patterns
from cxrjax.papers.cxr_qba.construct.phrases import NOT_MENTIONED
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.nouns import is_plural
from cxrjax.records import Answer, QARecord

_RE = read_patterns(str(__package__), "record_checks.toml")
_GRAMMAR = read_patterns(str(__package__), "record_checks.toml", "grammar")
# Of the image's width: a side's box may lie this far over the middle where a patient is turned.
_OVER = 0.12


def above(name: str) -> list[str]:
    """Returns the more general findings, none of which can be absent where one is there.

    A report may see an opacity and deny a consolidation: of what is below nothing follows.
    """
    return load_definitions().finding_ancestors(name)


def check_record(record: QARecord) -> list[str]:
    """Returns a description of each contradiction within a record."""
    faults = [*_on_question(record)]
    for answer, above in _walk(record.answers):
        faults += [f"{one}: {answer.text!r}" for one in _on_answer(record, answer, above)]
    return faults


def check_study(records: Sequence[QARecord]) -> list[str]:
    """Returns answers to questions on one image of a study that contradict each other."""
    said: dict[tuple[str, str], dict[str, bool]] = {}
    faults = []
    for record in records:
        kind, about = str(record.question_type), _about(record)
        yes = _outcome(record)
        if yes is None:
            continue
        family = kind.split("_")[0]
        said.setdefault((family[0], about), {})[family] = yes
    opposites = (("B03", "B04"), ("B10", "B11"), ("C03", "C04"))
    for (_, about), outcomes in said.items():
        for abnormal, normal in opposites:
            if abnormal in outcomes and outcomes.get(normal) == outcomes[abnormal]:
                faults.append(f"{abnormal} and {normal} on {about or 'the study'}: the same answer")
    definitions = load_definitions()
    regions = {about: o["C03"] for (family, about), o in said.items() if "C03" in o}
    for name, yes in regions.items():
        for above in definitions.region_ancestors(name):
            if yes and regions.get(above) is False:
                faults.append(f"abnormal in the {name}, and not in the {above}")
    findings = {about: o["D02"] for (family, about), o in said.items() if "D02" in o}
    for name, yes in findings.items():
        for above in definitions.finding_ancestors(name):
            if yes and findings.get(above) is False and above != "cardiopulmonary abnormality":
                faults.append(f"{name} is there, and {above} is not")
    whole = said.get(("B", ""), {}).get("B03")
    if whole is False and any(regions.values()):
        faults.append("no abnormality, and a region has one")
    return faults


def _about(record: QARecord) -> str:
    values = record.variables or {}
    return str(values.get("region") or values.get("finding") or values.get("subcat") or "")


def _outcome(record: QARecord) -> bool | None:
    """Yes or no of a question that asks for it."""
    opened = _RE["opened"].match(record.answers[0].text) if record.answers else None
    return opened[1] == "Yes" if opened else None


def _walk(
    answers: Iterable[Answer], above: Answer | None = None
) -> Iterator[tuple[Answer, Answer | None]]:
    for answer in answers:
        yield answer, above
        yield from _walk(answer.sub_answers, answer)


def _on_question(record: QARecord) -> Iterator[str]:
    text = record.question
    if not text[0].isupper() or not text.endswith(("?", ".")):
        yield f"no sentence: {text!r}"
    yield from (f"{fault}: {text!r}" for fault in _grammar(text))
    if not any(answer.answer_type == "main" for answer in record.answers):
        yield "no main answer"
    asks = re.match(r"^[A-Z]\d\d_(?:is|has)_", str(record.question_type))
    for answer in record.answers:
        opened = _RE["opened"].match(answer.text)
        if not asks and answer.text.startswith(("Yes,", "No,")):
            yield f"yes or no to what does not ask it: {answer.text!r}"
        if asks and not opened and answer.certainty not in (NOT_MENTIONED, "uncertain"):
            yield f"neither yes nor no: {answer.text!r}"


def _on_answer(record: QARecord, answer: Answer, above: Answer | None) -> Iterator[str]:
    text = answer.text
    if not text[0].isupper() or not text.endswith("."):
        yield "no sentence"
    yield from _grammar(text)
    yield from _certainty(answer)
    template = answer.name_tag is None
    if ". " in text:
        return  # an answer to an indication: each of its sentences is a part below it
    parts = [part for part in answer.sub_answers if part.polarity != "unk"]
    if template and parts:
        yield from _follows(record, answer, parts)
    if not template and answer.polarity == "pos" and _RE["denial"].match(text):
        yield "a denial tagged as there"
    if not template and answer.polarity == "neg" and _RE["affirmation"].match(text):
        yield "an affirmation tagged as denied"
    lower = text.lower()
    named = {name for name in _RE["in"].findall(text)}
    tags = {*answer.regions}
    known = load_definitions()
    for name in named:
        region = known.region_names.get(name.lower())
        if not template and region and tags and not _lies(region, tags):
            yield f"the {name} is none of its regions"
    sides = {known.regions[name].side for name in tags if name in known.regions} - {""}
    if not template and sides:
        if _RE["left"].search(lower) and "left" not in sides and not _RE["right"].search(lower):
            yield "left, and regions of the right alone"
        if _RE["right"].search(lower) and "right" not in sides and not _RE["left"].search(lower):
            yield "right, and regions of the left alone"
    yield from _on_boxes(record, answer, sides)


def _lies(region: str, tags: set[str]) -> bool:
    known = load_definitions()
    both = {*known.sides.get(region, {}).values()}
    return region in tags or bool(both and both <= tags)


def _certainty(answer: Answer) -> Iterator[str]:
    text = answer.text
    if answer.certainty == NOT_MENTIONED:
        if answer.polarity != "unk" or _RE["opened"].match(text.replace("Nothing", "")):
            yield "not mentioned, and yes or no"
    elif "not mentioned" in text or text.startswith("Nothing is said"):
        yield "not mentioned, and tagged otherwise"
    if answer.certainty == "certain" and (_RE["probable"].search(text) or "may be" in text):
        yield "doubted in words, and tagged as certain"
    if (
        answer.certainty == "uncertain"
        and not _RE["possible"].search(text)
        and answer.name_tag is None
    ):
        yield "uncertain, and stated in words"


def _follows(record: QARecord, answer: Answer, parts: Sequence[Answer]) -> Iterator[str]:
    """Yields contradictions between a template's answer and the parts that it rests on."""
    there = any(part.polarity == "pos" for part in _descend(parts))
    normal = "_is_normal" in str(record.question_type)
    opened = _RE["opened"].match(answer.text)
    compares = str(record.question_type).startswith("L")
    if opened and not compares and (opened[1] == "Yes") != (there != normal):
        yield "yes or no against its parts"
    ranks = ("certain", "likely", "uncertain", NOT_MENTIONED)
    own = ranks.index(answer.certainty or "certain")
    below = [ranks.index(part.certainty or "certain") for part in parts]
    surest = min if there else max
    if own < surest(below):
        yield "surer than what it rests on"


def _descend(parts: Iterable[Answer]) -> Iterator[Answer]:
    for part in parts:
        yield part
        yield from _descend(part.sub_answers)


def _on_boxes(record: QARecord, answer: Answer, sides: set[str]) -> Iterator[str]:
    boxes = answer.boxes_by_image.get(record.image_id, [])
    several = ". " in answer.text
    if not boxes or record.image_hw is None or answer.name_tag is None or several:
        return
    height, width = record.image_hw
    for x0, y0, x1, y1 in boxes:
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            yield "a box beside its image"
    centres = [(x0 + x1) / 2 / width for x0, _, x1, _ in boxes]
    # The patient's left is on the right of the image.
    if sides == {"left"} and min(centres) < 0.5 - _OVER:
        yield "left, and a box on the image's left"
    if sides == {"right"} and max(centres) > 0.5 + _OVER:
        yield "right, and a box on the image's right"
    known = load_definitions().regions
    sided = all(known[name].side for name in answer.regions if name in known)
    if sided and len(sides) == 2 and len(boxes) > 1 and not min(centres) < 0.5 < max(centres):
        yield "both sides, and boxes on one"
    heights = [(y0 + y1) / 2 / height for _, y0, _, y1 in boxes]
    low, high = (
        [bool(pattern.search(name)) for name in answer.regions]
        for pattern in (_RE["low"], _RE["high"])
    )
    if high and all(high) and max(heights) > 0.65:
        yield "upper, and a box below"
    if low and all(low) and min(heights) < 0.35:
        yield "lower, and a box above"


def _grammar(text: str) -> Iterator[str]:
    words = re.sub(r'"[^"]*"|^(?:Indication|The indication[^:]*): .*', "X", text)
    for fault, pattern in _GRAMMAR.items():
        if found := pattern.search(words):
            yield f"{fault} ({found[0]})"
    noun = _RE["no_plural"].search(words)
    if noun and is_plural(noun["noun"]):
        yield f"is before a plural ({noun[0]})"
    subject = _RE["subject"].match(words)
    alone = subject is not None and " and " not in subject["noun"]
    if subject and alone and (subject["verb"] == "are") != is_plural(subject["noun"]):
        yield f"{subject['verb']} behind {subject['noun']}"
