"""Reads PadChest-GR, builds in its layout, and CXR-QBA's scene graphs as drafts."""

import collections
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from cxrjax.errors import UserError
from cxrjax.files import read_json_list, read_json_object, read_packaged, reading
from cxrjax.images.decode import image_size
from cxrjax.papers.sources.mimic_tables import METADATA_PATTERN, find_table, read_rows
from cxrjax.records import Answer, EarlierImage, Provenance, QARecord
from cxrjax.records_io.quality import QualityLog, Unusable, usable_json, usable_record
from cxrjax.untrusted.archives import ZipArchive
from cxrjax.untrusted.foreign_files import MIB, read_bytes

WORDS: dict[str, Any] = read_packaged(str(__package__), "words.toml")
_GRAPH, _MOST_BYTES = ".scene_graph.json", 16 * MIB
EXPECTED = "expected grounded_reports*.json of PadChest-GR or of a build of grafts, or CXR-QBA's "
EXPECTED += f"*{_GRAPH} or zips of them"
_LAYOUT = "data/grounded_reports/README.md"
_NOTATION = re.compile(r"<[^<>]{0,40}>")  # what reads like a box in the words of a source
_POLARITY = {True: "pos", False: "neg", None: "unk"}


class ReportDraft(NamedTuple):
    """A record without boxes in its texts, and the study before it; `date` sorts a patient's."""

    record: QARecord
    date: str = ""
    earlier: "ReportDraft | None" = None


def read_source(options: Any, quality: QualityLog) -> Iterator[ReportDraft]:
    """Yields the reports of any source.

    Raises:
        UserError: the source is none of those that are read, or a table of it is broken.
    """
    source = options.source
    files = [source] if source.suffix == ".json" else sorted(source.glob("grounded_reports*.json"))
    if files:
        return _read_padchest(files[-1], options, quality)
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


def _record(where: str, image: str, study: str, hw: Any, **more: Any) -> QARecord:
    named = {"split": "", "question": "", "image_hw": hw, **more}
    named |= {"question_type": "findings", "provenance": Provenance(source_file=where)}
    with usable_record():
        return QARecord(image_id=image, study_id=study, question_id=f"{study}/{image}", **named)


def _kind(folder: Path) -> str:
    """Returns the data set that records name: a build's manifest says if reports are simulated."""
    manifest = folder / "manifest.json"
    about = read_json_object(manifest) if manifest.is_file() else {}
    drawn = "simulated_reports" if about.get("synthetic") is True else "grounded_reports"
    return str(about.get("reports", drawn))


def _rows(folder: Path | None, pattern: str, *columns: str) -> list[Mapping[str, str]]:
    path = folder and find_table(folder, pattern)
    return [row for _, row in read_rows(path, columns)] if path else []


def _read_padchest(file: Path, options: Any, quality: QualityLog) -> Iterator[ReportDraft]:
    """Reads the release; its table has patients, splits and dates, folders beside it images."""
    rows = _rows(file.parent, "master_table.csv*", "StudyID", "PatientID", "split")
    table = {row["StudyID"]: row for row in rows}
    images = {path.name: path for at in ("*.*", "*/*.*") for path in file.parent.glob(at)}
    kind = _kind(file.parent)

    def answer(one: Mapping[str, Any], image: str, height: int, width: int) -> Answer:
        scale = (width, height, width, height)
        boxes = one.get("boxes") or ()
        pixels = [[side * by for side, by in zip(box, scale, strict=True)] for box in boxes]
        change = WORDS["changes"].get(str(one.get("progression")).lower(), "")
        said, labels = one.get(f"sentence_{options.language}"), one.get("labels") or ()
        return _answer(said, {image: pixels}, labels, _POLARITY[one.get("abnormal")], change)

    def draft(study: str, name: str, findings: Iterable[Any], where: str) -> ReportDraft:
        if name not in images:
            raise Unusable("missing_image", f"no {name} in the folders beside {file.name}")
        size, image, row = image_size(images[name]), PurePosixPath(name).stem, table.get(study, {})
        more = {"patient_id": row.get("PatientID") or None, "split": row.get("split", "")}
        more["image_path"] = os.path.relpath(images[name], options.out)
        answers = [answer(one, image, *size) for one in findings]
        record = _record(where, image, study, size, answers=answers, dataset=kind, **more)
        return ReportDraft(record, row.get("StudyDate_DICOM", ""))

    read: dict[str, tuple[Mapping[str, Any], ReportDraft]] = {}
    for number, study in enumerate(read_json_list(file), 1):
        where = f"{file.name}: study {number}"
        with quality.rejecting(str(number), where, _LAYOUT):
            if (name := str(study["StudyID"])) in read:
                raise Unusable("duplicate_id", f"study {name} is there before; expected it once")
            read[name] = study, draft(name, study["ImageID"], study["findings"], where)
    for study, one in read.values():
        before, shown = str(study.get("PreviousStudyID") or ""), study.get("PreviousImageID")
        with quality.rejecting(one.record.image_id, file.name, _LAYOUT):
            earlier = read[before][1] if before in read else None
            if earlier is None and shown in images:  # an image without a report
                earlier = draft(before, str(shown), (), file.name)
            yield one._replace(earlier=earlier)


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
    images: dict[str, list[Mapping[str, str]]] = collections.defaultdict(list)
    for row in _rows(options.source, "image_metadata.csv*", "study_id", "image_id", "frontal"):
        images[row["study_id"]].append(row)
    studies = _rows(options.source, "study_metadata.csv*", "study_id", "split")
    splits = {row["study_id"]: row["split"] for row in studies}
    dated = _rows(options.images, METADATA_PATTERN, "dicom_id", "StudyDate", "StudyTime")
    dates = {row["dicom_id"]: f"{row['StudyDate']} {row['StudyTime']:0>10}" for row in dated}
    kind = _kind(options.images or options.source)
    for where, content in graphs:
        with quality.rejecting(PurePosixPath(where).name.removesuffix(_GRAPH), where, _LAYOUT):
            graph = usable_json(content, "invalid_graph")
            study, patient = graph["study_id"], graph["patient_id"]
            said: dict[str, str] = collections.defaultdict(str)
            for one in graph["sentences"].values():
                said[one["section_type"].lower()] += f" {one['sentence']}"
            before = {name: said[name].strip() for name in ("indication", "comparison")}
            more = {"patient_id": patient, "split": splits.get(study, ""), "variables": before}
            shown = {row["image_id"]: row for row in images[study]}
            folder = f"files/{patient[:3]}/{patient}/{study}"
            size = {n: (int(row["height"]), int(row["width"])) for n, row in shown.items()}
            path = {name: f"{folder}/{name}.jpg" for name in shown}
            sides = [name for name, row in shown.items() if row["frontal"] == "False"]
            for name in sides[:1] if options.lateral else ():
                second = {"image_id": name, "image_path": path[name], "image_hw": size[name]}
                more["earlier"] = EarlierImage.model_validate(second)
            for name in (name for name in shown if name not in sides):
                more |= {"image_path": path[name], "view": shown[name].get("view_position") or None}
                answers = list(_graph_answers(graph, shown.keys() - {name}))
                record = _record(
                    where, name, study, size[name], dataset=kind, answers=answers, **more
                )
                yield ReportDraft(record, dates.get(name, ""))


def _graph_answers(graph: Mapping[str, Any], others: Collection[str]) -> Iterator[Answer]:
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
