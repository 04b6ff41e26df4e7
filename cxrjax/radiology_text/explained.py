"""Signs that a report explains by an artefact or a structure outside the lung, or puts there."""

import re
from collections.abc import Sequence

from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.english import Words
from cxrjax.radiology_text.forward import Judgement
from cxrjax.radiology_text.items import NamedItem
from cxrjax.radiology_text.lexicon import pattern, word_set

EXPLAINABLE = word_set("explainable")
_CAUSES = word_set("outside_causes")
_LINK = pattern("explaining_link")
_CAUSE = pattern("outside_cause")
_OPEN = re.compile(r" (?:may|might|could|possibl[ey]|perhaps|possibility|versus|vs|or) ")
_OVER = pattern("over_outside")
_IN_BONE = pattern("in_bone")
_APPARENT = word_set("apparent_causes")
_NOT_BELOW = word_set("outside_above")
_UNCALCIFIED = pattern("uncalcified")
_REFERRING = pattern("explaining_reference")
_SOFT = Judgement("uncertain", "possible", reason="hedged")


def is_cause(name: str, definitions: Definitions) -> bool:
    """Returns whether a finding is an artefact, a device, or of bone or skin."""
    finding = definitions.findings.get(name)
    return finding is not None and (
        finding.category in ("artifact", "device") or finding.name in _CAUSES
    )


def refers_to_sign(said: str) -> bool:
    """Returns whether a sentence explains what the one before it describes."""
    return _REFERRING.match(said) is not None


def explain(
    tokens: Words, items: Sequence[NamedItem], judged: list[Judgement], definitions: Definitions
) -> dict[int, int | None]:
    """Finds signs that are nothing of the lung; softens those that may be.

    Returns:
        Index of each such sign -> that of the item which explains it and is where it is, or None.
    """
    found: dict[int, int | None] = {}
    for n, item in enumerate(items):
        if n and item.names == ("lung calcification",) and judged[n].status == "absent":
            between = " ".join(tokens.forms[items[n - 1].last : item.first])
            if EXPLAINABLE.intersection(items[n - 1].names) and _UNCALCIFIED.fullmatch(between):
                found[n] = n - 1  # "nodule without calcification"
                continue
        plain = judged[n].status != "absent" and not judged[n].not_now and not item.is_normal
        apparent = "apparent" in (tokens.form(item.first - 1), tokens.form(item.first - 2))
        if not plain or not (apparent or EXPLAINABLE.intersection(item.names)):
            continue
        later = next((m for m in range(n + 1, len(items)) if items[m].names), None)
        until = min(items[later].own) if later is not None else len(tokens)
        gap = f" {' '.join(tokens.forms[item.last : until])} "
        gap = gap.replace(" there is ", " there ").replace(" there are ", " there ")
        leads = f" {' '.join(tokens.forms[: item.first])} "
        causes = (
            items[later].names if later is not None and judged[later].status != "absent" else ()
        )
        by_item = any(is_cause(name, definitions) for name in causes) and bool(_LINK.search(gap))
        cause = _CAUSE.search(gap)
        by_item |= apparent and bool(_APPARENT.intersection(causes) and _LINK.search(gap))
        if _IN_BONE.match(gap) and not {"consolidation", "pneumothorax"}.intersection(item.names):
            item.names = ("bone abnormality",)
            continue
        over = _OVER.search(gap)
        if over and not by_item:
            if item.names == ("lung calcification",) and not _NOT_BELOW.intersection(
                over[0].split()
            ):
                item.names = ("abdominal calcification",)
            else:
                found[n] = None
        elif (by_item or cause) and (
            _OPEN.search(gap)
            or (by_item and later is not None and judged[later].status == "uncertain")
        ):
            judged[n] = _SOFT
        elif by_item or cause or leads.endswith(" artifactual "):
            found[n] = later if by_item else None
    return found
