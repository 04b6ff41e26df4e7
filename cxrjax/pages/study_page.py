"""A page of studies drawn at random, to look at: report, graph, questions and answers.

    python -m cxrjax.pages.study_page --source=REPORTS --cxr_qba=BUILD --gemex=BUILD --out=F.html

REPORTS is what the builds were made from: anything that CXR-QBA's construction reads
(data/cxr_qba/README.md). One build is enough. Radiographs that are found below --image_root
(default: REPORTS) are shown with the boxes of both, small ones in the page and those with all
pixels in the folder F_files beside it. The page holds what the reports say, so that the reports'
terms hold for it.
"""

import contextlib
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.files import replace_text, writing
from cxrjax.images.decode import read_image
from cxrjax.pages.results.pictures import write_full
from cxrjax.pages.viewer import viewer_parts
from cxrjax.papers.cxr_qba.build import NATIVE
from cxrjax.papers.cxr_qba.construct.extraction import SourceStudy, StudyImage
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.native import StudyQuestions, StudySceneGraph
from cxrjax.papers.cxr_qba.study_files import Key, StudyFiles
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from cxrjax.papers.sources.report import (
    ImageReport,
    RefinedSentence,
    ReportSentence,
    split_sentences,
)
from cxrjax.records import QARecord, read_records
from cxrjax.records_io.builder import records_files
from cxrjax.records_io.quality import QualityLog
from cxrjax.scoring.overlays import BASE, COLOURS, TRUTH, jpeg_data_uri
from cxrjax.scoring.text_tables import template

TEMPLATE = "study_page.html.j2"


_PREVIEW_SIDE = 384  # pixels


def write_page(
    source: Path,
    out: Path,
    cxr_qba: Path | None,
    gemex: Path | None,
    studies: int,
    seed: int,
    image_root: Path | None = None,
) -> None:
    """Writes the page, and the folder beside it where there are larger pictures.

    Args:
        cxr_qba, gemex: folders of builds; None leaves a part out.
        studies: how many are drawn, from those that every build given has questions on.
        seed: decides which.
        image_root: folder that the studies' paths of images start from; None: the source.

    Raises:
        UserError: something cannot be read, or no study has what is to be shown.
    """
    asked = _gemex_questions(gemex) if gemex else {}
    keys = [(study.patient_id, study.study_id) for study in read_studies(source, QualityLog())]
    sections = []
    with contextlib.ExitStack() as opened:
        native = None
        if cxr_qba:
            native = opened.enter_context(StudyFiles(cxr_qba / NATIVE, QualityLog()))
        drawn = _draw(keys, studies, seed, native, asked if gemex else None)
        if not drawn:
            raise UserError(f"{source}: no study of it is in the builds; were they made from it?")
        patients = {patient_id for patient_id, _ in drawn}
        for study in read_studies(source, QualityLog(), patients.__contains__):
            key = (study.patient_id, study.study_id)
            if key in drawn:
                graph, questions = native.read(key) if native else (None, None)
                section = _section(study, graph, questions, asked.get(study.study_id, []))
                sections.append((section, study.images))
    root = image_root or source
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = out.with_name(f"{out.stem}_files")
        for left in folder.glob("full-*.jpg"):
            left.unlink()
        numbers = itertools.count()
        for section, images in sections:
            for image in images:
                path = root / image.path
                if not image.path or not path.is_file():
                    section["without_picture"].append(image.image_id)
                    continue
                shown = _picture(image, path, folder, next(numbers))
                shown["layers"] = _layers(image.image_id, section["graph"], section["asked"])
                section["pictures"].append(shown)
        page = template(str(__package__), TEMPLATE).render(
            studies=[section for section, _ in sections],
            source=source.name,
            of=len(keys),
            seed=seed,
            viewer=viewer_parts() if any(one["pictures"] for one, _ in sections) else None,
        )
        replace_text(out, page)


def _picture(image: StudyImage, path: Path, folder: Path, number: int) -> dict[str, Any]:
    """An image as the viewer takes it, but for its boxes; its file with all pixels is written."""
    pixels = read_image(path)
    height, width = pixels.shape[:2]
    preview = jpeg_data_uri(pixels, _PREVIEW_SIDE)
    full = write_full(pixels, _PREVIEW_SIDE, folder, number)
    name = f"{image.image_id} {image.view}".strip()
    return {"preview": preview, "full": full, "width": width, "height": height, "name": name}


