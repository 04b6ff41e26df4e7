"""Pages of simulated images to inspect: phantoms, studies, and lesions in radiographs."""

import colorsys
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.errors import UserError
from cxrjax.evaluation.sample_page import SampleBox, SampleImage, SampleSection
from cxrjax.files import read_json_lines, read_json_object
from cxrjax.images.decode import read_image
from cxrjax.paths import to_path
from cxrjax.records_io.quality import QualityLog, Unusable
from cxrjax.simulation.compose import generator, simulate_lesions
from cxrjax.simulation.findings import CLASSES, Presence
from cxrjax.simulation.lesions import normal_images, read_pair
from cxrjax.simulation.regions import REGIONS
from cxrjax.simulation.render import render_phantom
from cxrjax.simulation.signs import SimulatedImage
from cxrjax.simulation.studies.build import SCENE_GRAPHS, TRUTH
from cxrjax.simulation.studies.layouts import image_folder
from cxrjax.untrusted.foreign_files import read_text


def phantom_samples(seed: int, count: int, long_side: int) -> list[SampleSection]:
    """Renders the first images of a series of phantoms."""
    shown = [
        SampleImage(str(number), "", phantom.image, _boxes(phantom))
        for number in range(count)
        for phantom in [render_phantom(seed, number, long_side)]
    ]
    return [SampleSection(f"Phantoms of seed {seed}", (), shown)]


def _boxes(one: SimulatedImage) -> list[SampleBox]:
    pairs = zip(one.labels, one.boxes.tolist(), strict=True)
    return [SampleBox(label, CLASSES[label]["colour"], box) for label, box in pairs]


def study_samples(source: Path, count: int) -> list[SampleSection]:
    """Shows studies of a finished build: their regions, lesions and reports.

    Raises:
        UserError: the folder is no such build.
    """
    lines = read_json_lines(source / TRUTH, "", "--source=BUILD?")
    return [_study(source, one) for _, one in itertools.islice(lines, count)]


def _study(source: Path, study: dict[str, Any]) -> SampleSection:
    folder = source / image_folder(study["subject_id"], study["study_id"])
    first, last = study["images"][0], study["images"][-1]
    graph = read_json_object(source / SCENE_GRAPHS / f"{first['dicom_id']}_SceneGraph.json")
    regions = [
        (found["bbox_name"], [found[f"original_{edge}"] for edge in ("x1", "y1", "x2", "y2")])
        for found in graph["objects"]
    ]
    lesions = [(one["finding"], one["box"]) for one in last["lesions"]]
    shown = []
    for image, boxes in ((first, regions), (last, lesions)):
        pixels = read_image(folder / f"{image['dicom_id']}.jpg")
        size = np.array([image["width"], image["height"]] * 2)
        marks = [SampleBox(name, _colour(name), np.array(box) / size) for name, box in boxes]
        shown.append(SampleImage(image["view"], "", pixels, marks))
    found = [
        f"{one['kind'] or one['finding']} ({', '.join(one['regions'])})" for one in first["lesions"]
    ]
    report = [" ".join(part.split()) for part in read_text(to_path(f"{folder}.txt")).split("\n \n")]
    heading = f"s{study['study_id']}, number {study['study_order']}, {study['kind']}"
    return SampleSection(heading, [f"Rendered: {'; '.join(found) or 'nothing'}", *report], shown, 2)


def _colour(name: str) -> str:
    if name in CLASSES:
        return CLASSES[name]["colour"]
    parts = colorsys.hsv_to_rgb(REGIONS.index(name) * 0.618 % 1, 0.85, 1)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def lesion_samples(
    source: Path,
    classes: Sequence[str],
    strengths: Sequence[float],
    count: int,
    seed: int,
    long_side: int,
) -> list[SampleSection]:
    """Simulates one lesion of each class into radiographs of a folder, at several strengths.

    Raises:
        UserError: a class is unknown, or the folder has no normal radiograph with a usable mask.
    """
    if unknown := [label for label in classes if label not in CLASSES]:
        raise UserError(f"--classes: unknown {unknown}; expected some of {', '.join(CLASSES)}")
    images = list(normal_images(source, QualityLog()))
    sections = []
    for label in classes:
        rows: list[list[SampleImage]] = []
        for k in generator(seed, label, "normal").permutation(len(images)):
            if len(rows) == count:
                break
            name = images[k].image_id
            try:
                pair = read_pair(images[k], long_side)
                row = [SampleImage(name, "unchanged", pair[0])]
                for strength in strengths:
                    presences = [Presence(label, 3, (strength,))]
                    one = simulate_lesions(*pair, seed, name, presences)
                    ratios = [lesion.contrast_to_noise for lesion in one.lesions]
                    told = [f"contrast to noise {ratio:.2f}" for ratio in ratios if ratio]
                    caption = ", ".join([f"strength {strength:g}", *told])
                    row.append(SampleImage(name, caption, one.image))
            except Unusable:
                continue
            kinds = ", ".join(lesion.kind for lesion in one.lesions if lesion.kind)
            rows.append([*row, SampleImage(name, kinds, one.image, _boxes(one))])
        if not rows:
            found = "no normal radiograph with a usable mask"
            raise UserError(f"{source}: {found} (data/lungs/README.md)")
        shown = list(itertools.chain.from_iterable(rows))
        sections.append(SampleSection(label, (), shown, len(strengths) + 2))
    return sections
