"""Reads the truth of each question from CXR-QBA's records.

An answer's parts carry the findings that they speak of, whether these are there, where, how severe
and how sure. Parts made from an observation are taken at their word; a template's part ("Yes, there
are abnormal findings.") only repeats the tags of the parts below it, and its polarity is that of
the yes or no, so that its tags are not read.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import References, cluster_of
from cxrjax.papers.cxr_qba.construct.phrases import NOT_MENTIONED
from cxrjax.radiology_text.answers import ANY_FINDING, NOTHING_ASKED, AskedFor
from cxrjax.radiology_text.assertions import Side, joined_side
from cxrjax.radiology_text.definitions import Definitions, load_definitions
from cxrjax.radiology_text.mentions import yes_or_no
from cxrjax.records import Answer, QARecord

# Questions that are answered by yes or no.
_YES_NO = re.compile(r"^[A-Z]\d\d_(?:is|has)_")
# A denial with this modifier denies no more than what is acute.
_ACUTE = ("temporal", "acute")


@dataclass(frozen=True)
class TrueFinding:
    """A finding that the reference says is there."""

    side: Side | None  # None where the reference names none
    severity: str  # "" where the reference names none
    certain: bool  # whether it is said without doubt
    regions: frozenset[str]  # names of the definitions


@dataclass(frozen=True)
class CxrQbaQuestion:
    """One question with its truth."""

    question_id: str
    cluster: tuple[str, str]  # ("patient", id), or ("image", id) where no patient is known
    attributes: Mapping[str, str | None]  # what figures are broken down by; None where it has none
    height: int
    width: int
    text: str  # of the main answers
    present: Mapping[str, TrueFinding]  # findings that any part says are there
    # Findings that a part denies and none affirms; those that a denial implies (no lung opacity, no
    # consolidation) are not listed.
    absent: frozenset[str]
    denied_narrowly: frozenset[str]  # those among `absent` of which only the acute form is denied
    # Those of `present` that the main answers name: what an answer should name.
    stated: frozenset[str]
    asked: str | None  # the finding asked about
    region: str | None  # the region asked about
    about: str  # words for what is asked about
    # The answer to a yes-or-no question; None for others, and where the reference says neither, or
    # that it is not mentioned.
    yes: bool | None
    asks_yes_no: bool  # whether it is such a question
    # float64 [n, 4], of the main answers on the question's image, fractions, each once.
    boxes: Float[np.ndarray, "n 4"]
    unknown_findings: int  # tags of the answers that name no finding of the definitions


CxrQbaReferences = References[CxrQbaQuestion]


def read_question(
    record: QARecord, source: str, unmentioned: bool = False
) -> CxrQbaQuestion | None:
    """The truth of one record; None where the report does not mention what is asked.

    Args:
        unmentioned: whether such records are read too, as questions without a truth.

    Raises:
        UserError: a record without answers or image size, or with an unusable box.
    """
    definitions = load_definitions()
    where = f"{source}: question {record.question_id!r}"
    if not record.answers:
        raise UserError(
            f"{where} has no answers: score needs the records, not the questions without answers"
        )
    if record.image_hw is None:
        raise UserError(f"{where} has image_hw null: join its true [height, width]")
    main = [answer for answer in record.answers if answer.answer_type == "main"]
    if not unmentioned and main and all(one.certainty == NOT_MENTIONED for one in main):
        return None
    found: dict[str, list[Answer]] = {}
    denied: dict[str, list[Answer]] = {}
    stated: set[str] = set()
    for part in _parts(record.answers):
        if part.name_tag is None or part.polarity == "unk":
            continue
        carried = {label for below in _parts(part.sub_answers) for label in below.labels}
        names = {normalised(label) for label in part.labels if label not in carried}
        for name in names:
            (found if part.polarity == "pos" else denied).setdefault(name, []).append(part)
        if part.polarity == "pos" and part.answer_type == "main":
            stated |= {normalised(label) for label in part.labels}
    asked = normalised(record.finding) if record.finding else None
    asks_yes_no = _YES_NO.match(record.question_type) is not None
    about = asked_for(record.question_type, asked)
    yes = _yes(main, about) if asks_yes_no else None
    if asked is not None and asked in found and (yes or not asks_yes_no):
        stated.add(asked)
    absent = frozenset(denied) - frozenset(found)
    says_no = yes is False if asks_yes_no else bool(main) and main[0].polarity == "neg"
    if asked is not None and says_no and asked not in found:
        absent |= {asked}
    region = (record.variables or {}).get("region")
    labels = {label for part in _parts(record.answers) for label in part.labels}
    return CxrQbaQuestion(
        question_id=record.question_id,
        cluster=cluster_of(record),
        attributes={
            "strategy": record.question_strategy,
            "question_type": record.question_type,
            "grade": _grade(record),
            "region": str(region) if region else None,
            "view": record.view,
        },
        height=record.image_hw[0],
        width=record.image_hw[1],
        text=" ".join(answer.text for answer in main),
        present={name: _true_finding(parts, definitions) for name, parts in found.items()},
        absent=absent,
        denied_narrowly=frozenset(
            name
            for name in absent
            if denied.get(name) and all(_ACUTE in part.modifiers for part in denied[name])
        ),
        stated=frozenset(stated & found.keys()),
        asked=asked,
        region=str(region) if region else None,
        about=" ".join(map(str, (record.variables or {}).values())),
        yes=yes,
        asks_yes_no=asks_yes_no,
        boxes=_boxes(record, main, where),
        unknown_findings=sum(normalised(label) not in definitions.findings for label in labels),
    )


def _grade(record: QARecord) -> str:
    if record.grade is not None:
        return record.grade
    surrogate = record.quality.get("surrogate_grade")
    return f"surrogate {surrogate}" if surrogate else "unrated"


@functools.cache
def normalised(label: str) -> str:
    """A finding's name in the definitions, by any of its wordings; else itself in lower case."""
    return load_definitions().finding_names.get(label) or label.strip().lower()