def _layers(
    image_id: str, graph: StudySceneGraph | None, asked: Sequence[QARecord]
) -> list[dict[str, Any]]:
    """The boxes on an image, in its pixels: of observations, and of regions that answers name."""
    observed = [
        (", ".join(one.obs_entities) or one.name, box)
        for one in (graph.observations.values() if graph else ())
        if one.positive and one.from_report and image_id in one.localization
        for box in one.localization[image_id].bboxes
    ]
    located = [
        (", ".join(answer.regions), box)
        for record in asked
        for answer in record.answers
        for box in answer.boxes_by_image.get(image_id, [])
    ]
    layers = []
    for (name, (colour, dash)), found in zip(_LAYERS.items(), (observed, located), strict=True):
        # Many questions are about the same place: it is called by the shortest of its names.
        names: dict[tuple[float, ...], str] = {}
        for label, box in found:
            names[tuple(box)] = min(label, names.get(tuple(box), label), key=len)
        boxes = [{"label": label, "box": list(box)} for box, label in names.items()]
        look = {"name": name, "title": name, "colour": colour, "dash": dash}
        layers.append({**look, "boxes": boxes})
    return [layer for layer in layers if layer["boxes"]]


_LAYERS = {"CXR-QBA": (COLOURS[TRUTH], ""), "GEMeX": (COLOURS[BASE], "8 4")}


def _gemex_questions(build: Path) -> dict[str, list[QARecord]]:
    """Study id -> its questions."""
    asked: dict[str, list[QARecord]] = {}
    for file in records_files(build):
        for record in read_records(file):
            asked.setdefault(record.study_id or record.image_id, []).append(record)
    return asked


def _draw(
    keys: Sequence[Key],
    count: int,
    seed: int,
    native: StudyFiles | None,
    asked: dict[str, list[QARecord]] | None,
) -> set[Key]:
    """So many studies that all builds have, any as likely as another."""
    able = [
        key
        for key in dict.fromkeys(keys)
        if (native is None or key in native.members) and (asked is None or key[1] in asked)
    ]
    return set(random.Random(f"{seed}/study page").sample(able, min(count, len(able))))


def _section(
    study: SourceStudy,
    graph: StudySceneGraph | None,
    questions: StudyQuestions | None,
    asked: list[QARecord],
) -> dict[str, Any]:
    """The template's view of a study."""
    return {
        "id": study.study_id,
        "views": ", ".join(image.view for image in study.images if image.view),
        "report": study.report.sections,
        "graph": graph,
        "sentences_of": _sentences_of(graph) if graph else {},
        "questions": questions.questions if questions else [],
        "asked": asked,
        "refined": _refined(study) if asked else [],
        "pictures": [],
        "without_picture": [],
    }


def _sentences_of(graph: StudySceneGraph) -> dict[str, list[str]]:
    """Observation id -> ids of the sentences that say it."""
    found: dict[str, list[str]] = {}
    for edge in graph.obs_sent_relations:
        found.setdefault(edge.observation_id, []).append(edge.sentence_id)
    return found


def _refined(study: SourceStudy) -> list[RefinedSentence]:
    """The report's sentences as GEMeX's rules refine them, from the text alone."""
    texts = [study.report.sections.get(name, "") for name in ("findings", "impression")]
    sentences = tuple(ReportSentence(one) for text in texts for one in split_sentences(text))
    report = ImageReport(study.study_id, study.study_id, "", sentences, {})
    return [one for _, refinement in RuleRefiner().refine([report]) for one in refinement.sentences]


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the page that the flags ask for and prints where it is."""
    parser = command_parser("pages.study_page", __doc__)
    add = parser.add_argument
    add("--source", required=True, type=Path, help="the reports that the builds were made from")
    add("--cxr_qba", type=Path, metavar="BUILD", help="folder of a build of cxr_qba")
    add("--gemex", type=Path, metavar="BUILD", help="folder of a build of gemex")
    add("--out", required=True, type=Path, help="HTML file to write")
    add("--studies", type=int, default=20, help="how many to draw (default 20)")
    add("--seed", type=int, default=0, help="decides which (default 0)")
    add("--image_root", type=Path, metavar="DIR", help="of the radiographs (default: --source)")
    flags = parser.parse_args(argv)
    if flags.studies < 1 or not (flags.cxr_qba or flags.gemex):
        parser.error("expected --cxr_qba or --gemex or both, and --studies of at least 1")
    builds = flags.cxr_qba, flags.gemex
    write_page(
        flags.source, flags.out, *builds, flags.studies, flags.seed, image_root=flags.image_root
    )
    print(flags.out)


if __name__ == "__main__":
    cli.run(main)
