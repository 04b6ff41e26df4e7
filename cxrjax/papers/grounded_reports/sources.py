"""Reads PadChest-GR, CXR-QBA's scene graphs, and builds of simulated lesions as drafts."""

import collections
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from cxrjax.errors import UserError
from cxrjax.files import read_json_list, read_json_object, read_packaged, reading
from cxrjax.images.decode import image_size
from cxrjax.images.files import ImageError
from cxrjax.papers.sources.mimic_tables import METADATA_PATTERN, find_table, read_rows
from cxrjax.records import Answer, EarlierImage, Provenance, QARecord, read_records
from cxrjax.records_io.quality import QualityLog, Unusable, usable_json, usable_record
from cxrjax.untrusted.archives import ZipArchive
from cxrjax.untrusted.foreign_files import MIB, read_bytes

WORDS: dict[str, Any] = read_packaged(str(__package__), "words.toml")
EXPECTED = "expected PadChest-GR's grounded_reports*.json, CXR-QBA's *.scene_graph.json or zips of "
EXPECTED += "them, or a build of grafts"
_GRAPH, _MOST_BYTES = ".scene_graph.json", 16 * MIB
_NOTATION = re.compile(r"<[^<>]{0,40}>")  # what reads like a box in the words of a source
_POLARITY = {True: "pos", False: "neg", None: "unk"}
# What a source of another layout raises.
_FAULTS = (Unusable, ImageError, KeyError, TypeError, ValueError, AttributeError)


class ReportDraft(NamedTuple):
    """A record without boxes in its texts, and the study before it; `date` sorts a patient's."""

    record: QARecord
    date: str = ""
    earlier: "ReportDraft | None" = None
    lateral: EarlierImage | None = None


def read_source(options: Any, quality: QualityLog) -> Iterator[ReportDraft]:
    """Yields the reports of any source.

    Raises:
        UserError: the source is none of those that are read, or a table of it is broken.
    """
    source = options.source
    files = [source] if source.suffix == ".json" else sorted(source.glob("grounded_reports*.json"))
    if files:
        return _read_padchest(files[-1], options, quality)
    if (source / "lesions.csv").is_file():
        return _read_lesions(source, options, quality)
    if graphs := list(_graph_files(source)):
        return _compared(_read_graphs(graphs, options, quality))
    raise UserError(f"{source}: no grounded reports; {EXPECTED}")


def _compared(drafts: Iterable[ReportDraft]) -> Iterator[ReportDraft]:
    """Links each report with its patient's last study before it, where dates are known."""
    seen: dict[str | None, list[ReportDraft]] = collections.defaultdict(list)
    for one in sorted(drafts, key=lambda one: (one.date, one.record.question_id)):
        others = seen[one.record.patient_id] if one.record.patient_id and one.date else []
        studies = (other for other in reversed(others) if other.date < one.date)
        yield one._replace(earlier=next(studies, None))
        others.append(one)


def _answer(
    text: str | None, boxes: Mapping[str, Any], labels: Iterable[str], polarity: str, change: str
) -> Answer:
    places = {name: [list(box) for box in of] for name, of in boxes.items() if of}
    said = {"polarity": polarity, "modifiers": [("change", change)] if change else []}
    words = " ".join(_NOTATION.sub(" ", text or "").split())
    return Answer.model_validate(
        {"text": words, "boxes_by_image": places, "labels": list(labels), **said}
    )


def _record(where: str, image: str, study: str, hw: tuple[int, int], **more: Any) -> QARecord:
    named = {"dataset": "grounded_reports", "split": "", "question": "", "image_hw": hw, **more}
    named |= {"question_type": "findings", "provenance": Provenance(source_file=where)}
    with usable_record():
        return QARecord(image_id=image, study_id=study, question_id=f"{study}/{image}", **named)


def _reject(quality: QualityLog, item: str, where: str, fault: Exception) -> None:
    reason = "unreadable_image" if isinstance(fault, ImageError) else "invalid_record"
    found = f"not in the layout of data/grounded_reports/README.md: {type(fault).__name__}: {fault}"
    if isinstance(fault, Unusable):
        reason, found = fault.reason, fault.found
    quality.set_aside(reason, item, where, " ".join(found.split())[:300])


def _rows(folder: Path | None, pattern: str, *columns: str) -> list[Mapping[str, str]]:
    path = folder and find_table(folder, pattern)
    return [row for _, row in read_rows(path, columns)] if path else []


