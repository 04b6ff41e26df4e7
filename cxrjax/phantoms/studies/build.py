"""Writes phantom studies to disk, patient by patient; an interrupted build goes on where it
stopped."""

import collections
import dataclasses
import functools
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import PIL.Image
import tqdm

from cxrjax import phantoms
from cxrjax.errors import UserError
from cxrjax.files import file_sha256, hash_lines, writing
from cxrjax.phantoms.render import SMALLEST
from cxrjax.phantoms.studies import tables
from cxrjax.phantoms.studies.findings import Item, items
from cxrjax.phantoms.studies.plan import PhantomStudy, plan_patients
from cxrjax.phantoms.studies.report import PhantomReport, PhantomSentence, write_report
from cxrjax.phantoms.studies.scene_graph import scene_graph
from cxrjax.phantoms.studies.structures import coco_masks
from cxrjax.phantoms.studies.views import DrawnView, render_study
from cxrjax.phantoms.vqa import pixel_box
from cxrjax.records_io import workers
from cxrjax.records_io.builder import finish_build
from cxrjax.records_io.quality import QualityLog
from cxrjax.records_io.statistics import compare

SCENE_GRAPHS = Path("chest_imagenome/silver_dataset/scene_graph")
MASKS = Path("cxas")
TRUTH = Path("truth/studies.jsonl")
LONG_SIDE = 512
_LARGEST = 4096
_JPEG_QUALITY = 95
_PATIENTS = 4  # whose studies are made between two marks of progress


@dataclasses.dataclass(frozen=True)
class StudyBuild:
    """What to make.

    Attributes:
        studies: their number; patients have one to four each.
        long_side: longer side of the images in pixels.
        processes: worker processes; 1 works in this one.
    """

    out: Path
    studies: int
    seed: int = 0
    long_side: int = LONG_SIDE
    processes: int = 1

    def __post_init__(self) -> None:
        if self.studies < 1:
            raise UserError(f"--studies={self.studies}: expected at least 1")
        if self.seed < 0:
            raise UserError(f"--seed={self.seed}: expected 0 or more")
        if self.processes < 1:
            raise UserError(f"--processes={self.processes}: expected at least 1")
        if not SMALLEST <= self.long_side <= _LARGEST:
            raise UserError(
                f"--long_side={self.long_side}: expected {SMALLEST} to {_LARGEST} pixels"
            )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of everything that decides what a patient's files hold."""
        code = [*Path(phantoms.__file__).parent.glob("*.py"), *Path(__file__).parent.glob("*.*")]
        decisive = repr((self.seed, self.long_side))
        return hash_lines([decisive, *(file_sha256(path) for path in sorted(code))])


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Some patients: what one worker makes at a time."""

    start: int
    patients: list[list[PhantomStudy]]

    @property
    def name(self) -> str:
        count = sum(len(studies) for studies in self.patients)
        return f"{self.start:07d}-{count}.json"


def build_phantom_studies(build: StudyBuild) -> None:
    """Writes the folder that the package's docstring describes.

    Raises:
        UserError: the folder cannot be written, or holds another build.
    """
    out = build.out
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        _refuse_another(build)
        (out / "manifest.json").unlink(missing_ok=True)
        for folder in (out / "parts", out / SCENE_GRAPHS, out / MASKS, out / TRUTH.parent):
            folder.mkdir(parents=True, exist_ok=True)
        (out / "parts" / "fingerprint").write_text(build.fingerprint)
        studies: list[dict[str, Any]] = []
        with (
            open(out / TRUTH, "w", encoding="utf-8") as truth,
            tqdm.tqdm(total=build.studies, unit="study") as progress,
        ):
            for entry in _made(build):
                progress.update(1)
                studies.append(entry)
                public = {key: entry[key] for key in entry if key not in ("hashes", "time")}
                truth.write(json.dumps(public, ensure_ascii=False) + "\n")
        tables.write_tables(out, studies)
        _finish(build, studies)
        shutil.rmtree(out / "parts")


def _refuse_another(build: StudyBuild) -> None:
    """Files of other patients must not stay among this build's."""
    out = build.out
    mark = out / "parts" / "fingerprint"
    if mark.exists() and mark.read_text() != build.fingerprint:
        raise UserError(
            f"{out}: holds an unfinished build with another seed, size or version; choose another "
            "--out or remove it"
        )
    if (out / "files").exists() and not mark.exists():
        raise UserError(f"{out}: holds a finished build; choose another --out or remove it")


def _made(build: StudyBuild) -> Iterator[dict[str, Any]]:
    """The studies' entries in order, made or taken up again."""
    chunks, waiting, start = [], [], 0
    for number, studies in enumerate(plan_patients(build.seed, build.studies)):
        waiting.append(studies)
        if len(waiting) == _PATIENTS:
            chunks.append(_Chunk(start, waiting))
            waiting, start = [], number + 1
    if waiting:
        chunks.append(_Chunk(start, waiting))
    work = functools.partial(_make_chunk, build)
    with workers.pool(build.processes) as apply:
        for part in apply(work, chunks):
            yield from part


