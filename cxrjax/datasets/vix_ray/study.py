"""A row understood: text in one Unicode form, view, sex and age in known terms.

What cannot be understood becomes null and is counted; the row's own words stay in `native`.
"""

import dataclasses
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from cxrjax.datasets.quality import QualityLog
from cxrjax.datasets.vix_ray.native import Row

# A view's name -> what it is called in the reports' headings. PA's is the one met in public
# scripts; the release defines no other, so that the rest are ours.
VIEW_DEFINITIONS = {
    "PA": "Chụp Xquang tim phổi thẳng",
    "AP": "Chụp Xquang tim phổi thẳng, tia đi từ trước ra sau",
    "LATERAL": "Chụp Xquang tim phổi nghiêng",
}
GENDERS = {"M": "nam", "F": "nữ"}

_VIEWS = {
    "PA": ("pa", "p.a", "sau-trước", "sau trước"),
    "AP": ("ap", "a.p", "trước-sau", "trước sau"),
    "LATERAL": ("lateral", "lat", "ll", "rl", "nghiêng", "nghiêng trái", "nghiêng phải"),
}
# No codes such as 0 and 1: nothing says which is which.
_SEXES = {"M": ("nam", "m", "male"), "F": ("nữ", "nu", "f", "female")}
_OLDEST = 120


@dataclasses.dataclass(frozen=True)
class Study:
    """One radiograph and its report.

    Attributes:
        findings, impression: NFC, lines and runs of blanks made one blank.
        view: `PA`, `AP`, `LATERAL` or None. `sex`: `M`, `F` or None. `age`: years or None.
        image_path: relative to the folder of the build. `image_hw`: pixels; None until known.
        native: the row as it stands, to be written back.
    """

    image_id: str
    split: str
    where: str
    findings: str
    impression: str
    view: str | None
    sex: str | None
    age: float | None
    note: str
    image_path: str
    image_sha256: str
    native: Mapping[str, Any]
    generator: str | None = None
    image_hw: tuple[int, int] | None = None


def understand(row: Row, image_path: str, image_sha256: str, quality: QualityLog) -> Study:
    """The study of a row whose image was written to `image_path`."""
    texts = {name: row.values.get(name) for name in ("findings", "impression", "note")}
    for name, text in texts.items():
        if isinstance(text, str) and text != unicodedata.normalize("NFC", text):
            quality.warnings[f"{name} not in Unicode's form NFC, read in it"] += 1
        if isinstance(text, str) and "\N{REPLACEMENT CHARACTER}" in text:
            quality.warnings[f"{name} with a letter that was lost in another encoding"] += 1
    return Study(
        image_id=row.image_id,
        split=row.split,
        where=row.where,
        findings=plain(texts["findings"]),
        impression=plain(texts["impression"]),
        view=_known("view", row, _VIEWS, quality),
        sex=_known("sex", row, _SEXES, quality),
        age=_age(row, quality),
        note=plain(texts["note"]),
        image_path=image_path,
        image_sha256=image_sha256,
        native={"file": row.file, "row": row.row, "columns": dict(row.native)},
        generator=row.generator,
    )


def plain(text: Any) -> str:
    """Text for use: NFC, blanks and line breaks as one blank; "" for what is no text."""
    return " ".join(unicodedata.normalize("NFC", text).split()) if isinstance(text, str) else ""


def _known(
    field: str, row: Row, spellings: Mapping[str, tuple[str, ...]], quality: QualityLog
) -> str | None:
    value = row.values.get(field)
    # Numbers are met as text, as whole numbers and, beside nulls, as fractions.
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    text = plain(text).lower().strip(" .")
    for known, written in spellings.items():
        if text in written:
            return known
    _warn_unknown(field, row, value, quality)
    return None


def _age(row: Row, quality: QualityLog) -> float | None:
    value = row.values.get("age")
    if isinstance(value, str):
        # "069Y" is how DICOM has it.
        match = re.fullmatch(r"0*(\d+(?:[.,]\d+)?)\s*(?:y|tuổi|t)?", plain(value).lower())
        value_read = float(match[1].replace(",", ".")) if match else math.nan
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value_read = float(value)
    else:
        value_read = math.nan
    if not 0 <= value_read <= _OLDEST:
        _warn_unknown("age", row, value, quality)
        return None
    return value_read


def _warn_unknown(field: str, row: Row, value: Any, quality: QualityLog) -> None:
    """Counts it, and says where; not what stands there, which may tell who the patient is."""
    missing = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
    quality.warnings[f"{field} {'missing' if missing else 'not understood'}, left null"] += 1
    if not missing:
        quality.warnings[f"{field} not understood: {row.image_id} ({row.where})"] += 1