def _read_padchest(file: Path, options: Any, quality: QualityLog) -> Iterator[ReportDraft]:
    """Reads the release; its table has patients, splits and dates, folders beside it images."""
    rows = _rows(file.parent, "master_table.csv*", "StudyID", "PatientID", "split")
    table = {row["StudyID"]: row for row in rows}
    folders = [file.parent, *(path for path in file.parent.iterdir() if path.is_dir())]
    images = {path.name: path for folder in folders for path in folder.glob("*.png")}

    def draft(study: str, name: str, findings: Iterable[Any], where: str) -> ReportDraft:
        if name not in images:
            raise Unusable("missing_image", f"no {name} in the folders beside {file.name}")
        (height, width), image, row = (
            image_size(images[name]),
            PurePosixPath(name).stem,
            table.get(study, {}),
        )
        answers = []
        for one in findings:
            pixels = [
                (a * width, b * height, c * width, d * height)
                for a, b, c, d in one.get("boxes") or ()
            ]
            change = WORDS["changes"].get(str(one.get("progression")).lower(), "")
            said = one.get(f"sentence_{options.language}"), {image: pixels}, one.get("labels") or ()
            answers.append(_answer(*said, _POLARITY[one.get("abnormal")], change))
        path = os.path.relpath(images[name], options.out)
        more: dict[str, Any] = {
            "patient_id": row.get("PatientID") or None,
            "split": row.get("split", ""),
        }
        more |= {"image_path": path, "answers": answers}
        record = _record(where, image, study, (height, width), **more)
        return ReportDraft(record, row.get("StudyDate_DICOM", ""))

    read: dict[str, tuple[Mapping[str, Any], ReportDraft]] = {}
    for number, study in enumerate(read_json_list(file), 1):
        where = f"{file.name}: study {number}"
        try:
            name = str(study["StudyID"])
            read[name] = study, draft(name, study["ImageID"], study["findings"], where)
        except _FAULTS as fault:
            _reject(quality, str(number), where, fault)
    for study, one in read.values():
        before, shown = str(study.get("PreviousStudyID") or ""), study.get("PreviousImageID")
        earlier = read[before][1] if before in read else None
        try:
            if earlier is None and shown in images:  # an image without a report
                earlier = draft(before, str(shown), (), file.name)
            yield one._replace(earlier=earlier)
        except _FAULTS as fault:
            _reject(quality, one.record.image_id, file.name, fault)


