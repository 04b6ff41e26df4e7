"""Writes phantom studies to disk, patient by patient; an interrupted build resumes."""

import collections
import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.errors import UserError
from cxrjax.files import hash_lines, writing
from cxrjax.paths import remove_tree
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord
from cxrjax.records_io import workers
from cxrjax.records_io.builder import Builder, BuildOptions
from cxrjax.simulation.builder import check_flags, fingerprint, pixel_box, to_jpeg
from cxrjax.simulation.render import SMALLEST
from cxrjax.simulation.studies import layouts
from cxrjax.simulation.studies.plan import PhantomStudy, plan_patients
from cxrjax.simulation.studies.report import PhantomReport, write_report
from cxrjax.simulation.studies.views import Item, RenderedView, items, render_study
from cxrjax.untrusted.foreign_files import read_bytes

SCENE_GRAPHS = Path("chest_imagenome/silver_dataset/scene_graph")
MASKS = Path("cxas")
TRUTH = Path("truth/studies.jsonl")
LONG_SIDE = 512
_LARGEST = 4096
_PATIENTS = 4  # in a chunk of work


@dataclasses.dataclass(frozen=True)
class StudiesOptions(BuildOptions):
    """Flags of phantom studies.

    Attributes:
        studies: examinations; patients have one to four each.
        long_side: longer side of the images in pixels.
    """

    studies: int = 200
    long_side: int = LONG_SIDE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flags(
            studies=(self.studies, 1, np.inf), long_side=(self.long_side, SMALLEST, _LARGEST)
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Returns a hash of everything that decides a patient's files."""
        return fingerprint(self.seed, self.long_side)


class StudiesBuilder(Builder[StudiesOptions]):
    """Writes the folder that data/phantom_studies/README.md describes, without records."""

    dataset = "phantom_studies"
    options_class = StudiesOptions
    leaves = "files/, chest_imagenome/, cxas/, truth/, statistics.json, manifest.json"

    def __init__(self, options: StudiesOptions) -> None:
        super().__init__(options)
        self.studies: list[dict[str, Any]] = []

    def tidy(self) -> None:
        remove_tree(self.options.out / "parts")

    def prepare(self, splits: Collection[str]) -> None:
        """Makes the folder; it must not hold files of other patients.

        Raises:
            UserError: it cannot be written, or holds another build.
        """
        out, fingerprint = self.options.out, self.options.fingerprint
        mark = out / "parts" / "fingerprint"
        if mark.exists() and read_bytes(mark) != fingerprint.encode():
            raise UserError(
                f"{out}: holds an unfinished build with another seed, size or version; choose "
                "another --out or remove it"
            )
        if (out / "files").exists() and not mark.exists():
            raise UserError(f"{out}: holds a finished build; choose another --out or remove it")
        with writing(out):
            for folder in (mark.parent, out / SCENE_GRAPHS, out / MASKS, out / TRUTH.parent):
                folder.mkdir(parents=True, exist_ok=True)
            (out / "manifest.json").unlink(missing_ok=True)
            mark.write_text(fingerprint)

    def read(self) -> dict[str, list[QARecord]]:
        self.prepare(())
        out = self.options.out
        with (
            writing(out),
            (out / TRUTH).open("w", encoding="utf-8") as truth,
            progress_bar(desc="rendering", total=self.options.studies, unit="study") as progress,
        ):
            for entry in self._make():
                progress.update(1)
                self.studies.append(entry)
                public = {key: entry[key] for key in entry if key not in ("hashes", "time")}
                truth.write(json.dumps(public, ensure_ascii=False) + "\n")
        return {}

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        layouts.write_tables(self.options.out, self.studies)

    def _make(self) -> Iterator[dict[str, Any]]:
        """Yields the studies' entries in order, made now or in an interrupted build."""
        options = self.options
        patients = list(plan_patients(options.seed, options.studies))
        chunks = {
            f"{start:07d}-{sum(map(len, few))}": few
            for start in range(0, len(patients), _PATIENTS)
            for few in [patients[start : start + _PATIENTS]]
        }
        work, files = functools.partial(_make_chunk, options), operator.itemgetter("hashes")
        how = (options.out, options.fingerprint, options.processes)
        for part in workers.resumable(work, chunks, files, *how):
            yield from part

    def values(self) -> dict[str, float | None]:
        studies = self.studies
        images = [image for study in studies for image in study["images"]]
        sentences = [one for study in studies for one in study["sentences"]]
        lesions = [one for study in studies for one in study["images"][0]["lesions"]]
        counters = {
            "images": [image["view"] for image in images],
            "studies": [study["split"] for study in studies],
            "reports": [study["kind"] for study in studies],
            "lesions": [lesion["finding"] for lesion in lesions],
            "facts": [fact["polarity"] for one in sentences for fact in one["facts"]],
        }
        self.quality.examined.update(studies=len(studies), images=len(images))
        return {
            "patients": len({study["subject_id"] for study in studies}),
            "studies": len(studies),
            "images": len(images),
            "boxes": sum(len(image["lesions"]) for image in images),
            "sentences": len(sentences),
            "longitudinal_sentences": sum(one["longitudinal"] for one in sentences),
            **{
                f"{what}/{name}": count
                for what, counts in counters.items()
                for name, count in sorted(collections.Counter(counts).items())
            },
        }

    def describe(self) -> dict[str, Any]:
        pairs = (pair for study in self.studies for pair in study["hashes"].items())
        return {
            "synthetic": True,
            "seed": self.options.seed,
            "studies": self.options.studies,
            "long_side": self.options.long_side,
            "grammar": "v1",
            "files_sha256": hash_lines(f"{name} {sha}" for name, sha in pairs),
        }


def _make_chunk(
    options: StudiesOptions, patients: Sequence[Sequence[PhantomStudy]]
) -> list[dict[str, Any]]:
    return [entry for studies in patients for entry in _make_patient(options, studies)]


def _make_patient(
    options: StudiesOptions, studies: Sequence[PhantomStudy]
) -> Iterator[dict[str, Any]]:
    shown: list[Item] | None = None
    before: str | None = None
    for study in studies:
        rendered = render_study(study, options.long_side)
        present = items(rendered[0].lesions, study.body)
        report = write_report(options.seed, study, present, shown)
        hashes = _write_files(options, study, rendered, report, before)
        yield _entry(study, rendered, report) | {"hashes": hashes}
        shown, before = present, rendered[0].view.dicom_id


def _write_files(
    options: StudiesOptions,
    study: PhantomStudy,
    rendered: Sequence[RenderedView],
    report: PhantomReport,
    before: str | None,
) -> dict[str, str]:
    """Writes a study's files; returns path -> SHA-256."""
    folder = layouts.image_folder(study.subject_id, study.study_id)
    contents: dict[str, bytes] = {f"{folder}.txt": report.text.encode()}
    for one in rendered:
        dicom_id = one.view.dicom_id
        contents[f"{folder}/{dicom_id}.jpg"] = to_jpeg(one.image)
        if one.canvas is None:
            continue
        graph = layouts.scene_graph(study, one, report, before)
        contents[f"{SCENE_GRAPHS}/{dicom_id}_SceneGraph.json"] = _json(graph)
        masks = layouts.coco_masks(one.view.film, one.canvas, f"{dicom_id}.jpg")
        contents[f"{MASKS}/{dicom_id}.json"] = _json(masks)
    (options.out / folder).mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (options.out / name).write_bytes(content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()


def _entry(
    study: PhantomStudy, rendered: Sequence[RenderedView], report: PhantomReport
) -> dict[str, Any]:
    """Returns the study's line in the truth file, and its time for the tables."""
    return {
        "subject_id": study.subject_id,
        "study_id": study.study_id,
        "split": study.split,
        "study_order": study.order,
        "time": study.time.isoformat(sep=" "),
        "kind": report.kind,
        "images": [_image(one) for one in rendered],
        "sentences": [
            {
                "sentence_id": f"S{n:02d}",
                "section": one.section,
                "text": one.text,
                "longitudinal": one.longitudinal,
                "facts": [dataclasses.asdict(fact) for fact in one.facts],
            }
            for n, one in enumerate(report.sentences, start=1)
        ],
    }


def _image(one: RenderedView) -> dict[str, Any]:
    height, width = one.image.shape
    return {
        "dicom_id": one.view.dicom_id,
        "view": one.view.position,
        "height": height,
        "width": width,
        "lesions": [
            {
                "lesion": lesion.number,
                "finding": lesion.label,
                "kind": lesion.kind,
                "box": pixel_box(lesion.box, height, width),
                "regions": lesion.regions,
            }
            for lesion in one.lesions
        ],
    }
