"""MS-CXR's own file to records, a question for each phrase of an image, and back.

A record keeps the rows it was made from in `quality["rows"]`, so that native -> record -> native
loses nothing but what was set aside (of the JSON also images without a box, and its header; images
and categories come back in the order of their ids).

A phrase is set aside whole where one of its rows is unusable: a box that is missing from the truth
would count a right answer as a wrong one.
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.papers.sources.ms_cxr import Mark, read_marks, to_number
from cxrjax.records import LARGEST_SIDE, Answer, Provenance, QARecord
from cxrjax.records_io.quality import QualityLog, Unusable, check_box, usable_name, usable_path

FINDINGS: tuple[str, ...] = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Lung Opacity",
    "Pleural Effusion",
    "Pneumonia",
    "Pneumothorax",
)
# The file's split -> ours.
SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
ROWS = "rows"
_COLUMNS = ("label_text", "path", "image_width", "image_height")
_PATIENT = re.compile(r"(?:^|/)p(\d{8})(?:/s(\d{8}))?/")


def find_file(source: Path) -> Path:
    """The file itself, or a folder's newest CSV (which may have the split), else its newest JSON.

    Raises:
        UserError: there is none.
    """
    if not source.is_dir():
        return source
    for suffix in ("csv", "json"):
        if files := sorted(source.glob(f"MS_CXR_Local_Alignment*.{suffix}")):
            return files[-1]
    raise UserError(
        f"{source}: no MS_CXR_Local_Alignment*.csv or .json in it; expected PhysioNet's file "
        "(data/ms_cxr/README.md)"
    )


def read_native(path: Path, quality: QualityLog) -> Iterator[QARecord]:
    """Records of a file, in the order of their first rows; `split` is "" where the file has none.

    Raises:
        UserError: the file cannot be read, or is not in MS-CXR's layout.
    """
    phrases: dict[tuple[str, str, str], list[tuple[int, Mark]]] = defaultdict(list)
    faults: dict[tuple[str, str, str], tuple[Mark, Unusable]] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for number, mark in enumerate(read_marks(path, _COLUMNS)):
        quality.examined["rows"] += 1
        key = (mark.image_id, mark.category, str(mark.fields.get("label_text") or ""))
        phrases[key].append((number, mark))
        try:
            _check(mark, sizes)
        except Unusable as fault:
            faults.setdefault(key, (mark, fault))
    asked: defaultdict[str, int] = defaultdict(int)
    for key, rows in phrases.items():
        quality.examined["questions"] += 1
        place, asked[key[0]] = asked[key[0]], asked[key[0]] + 1
        if key in faults:
            mark, why = faults[key]
            found = f"{why.found}; the phrase's rows left out: {len(rows)}"
            quality.set_aside(why.reason, key[0] or "?", mark.where, found)
        else:
            yield _record(place, rows, sizes[key[0]], path.name)


def _check(mark: Mark, sizes: dict[str, tuple[int, int]]) -> None:
    """Refuses what no question can be made of; the first size of an image holds for all."""
    if mark.fault is not None:
        raise mark.fault
    if mark.category not in FINDINGS:
        expected = f"expected one of {', '.join(FINDINGS)}"
        raise Unusable("unknown_class", f"category is {mark.category!r}; {expected}")
    if not mark.image_id or not str(mark.fields.get("label_text") or "").strip():
        raise Unusable("malformed_row", "dicom_id or label_text is empty; expected a text")
    usable_name(mark.image_id)
    if path := mark.fields.get("path"):
        usable_path(path)
    split = mark.fields.get("split") or ""
    if not isinstance(split, str) or (split and split not in SPLITS):
        expected = f"expected one of {', '.join(SPLITS)}, or nothing"
        raise Unusable("malformed_row", f"split is {split!r}; {expected}")
    written = [mark.fields.get(name) for name in ("image_height", "image_width")]
    height, width = (to_number(value) for value in written)
    if not all(1 <= side <= LARGEST_SIDE and side % 1 == 0 for side in (height, width)):
        found = f"image_height and image_width are {written}; expected whole numbers of pixels"
        raise Unusable("bad_size", found)
    size = (int(height), int(width))
    known = sizes.setdefault(mark.image_id, size)
    if size != known:
        found = f"the image is {size} (height, width) here and {known} in an earlier row"
        raise Unusable("size_mismatch", f"{found}; expected one size")
    check_box(mark.box, size, mark.category)


def _record(
    place: int, rows: Sequence[tuple[int, Mark]], size: tuple[int, int], file: str
) -> QARecord:
    first = rows[0][1]
    image_id, phrase = first.image_id, str(first.fields["label_text"])
    path = str(first.fields.get("path") or f"{image_id}.jpg")
    ids = _PATIENT.search(path)
    return QARecord(
        dataset="ms_cxr",
        split=SPLITS.get(first.fields.get("split") or "", ""),
        patient_id=ids[1] if ids else None,
        study_id=ids[2] if ids else None,
        image_id=image_id,
        image_path=path,
        image_hw=size,
        question_id=f"{image_id}-{place}",
        question=f"Where is this seen: {phrase}",
        question_type="grounding",
        # What `detect` and `medgemma_boxes` ask for.
        variables={"finding": phrase},
        answers=[
            Answer(
                text=phrase,
                labels=[first.category],
                polarity="pos",
                boxes_by_image={image_id: [list(mark.box) for _, mark in rows]},
            )
        ],
        gt_finding=first.category,
        quality={ROWS: [{"row": number, "native": dict(mark.native)} for number, mark in rows]},
        provenance=Provenance(source_file=file),
    )


def write_native(path: Path, records: Iterable[QARecord]) -> None:
    """Writes records back into the layout that they were read from: `path` ends in its suffix.

    Raises:
        UserError: a record was not made from a file in this layout.
    """
    rows: dict[int, Mapping[str, Any]] = {}
    for record in records:
        kept = record.quality.get(ROWS) or []
        if not kept or any(("annotation" in r["native"]) != (path.suffix == ".json") for r in kept):
            raise UserError(
                f"question {record.question_id}: no quality.{ROWS} of a *{path.suffix}; expected "
                "a record with its answer, built from such a file"
            )
        rows |= {row["row"]: row["native"] for row in kept}
    natives = [rows[number] for number in sorted(rows)]
    if path.suffix == ".json":
        content = {"annotations": [row["annotation"] for row in natives]}
        for plural, name in (("images", "image"), ("categories", "category")):
            by_id = {row[name]["id"]: row[name] for row in natives}
            content[plural] = [by_id[key] for key in sorted(by_id)]
        path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(natives[0]) if natives else (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(natives)