def _graph_files(source: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(source.rglob(f"*{_GRAPH}")):
        yield file.name, read_bytes(file, _MOST_BYTES)
    for path in sorted(source.rglob("*.zip")):
        with reading(path), ZipArchive(path, _MOST_BYTES) as archive:
            for name in sorted(n for n in archive.names if n.endswith(_GRAPH)):
                yield name, archive.read(name)


def _read_graphs(
    graphs: Iterable[tuple[str, bytes]], options: Any, quality: QualityLog
) -> Iterator[ReportDraft]:
    """Reads findings sections, one draft a frontal image; tables have sizes, splits and dates."""
    manifest = (options.images or options.source) / "manifest.json"
    drawn = manifest.is_file() and read_json_object(manifest).get("synthetic") is True
    images: dict[str, list[Mapping[str, str]]] = collections.defaultdict(list)
    for row in _rows(options.source, "image_metadata.csv*", "study_id", "image_id", "frontal"):
        images[row["study_id"]].append(row)
    studies = _rows(options.source, "study_metadata.csv*", "study_id", "split")
    splits = {row["study_id"]: row["split"] for row in studies}
    dated = _rows(options.images, METADATA_PATTERN, "dicom_id", "StudyDate", "StudyTime")
    dates = {row["dicom_id"]: f"{row['StudyDate']} {row['StudyTime']:0>10}" for row in dated}
    for where, content in graphs:
        try:
            graph = usable_json(content, "invalid_graph")
            study, patient = graph["study_id"], graph["patient_id"]
            said = {kind.lower(): _section(graph, kind) for kind in ("INDICATION", "COMPARISON")}
            more = {"patient_id": patient, "split": splits.get(study, ""), "variables": said}
            more["dataset"] = "simulated_reports" if drawn else "grounded_reports"
            fronts, sides = [], []
            for row in images[study]:
                name, size = row["image_id"], (int(row["height"]), int(row["width"]))
                path = f"files/{patient[:3]}/{patient}/{study}/{name}.jpg"
                if row["frontal"] == "False":
                    sides.append(EarlierImage(image_id=name, image_path=path, image_hw=size))
                    continue
                others = {row["image_id"] for row in images[study]} - {name}
                more |= {"image_path": path, "view": row.get("view_position") or None}
                more["answers"] = list(_graph_answers(graph, others))
                record = _record(where, name, study, size, **more)
                fronts.append(ReportDraft(record, dates.get(name, "")))
            yield from (one._replace(lateral=next(iter(sides), None)) for one in fronts)
        except _FAULTS as fault:
            _reject(quality, PurePosixPath(where).name.removesuffix(_GRAPH), where, fault)


def _section(graph: Mapping[str, Any], kind: str) -> str:
    found = (one for one in graph["sentences"].values() if one["section_type"] == kind)
    return " ".join(one["sentence"] for one in found)


def _graph_answers(graph: Mapping[str, Any], others: set[str]) -> Iterator[Answer]:
    """Yields the findings, with boxes of the present observations that they state.

    Args:
        others: the study's other images, whose boxes are left to their records.
    """
    stated: dict[str, list[Any]] = collections.defaultdict(list)
    seen, sentences = graph["observations"], graph["sentences"]
    for link in graph["obs_sent_relations"]:
        one, said = link["observation_id"], link["sentence_id"]
        if one not in seen or said not in sentences:
            raise Unusable("box_without_sentence", f"{one} of {said}: one of them is not there")
        stated[said].append(seen[one])
    for key, sentence in sentences.items():
        if sentence["section_type"] != "FINDINGS":
            continue
        here = [one for one in stated[key] if not one["child_level"]]
        present = [one for one in here if one["positiveness"] == "pos"]
        boxes: dict[str, dict[Any, None]] = collections.defaultdict(dict)
        for name, place in (item for one in present for item in one["localization"].items()):
            if name not in others:
                boxes[name] |= dict.fromkeys(map(tuple, place["bboxes"]))
        changes = [WORDS["changes"].get(name, name) for one in here for name in one["changes"]]
        labels = dict.fromkeys(label for one in here for label in one["obs_entities"])
        polarity = _POLARITY[True if present else False if here else None]
        yield _answer(sentence["sentence"], boxes, labels, polarity, next(iter(changes), ""))


Lesions = dict[tuple[str, str], list[Any]]


def _read_lesions(source: Path, options: Any, quality: QualityLog) -> Iterator[ReportDraft]:
    """Reads a build of grafts: an image's lesions become its report, in words of our own."""
    files = sorted((source / "records").glob("*.jsonl"))
    records = {record.image_id: record for file in files for record in read_records(file)}
    lesions: dict[str, Lesions] = {name: {} for name in records}
    columns = ("image_id", "label", "x_min", "y_min", "x_max", "y_max")
    for where, row in read_rows(source / "lesions.csv", columns):
        label, name = row["label"], row["image_id"]
        if name not in records:
            quality.set_aside("box_in_other_image", name, where, "no record of this image")
            continue
        box = tuple(float(row[side]) for side in columns[2:])
        half = (records[name].image_hw or (0, 0))[1] / 2
        side = "left" if (box[0] + box[2]) / 2 >= half else "right"  # the patient's
        alone = WORDS["lesions"]["classes"][label]["form"] == "alone"
        lesions[name].setdefault((label, "" if alone else side), []).append(box)

    def draft(name: str, answers: Iterable[Answer] = ()) -> ReportDraft:
        record = records[name]
        same = {field: getattr(record, field) for field in ("patient_id", "split", "quality")}
        kind = ("own_" if record.dataset == "own_grafts" else "") + "simulated_reports"
        path = os.path.relpath(source / record.image_path, options.out)
        more = {"dataset": kind, "image_path": path, "answers": list(answers), **same}
        return ReportDraft(
            _record("lesions.csv", name, name, record.image_hw or (0, 0), **more), name
        )

    told: dict[str, ReportDraft] = {}
    for one in _compared(map(draft, records)):
        name, earlier = one.record.image_id, one.earlier if options.earlier != "none" else None
        before = earlier and earlier.record.image_id
        size = one.record.image_hw or (0, 0)
        old = lesions[before] if before else None
        told[name] = draft(name, lesion_answers(lesions[name], old, name, size))
        yield told[name]._replace(earlier=told[before] if before else None)


def lesion_answers(
    lesions: Lesions, before: Lesions | None, image: str, image_hw: tuple[int, int]
) -> Iterator[Answer]:
    """Writes a report on simulated lesions.

    Args:
        lesions: (class, side) -> boxes.
        before: those of the earlier image; None: nothing is compared.
    """
    words, old = WORDS["lesions"], before or {}
    forms, classes = words["forms"], words["classes"]
    for (label, side), boxes in sorted(lesions.items()):
        about, change = classes[label], ""
        share = _area(*boxes) / len(boxes) / (image_hw[0] * image_hw[1])
        size = next((n for n, (low, high) in words["sizes"].items() if low <= share < high), "")
        form = "several" if len(boxes) > 1 and "plural" in about else about["form"]
        if before is not None and side:
            growth = _area(*boxes) / _area(*old[label, side]) if (label, side) in old else None
            grown = (n for n, high in words["growth"].items() if growth and growth < high)
            form = change = next(grown, "new")
        fill = {"size": size, "side": side, "count": words["counts"].get(str(len(boxes))), **about}
        yield _answer(forms[form].format(**fill), {image: boxes}, [label], "pos", change)
    for label, side in sorted(key for key in old.keys() - lesions.keys() if key[1]):
        said = forms["resolved"].format(side=side, **classes[label])
        yield _answer(said, {}, [label], "neg", "resolved")
    if not lesions:
        yield _answer(forms["normal"], {}, [], "neg", "")
    named = {label for label, _ in (*lesions, *old)}
    if absent := [label for label in words["denied"] if label not in named]:
        nouns = " or ".join(classes[label]["noun"] for label in absent)
        yield _answer(forms["absent"].format(nouns=nouns), {}, absent, "neg", "")


def _area(*boxes: Any) -> float:
    return float(sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes))
