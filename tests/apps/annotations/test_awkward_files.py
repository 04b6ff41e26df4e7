"""Files as people bring them: each is read, or refused in one line that says what to do."""

import contextlib
import json
import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import pydicom
import pytest

from cxrjax.apps.annotations.annotation import Stated
from cxrjax.apps.annotations.coordinates import Four, settle
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.formats import read_annotations
from cxrjax.errors import ForeignError, UserError
from cxrjax.records_io.quality import QualityLog
from cxrjax.untrusted.dicom_reports import head, read_report
from tests.apps.annotations import samples
from tests.apps.annotations.samples import BOXES, SIZE, csv_text

HEIGHT, WIDTH = SIZE
FIRST = (10, 20, 40, 50)
ALL = sum(map(len, BOXES.values()))


class Case(NamedTuple):
    """As in awkward_files.toml, with a writer in place of the files' texts."""

    write: Callable[[Path], object]
    expected: int | str
    first: Any = None
    said: dict[str, Any] = {}


def text(name: str, content: str | bytes):
    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def report(uid: str, label: str, kind="SCOORD", size: int | None = None):
    """A report of one box, cut off after so many bytes."""

    def write(folder: Path) -> None:
        samples.dicom_image(folder / "images" / "x.dcm", "1.2.3.1")
        path = folder / "sr.dcm"
        samples.report(path, [(uid, label, FIRST)], kind=kind)
        path.write_bytes(path.read_bytes()[:size])

    return write


def mask(name: str, *fills, size=SIZE):
    """A mask with (place, level) drawn into it."""

    def write(folder: Path) -> None:
        path = folder / "masks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.zeros(size, np.uint8)
        for place, level in fills:
            pixels[place] = level
        PIL.Image.fromarray(pixels).save(path)

    return write


def told_in_file(told):
    """The writer of a case of awkward_files.toml."""
    files = dict(told.get("files", {}))
    if "rows" in told:
        files["b.csv"] = csv_text() + told["rows"]
    for name, words in told.get("tables", {}).items():
        files[name] = csv_text(*words).replace(*told.get("replaced", ("", "")))
    if "coco" in told or "annotation" in told:
        content = samples.coco(**told.get("coco", {}))
        content["annotations"][0].update(told.get("annotation", {}))
        files["coco.json"] = json.dumps(content)
    if "region" in told:
        task = samples.label_studio_task(0, 1)
        task["annotations"][0]["result"][0].update(told["region"])
        files["project.json"] = json.dumps([task])
    return lambda folder: [text(*one)(folder) for one in files.items()]


MARKED = np.s_[20:50, 10:40], 255
LEVELS = (np.s_[5:20, 5:20], 1), (np.s_[30:50, 30:50], 2)

CASES = {
    # Tables.
    "csv with a byte-order mark": Case(text("b.csv", "\ufeff" + csv_text()), ALL),
    "csv in UTF-16": Case(text("b.csv", csv_text().encode("utf-16")), ALL),
    "csv in Latin-1": Case(text("b.csv", csv_text().encode() + b"a,\xe9,1,2,3,4\n"), ALL + 1),
    "csv with CRLF": Case(text("b.csv", csv_text().replace("\n", "\r\n")), ALL),
    "no header": Case(text("b.csv", "\n".join(csv_text().splitlines()[1:5])), 4),
    "JSON too deep": Case(text("coco.json", "[" * 5000 + "]" * 5000), "coco.json"),
    # XML, Label Studio.
    "VOC in Windows' letters": Case(
        text("a.xml", b"<annotation><object><name>Ergu\xdf</name></object></annotation>"),
        r"a.xml: byte \d+ is not UTF-8; save it as UTF-8",
    ),
    # DICOM SR.
    "SR of an image that is not here": Case(report("1.2.9", "E"), "~missing_image"),
    "SR without a finding": Case(report("1.2.3.1", ""), "~unknown_class"),
    "SR in space": Case(report("1.2.3.1", "E", "SCOORD3D"), "regions in space"),
    "SR cut off": Case(report("1.2.3.1", "E", size=700), r"sr.dcm: a damaged structured report"),
    # Masks.
    "a mask of another size": Case(mask("Effusion/a.png", MARKED, size=(70, 70)), "~mask_size"),
    "a mask of no image": Case(mask("Effusion/zz.png", MARKED), "~unmatched_mask"),
    "a mask by its name": Case(mask("a_Effusion.png", MARKED), 1, FIRST),
    "a mask without a class": Case(mask("a.png", MARKED), "--label=NAME, --classes=NAME,NAME"),
    "a mask of levels": Case(mask("a.png", *LEVELS), 2, said={"classes": ["Effusion", "Nodule"]}),
    "a mask all over": Case(mask("Effusion/a.png", (..., 255)), "~inverted_mask"),
    "a picture as a mask": Case(
        mask("a.png", (..., np.arange(WIDTH))), "~not_a_mask", said={"classes": ["E"]}
    ),
    # Folders.
    "two formats": Case(
        lambda folder: [samples.write_format(kind, folder) for kind in ("coco", "csv")],
        "annotations of 2 formats .*--format=NAME",
    ),
}
for name, told in tomllib.loads(Path(__file__).with_name("awkward_files.toml").read_text()).items():
    more = {key: told[key] for key in ("first", "said") if key in told}
    CASES[name] = Case(told_in_file(told), told["expected"], **more)


def read(folder: Path, case: Case):
    """What is found of a case, and the log."""
    samples.draw_images(folder / "images")
    case.write(folder)
    quality, said = QualityLog(), dict(case.said)
    if "classes" in said:
        said["classes"] = tuple(said["classes"])
    return read_annotations(Folder(folder), Stated(**said), quality)[1], quality.entries