def _make_chunk(build: StudyBuild, chunk: _Chunk) -> Sequence[dict[str, Any]]:
    """Makes some patients' studies, unless an earlier, interrupted build did."""
    part = build.out / "parts" / chunk.name
    if part.exists():
        done = json.loads(part.read_text(encoding="utf-8"))
        names = [name for entry in done for name in entry["hashes"]]
        if all((build.out / name).is_file() for name in names):
            return done
    entries = [entry for studies in chunk.patients for entry in _make_patient(build, studies)]
    # Written aside and renamed: a part is there only when all of its files are.
    aside = part.with_suffix(".tmp")
    aside.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    os.replace(aside, part)
    return entries


def _make_patient(build: StudyBuild, studies: Sequence[PhantomStudy]) -> Iterator[dict[str, Any]]:
    shown: list[Item] | None = None
    before: str | None = None
    for study in studies:
        pictures = render_study(study, build.long_side)
        present = items(pictures[0].lesions, study.body)
        report = write_report(build.seed, study, present, shown)
        hashes = _write_files(build, study, pictures, report, before)
        yield _entry(study, pictures, report) | {"hashes": hashes}
        shown, before = present, pictures[0].view.dicom_id


def _write_files(
    build: StudyBuild,
    study: PhantomStudy,
    pictures: Sequence[DrawnView],
    report: PhantomReport,
    before: str | None,
) -> dict[str, str]:
    """Writes a study's files; returns path -> SHA-256."""
    folder = tables.image_folder(study.subject_id, study.study_id)
    contents: dict[str, bytes] = {f"{folder}.txt": report.text.encode()}
    for picture in pictures:
        dicom_id = picture.view.dicom_id
        encoded = io.BytesIO()
        PIL.Image.fromarray(picture.image).save(encoded, "JPEG", quality=_JPEG_QUALITY)
        contents[f"{folder}/{dicom_id}.jpg"] = encoded.getvalue()
        if picture.canvas is None:
            continue
        graph = scene_graph(study, picture, report, before)
        contents[f"{SCENE_GRAPHS}/{dicom_id}_SceneGraph.json"] = _json(graph)
        masks = coco_masks(picture.view.film, picture.canvas, f"{dicom_id}.jpg")
        contents[f"{MASKS}/{dicom_id}.json"] = _json(masks)
    (build.out / folder).mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (build.out / name).write_bytes(content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()


def _entry(
    study: PhantomStudy, pictures: Sequence[DrawnView], report: PhantomReport
) -> dict[str, Any]:
    """The study's line in the truth file, and its time for the tables."""
    return {
        "subject_id": study.subject_id,
        "study_id": study.study_id,
        "split": study.split,
        "study_order": study.order,
        "time": study.time.isoformat(sep=" "),
        "kind": report.kind,
        "images": [_image(picture) for picture in pictures],
        "sentences": [_sentence(n, one) for n, one in enumerate(report.sentences, start=1)],
    }


def _image(picture: DrawnView) -> dict[str, Any]:
    height, width = picture.image.shape
    return {
        "dicom_id": picture.view.dicom_id,
        "view": picture.view.position,
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
            for lesion in picture.lesions
        ],
    }


def _sentence(n: int, sentence: PhantomSentence) -> dict[str, Any]:
    return {
        "sentence_id": f"S{n:02d}",
        "section": sentence.section,
        "text": sentence.text,
        "longitudinal": sentence.longitudinal,
        "facts": [dataclasses.asdict(fact) for fact in sentence.facts],
    }


def _finish(build: StudyBuild, studies: Sequence[Mapping[str, Any]]) -> None:
    """Counts, hashes, and the manifest at last."""
    images = [image for study in studies for image in study["images"]]
    sentences = [one for study in studies for one in study["sentences"]]
    views = collections.Counter(image["view"] for image in images)
    kinds = collections.Counter(study["kind"] for study in studies)
    splits = collections.Counter(study["split"] for study in studies)
    found = collections.Counter(
        lesion["finding"] for study in studies for lesion in study["images"][0]["lesions"]
    )
    polarities = collections.Counter(fact["polarity"] for one in sentences for fact in one["facts"])
    values: dict[str, float | None] = {
        "patients": len({study["subject_id"] for study in studies}),
        "studies": len(studies),
        "images": len(images),
        "boxes": sum(len(image["lesions"]) for image in images),
        "sentences": len(sentences),
        "longitudinal_sentences": sum(one["longitudinal"] for one in sentences),
        **{f"images/{name}": count for name, count in sorted(views.items())},
        **{f"studies/{name}": count for name, count in sorted(splits.items())},
        **{f"reports/{name}": count for name, count in sorted(kinds.items())},
        **{f"lesions/{name}": count for name, count in sorted(found.items())},
        **{f"facts/{name}": count for name, count in sorted(polarities.items())},
    }
    quality = QualityLog()
    quality.examined["studies"] = len(studies)
    quality.examined["images"] = len(images)
    hashes = [f"{name} {sha}" for study in studies for name, sha in study["hashes"].items()]
    finish_build(
        build.out,
        quality,
        compare(values, {}),
        {
            "dataset": "phantom_studies",
            "synthetic": True,
            "seed": build.seed,
            "studies": build.studies,
            "long_side": build.long_side,
            "grammar": "v1",
            "files_sha256": hash_lines(hashes),
        },
    )