def _parts(answers: Iterable[Answer]) -> Iterator[Answer]:
    for answer in answers:
        yield answer
        yield from _parts(answer.sub_answers)


def asked_for(question_type: str | None, finding: str | None) -> AskedFor:
    """Returns the subject of a question: one finding, or the presence of any."""
    kind = str(question_type)
    if finding is None and "_normal" not in kind and "_abnormal" not in kind:
        return NOTHING_ASKED
    return AskedFor((finding or ANY_FINDING,), is_denied="_is_normal" in kind)


def _yes(main: list[Answer], about: AskedFor) -> bool | None:
    """Reads the outcome from the answer's first word, else from its polarity tag."""
    if not main or main[0].certainty == NOT_MENTIONED:
        return None
    opened = yes_or_no(main[0].text, about)
    if opened is None and main[0].polarity != "unk":
        return main[0].polarity == "pos"
    return opened


def _true_finding(parts: list[Answer], definitions: Definitions) -> TrueFinding:
    regions = {region for part in parts for region in part.regions if region in definitions.regions}
    severities = [v for part in parts for kind, v in part.modifiers if kind == "severity"]
    return TrueFinding(
        side=joined_side(definitions.regions[region].side for region in regions),
        severity=severities[0] if len(set(severities)) == 1 else "",
        certain=any(part.certainty in (None, "certain") for part in parts),
        regions=frozenset(regions),
    )


def _boxes(record: QARecord, main: list[Answer], where: str) -> Float[np.ndarray, "n 4"]:
    assert record.image_hw is not None
    height, width = record.image_hw
    boxes = dict.fromkeys(
        tuple(box) for answer in main for box in answer.boxes_by_image.get(record.image_id, [])
    )
    for x0, y0, x1, y1 in boxes:
        # Written so that NaN fails; the release's boxes reach a pixel beyond the border at times.
        if not (-1 <= x0 < x1 <= width + 1 and -1 <= y0 < y1 <= height + 1):
            raise UserError(
                f"{where} has the box {[x0, y0, x1, y1]}: expected x0 < x1 and y0 < y1 within the "
                f"image's {width} x {height} pixels"
            )
    size = np.array([width, height, width, height])
    return np.array(list(boxes), np.float64).reshape(-1, 4) / size