def test_an_awkward_file_is_read_or_refused_in_one_line(tmp_path, subtests):
    for number, (name, case) in enumerate(CASES.items()):
        with subtests.test(name):
            try:
                found, entries = read(tmp_path / str(number), case)
            except UserError as error:
                line = str(error)
                assert "\n" not in line and len(line) < 600
                assert isinstance(case.expected, str) and re.search(case.expected, line), line
                continue
            if isinstance(case.expected, str):
                reasons = [entry.reason for entry in entries]
                assert reasons == [case.expected.removeprefix("~")], found
                continue
            assert (len(found.boxes), entries) == (case.expected, [])
            for x0, y0, x1, y1 in (one.box for one in found.boxes):
                assert 0 <= x0 < x1 <= WIDTH and 0 <= y0 < y1 <= HEIGHT
            if case.first:
                assert found.boxes[0].box == pytest.approx(case.first, abs=0.05)


def test_a_report_without_end_is_refused(tmp_path):
    file = tmp_path / "deep.dcm"
    samples.report(file, [("1.2.3.1", "E", FIRST)])
    deep = pydicom.dcmread(file)
    inner = samples.content("CONTAINER", ("1", "x"))
    for _ in range(120):
        inner = samples.content("CONTAINER", ("1", "x"), [inner])
    deep.ContentSequence = [inner]
    deep.save_as(file)
    with pytest.raises(ForeignError, match=r"floors|damaged"):
        read_report(file)
    bad = bytearray(file.read_bytes())
    place = bad.index(b"\x08\x00\x18\x00UI") + 4
    bad[place : place + 2] = b"UA"  # no value representation
    (tmp_path / "bad.dcm").write_bytes(bad)
    with pytest.raises(ForeignError, match="a damaged DICOM file: NotImplementedError"):
        head(tmp_path / "bad.dcm", "SOPInstanceUID")
    with open(file, "ab") as longer:
        longer.truncate(2**25)
    with pytest.raises(ForeignError, match="more than the"):
        read_report(file)


def test_scanners_are_linear_in_their_input(tmp_path):
    hostile = [
        "names: [" + "'a" * 200_000,
        "names:\n" + " " * 400_000 + "x",
        "[" * 400_000,
        ",'" * 99_999,
    ]
    for number, text_of_file in enumerate(hostile):
        for name in ("d.yaml", "b.csv"):
            case = Case(text(name, text_of_file), 0)
            text("labels/a.txt", "0 .5 .5 .2 .2\n")(tmp_path / f"{number}{name}")
            start = time.process_time()
            with contextlib.suppress(UserError):
                read(tmp_path / f"{number}{name}", case)
            assert time.process_time() - start < 2


def test_regions_of_ohif_and_of_ellipses(tmp_path):
    """OHIF names its tool in place of a class; an ellipse has the ends of both axes."""

    def write(folder):
        samples.dicom_image(folder / "x.dcm", "1.2.3.1")
        samples.report(folder / "sr.dcm", [("1.2.3.1", "Mass", FIRST)] * 2)
        dataset = pydicom.dcmread(folder / "sr.dcm")
        turned, unnamed = dataset.ContentSequence[0].ContentSequence
        region = turned.ContentSequence[1]
        region.GraphicType = "ELLIPSE"
        region.GraphicData = [30, 40, 50, 20, 35, 25, 45, 35]  # half axes (10, -10) and (5, 5)
        tool = samples.content("TEXT", ("112039", "Tracking Identifier"))
        tool.TextValue = "Cornerstone3DTools@^0.1.0:RectangleROI"
        unnamed.ContentSequence = [tool, unnamed.ContentSequence[1]]
        dataset.save_as(folder / "sr.dcm")

    found, entries = read(tmp_path, Case(write, "~unknown_class"))
    side = 125**0.5
    box = (40 - side, 30 - side, 40 + side, 30 + side)
    assert found.boxes[0].box == pytest.approx(box)
    assert [entry.reason for entry in entries] == ["unknown_class"]


def test_the_soft_edges_of_a_scaled_mask_are_no_part_of_its_box(tmp_path):
    samples.draw_images(tmp_path / "images")
    mask("Effusion/a.png", (np.s_[9:21, 9:21], 60), (np.s_[10:20, 10:20], 255))(tmp_path)
    _, found = read_annotations(Folder(tmp_path), Stated(), QualityLog())
    assert [one.box for one in found.boxes] == [(10, 10, 20, 20)]


@pytest.mark.parametrize("beyond", [0.02, 0.2])
@pytest.mark.parametrize("image_hw", [None, (1000, 1000)])
def test_a_form_in_which_boxes_leave_their_image_is_not_guessed(image_hw, beyond):
    """Corners, which as corner and size would end beyond the edge by so much of the image."""
    side = image_hw[0] if image_hw else 1
    numbers = (0.4 * side, 0.1 * side, (0.6 + beyond) * side, 0.4 * side)
    settled = settle([Four(numbers, image_hw, "b.csv:2")] * 3, "b.csv")
    assert settled.form == "xyxy" and settled.units == ("pixels" if image_hw else "fractions")


def test_parts_of_a_mask_that_touch_at_a_corner_are_one(tmp_path):
    places = np.s_[10:20, 10:20], np.s_[20:30, 20:30], np.s_[40:50, 60:70]
    samples.draw_images(tmp_path / "images")
    mask("Effusion/a.png", *((place, 255) for place in places))(tmp_path)
    _, found = read_annotations(Folder(tmp_path), Stated(), QualityLog())
    assert [one.box for one in found.boxes] == [(10, 10, 30, 30), (60, 40, 70, 50)]
