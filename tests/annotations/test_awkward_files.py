"""Files as people bring them: each is read, or refused in one line that says what to do."""

import json
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cxrjax.annotations.coordinates import Four, settle
from cxrjax.annotations.folder import Folder
from cxrjax.annotations.formats import read_annotations
from cxrjax.annotations.table import Stated
from cxrjax.errors import UserError
from cxrjax.records_io.quality import QualityLog
from tests.annotations import samples
from tests.annotations.samples import BOXES, SIZE, csv_text

HEIGHT, WIDTH = SIZE
XYXY = "image_id,class_name,x_min,y_min,x_max,y_max"


def text(name: str, content: str | bytes):
    def write(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def coco(**fields):
    return text("coco.json", json.dumps(samples.coco(**fields)))


def coco_of(change):
    content = samples.coco()
    change(content)
    return text("coco.json", json.dumps(content))


def table(header: str = XYXY, sep: str = ",", row=None, name: str = "boxes.csv"):
    return text(name, csv_text(header, sep, row))


def values(*names: str, stem: bool = True, scale: float = 1):
    """A row maker: columns by name, numbers divided by the image's size where `scale` is 0."""

    def make(name: str, label: str, box) -> list:
        if box[0] == "":
            return [name if not stem else Path(name).stem, label, *box][: 2 + len(box)]
        x0, y0, x1, y1 = box
        known = {"x0": x0, "y0": y0, "x1": x1, "y1": y1, "w": x1 - x0, "h": y1 - y0}
        known |= {"cx": (x0 + x1) / 2, "cy": (y0 + y1) / 2}
        if not scale:
            known = {
                key: round(value / (WIDTH if key in ("x0", "x1", "w", "cx") else HEIGHT), 5)
                for key, value in known.items()
            }
        return [Path(name).stem if stem else name, label, *(known[one] for one in names)]

    return make


def voc(body: str, name: str = "a"):
    return text(f"{name}.xml", body)


VOC_OF_A = (
    "<annotation><filename>a.png</filename><object><name>Effusion</name><bndbox><xmin>10</xmin>"
    "<ymin>20</ymin><xmax>40</xmax><ymax>50</ymax></bndbox></object></annotation>"
)


def cvat(shape: str):
    return text(
        "cvat.xml",
        f'<annotations><image name="a.png" width="80" height="60">{shape}</image></annotations>',
    )


def yolo(lines: str, names: str | None = "Effusion\nNodule\n"):
    def write(folder: Path) -> None:
        text("labels/a.txt", lines)(folder)
        if names is not None:
            text("classes.txt", names)(folder)

    return write


def studio(*tasks):
    return text("project.json", json.dumps(list(tasks)))


def studio_value(value, kind="rectanglelabels", **fields):
    task = samples.label_studio_task("a.png", BOXES["a.png"][:1])
    one = task["annotations"][0]["result"][0]
    one |= {"type": kind, "value": value | {kind: ["Effusion"]}} | fields
    return studio(task)


def apart():
    """A task of <Rectangle> and <Labels>: a region is two results, the class in the second."""
    task = samples.label_studio_task("a.png", BOXES["a.png"][:1])
    drawn = task["annotations"][0]["result"][0]
    label = drawn["value"].pop("rectanglelabels")
    named = drawn | {"type": "labels", "value": drawn["value"] | {"labels": label}}
    task["annotations"][0]["result"] = [drawn | {"type": "rectangle"}, named]
    return task


def report(groups, kind="SCOORD"):
    def write(folder: Path) -> None:
        samples.dicom_image(folder / "images" / "x.dcm", "1.2.3.1")
        samples.report(folder / "sr.dcm", groups, kind=kind)

    return write


def mask(name: str, fill, size=SIZE):
    def write(folder: Path) -> None:
        path = folder / "masks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.zeros(size, np.uint8)
        fill(pixels)
        PIL.Image.fromarray(pixels).save(path)

    return write


def marked(pixels: np.ndarray) -> None:
    pixels[20:50, 10:40] = 255


FIRST = (10, 20, 40, 50)
ALL = sum(map(len, BOXES.values()))

# Name -> (writer of the files, what the user says, boxes that are read; "~" and the reason with
# which one is set aside; or the line that refuses it).
CASES = {
    # Tables.
    "csv with a byte-order mark": (text("b.csv", b"\xef\xbb\xbf" + csv_text().encode()), {}, ALL),
    "csv in UTF-16": (text("b.csv", csv_text().encode("utf-16")), {}, ALL),
    "csv in Latin-1": (text("b.csv", csv_text().encode() + b"a,\xe9,1,2,3,4\n"), {}, "not UTF-8"),
    "csv with CRLF": (text("b.csv", csv_text().replace("\n", "\r\n")), {}, ALL),
    "semicolons": (table(XYXY.replace(",", ";"), ";"), {}, ALL),
    "tabs": (table(XYXY.replace(",", "\t"), "\t", name="b.tsv"), {}, ALL),
    "decimal commas": (
        text("b.csv", csv_text(XYXY.replace(",", ";"), ";").replace("10;20", "10,25;20,0")),
        {},
        ALL,
    ),
    "xywh by its names": (
        table("file,label,x,y,width,height", row=values("x0", "y0", "w", "h")),
        {},
        ALL,
    ),
    "centres by their names": (
        table("file,label,x_center,y_center,w,h", row=values("cx", "cy", "w", "h")),
        {},
        ALL,
    ),
    "fractions among names of corners": (
        table(row=values("x0", "y0", "x1", "y1", scale=0)),
        {},
        ALL,
    ),
    "one cell of corners": (
        table("image,label,bbox", row=lambda n, c, b: [n, c, f'"[{", ".join(map(str, b))}]"']),
        {},
        ALL,
    ),
    "NIH's broken header": (
        table(
            "Image Index,Finding Label,Bbox [x,y,w,h],,,",
            row=lambda n, c, b: [*values("x0", "y0", "w", "h", stem=False)(n, c, b), "", "", ""][
                :9
            ],
        ),
        {},
        ALL,
    ),
    "numbers without a meaning that only fit as corners": (
        table("image,label,bbox", row=lambda n, c, b: [n, c, " ".join(map(str, b))]),
        {},
        ALL,
    ),
    "numbers that fit as both": (
        text("b.csv", "image,label,bbox\na,Effusion,1 2 10 12\nb,Nodule,3 4 20 22\n"),
        {},
        r"as xyxy and as xywh: say --box_form=xyxy or --box_form=xywh",
    ),
    "numbers that fit as both, settled": (
        text("b.csv", "image,label,bbox\na,Effusion,1 2 10 12\nb,Nodule,3 4 20 22\n"),
        {"box_form": "xywh"},
        2,
    ),
    "corners in columns of sizes": (
        table("image,label,x,y,width,height", row=values("x0", "y0", "x1", "y1", stem=False)),
        {},
        r"do not fit their images as xywh, .* say --box_form=xyxy",
    ),
    "no header": (
        text("b.csv", "\n".join(csv_text().splitlines()[1:5])),
        {},
        4,
    ),
    "no class": (
        text("b.csv", "image,x_min,y_min,x_max,y_max\na,1,2,3,4\n"),
        {},
        r"no column names the class; .*--label=NAME",
    ),
    "no class, said": (
        text("b.csv", "image,x_min,y_min,x_max,y_max\na,1,2,3,4\n"),
        {"label": "Nodule"},
        1,
    ),
    "columns that nobody knows": (
        text("b.csv", "kuva,laji,vasen,yla,oikea,ala\na,Effusion,1,2,3,4\n"),
        {},
        r"no columns of boxes; found 'kuva'.*--columns=box=",
    ),
    "columns that nobody knows, said": (
        text("b.csv", "kuva,laji,vasen,yla,oikea,ala\na,Effusion,1,20,30,40\n"),
        {
            "columns": {"image": "kuva", "label": "laji", "box": "vasen+yla+oikea+ala"},
            "box_form": "xyxy",
        },
        1,
    ),
    "a column twice": (
        text("b.csv", "image,label,x_min,y_min,x_max,y_max,label\na,E,1,2,3,4,E\n"),
        {},
        "'label' stands twice",
    ),
    "a quote that is not closed": (
        text("b.csv", f'{XYXY}\na,"Eff,1,2,3,4\n' * 2),
        {},
        "~malformed_row",
    ),
    "a short row": (text("b.csv", csv_text() + "a,Effusion,3\n"), {}, "~malformed_row"),
    "a word for a number": (text("b.csv", csv_text() + "a,Effusion,3,4,x,6\n"), {}, "~bad_box"),
    "an empty table": (text("b.csv", ""), {}, "an empty table"),
    "0 and 1 alone": (
        text("b.csv", f"{XYXY}\na,Effusion,0,0,1,1\nb,Nodule,0,0,1,1\n"),
        {},
        r"consist of 0 and 1.*--units=fractions or --units=pixels",
    ),
    "German, as Excel saves it": (
        text(
            "b.csv",
            "\ufeffBild;Befund;x;y;Breite;Höhe\n"
            "a.png;Erguss;10,25;20;30;30\nb.png;kein Befund;;;;\n",
        ),
        {},
        1,
    ),
    "German corners": (
        text("b.csv", "Datei;Klasse;links;oben;rechts;unten\na;E;10;20;40;50\n"),
        {},
        1,
    ),
    "Excel's line that says what divides cells": (
        text("b.csv", "sep=;\nimage;label;x_min;y_min;x_max;y_max\na;E;10;20;40;50\n"),
        {},
        1,
    ),
    "RSNA's targets in place of classes": (
        text("b.csv", "patientId,x,y,width,height,Target\na,10,20,30,30,1\nb,,,,,0\n"),
        {},
        r"b.csv:1: the column of classes, 'Target', holds numbers alone.*--label=NAME",
    ),
    "RSNA's targets, and their class said": (
        text("b.csv", "patientId,x,y,width,height,Target\na,10,20,30,30,1\nb,,,,,0\n"),
        {"label": "Lung opacity"},
        1,
    ),
    "AutoML's pairs of corners": (
        text("b.csv", "TRAIN,gs://x/a.png,E,.1,.1,,,.5,.5,,\n"),
        {},
        "~bad_box",
    ),
    "SIIM's runs of pixels": (
        text("b.csv", "ImageId, EncodedPixels\na,100 5\n"),
        {},
        "b.csv:1: no columns of boxes; found 'ImageId', 'EncodedPixels'",
    ),
    # COCO.
    "COCO with ids as text and as numbers": (
        coco_of(lambda c: [a.update(image_id=str(a["image_id"])) for a in c["annotations"]]),
        {},
        ALL,
    ),
    "CVAT's COCO of a turned box": (
        coco_of(lambda c: c["annotations"][0].update(attributes={"rotation": 90.0})),
        {},
        ALL,
    ),
    "COCO of a crowd in runs of pixels": (
        coco_of(
            lambda c: c["annotations"][0].update(
                iscrowd=1, segmentation={"counts": [5, 2], "size": [60, 80]}
            )
        ),
        {},
        ALL,
    ),
    "COCO's captions beside its boxes": (
        lambda f: (
            coco()(f),
            text("captions.json", json.dumps({"images": [], "annotations": [{"caption": "x"}]}))(f),
        ),
        {},
        ALL,
    ),
    "COCO's results": (
        text("results.json", json.dumps([{"image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 4]}])),
        {},
        "results.json is JSON of another form: export as COCO",
    ),
    "LabelMe": (
        text("images/a.json", json.dumps({"shapes": [], "imagePath": "a.png"})),
        {},
        "images/a.json is JSON of another form",
    ),
    "COCO with corners in bbox": (
        coco_of(lambda c: [a["bbox"].__setitem__(slice(2, 4), [79, 59]) for a in c["annotations"]]),
        {},
        r"do not fit their images as xywh, .*--box_form=xyxy",
    ),
    "COCO in fractions": (
        coco_of(
            lambda c: [
                a.update(bbox=[v / s for v, s in zip(a["bbox"], (80, 60, 80, 60), strict=True)])
                for a in c["annotations"]
            ]
        ),
        {},
        ALL,
    ),
    "COCO of outlines": (
        coco_of(
            lambda c: c["annotations"][0].update(bbox=[], segmentation=[[10, 20, 40, 20, 40, 50]])
        ),
        {},
        ALL,
    ),
    "COCO of an image that is not listed": (
        coco_of(lambda c: c["annotations"][0].update(image_id=99)),
        {},
        "~dangling_id",
    ),
    "COCO of a class that is not listed": (
        coco_of(lambda c: c["annotations"][0].update(category_id=9)),
        {},
        "~unknown_class",
    ),
    "COCO without categories": (coco(categories=[]), {}, "no categories in it; say --label=NAME"),
    "COCO with an id twice": (
        coco_of(lambda c: c["images"][1].update(id=0)),
        {},
        r"images\[1\]: id 0 stood there before",
    ),
    "COCO of lists that are none": (coco(images={}), {}, "images is {}; expected a list"),
    "JSON cut off": (text("coco.json", '{"images": ['), {}, r"coco.json"),
    "JSON too deep": (text("coco.json", "[" * 5000 + "]" * 5000), {}, "coco.json"),
    # XML.
    "XML with entities": (
        voc('<!DOCTYPE a [<!ENTITY b "c">]><annotation><filename>&b;</filename></annotation>'),
        {},
        "document type",
    ),
    "XML cut off": (voc("<annotation><filename>a"), {}, "not XML"),
    "VOC without size and with another name": (
        voc(
            "<annotation><filename>renamed.jpg</filename><object><name>Effusion</name><bndbox>"
            "<xmin>10</xmin><ymin>20</ymin><xmax>40</xmax><ymax>50</ymax></bndbox></object>"
            "</annotation>"
        ),
        {},
        1,
    ),
    "VOC that names the image it was copied from": (
        lambda f: (
            voc(VOC_OF_A)(f),
            voc(VOC_OF_A.replace("Effusion", "Nodule"), "b")(f),
        ),
        {},
        2,
    ),
    "VOC in Windows' letters": (
        text("a.xml", VOC_OF_A.replace("Effusion", "Ergu\xdf").encode("cp1252")),
        {},
        r"a.xml: byte \d+ is not UTF-8; save it as UTF-8",
    ),
    "VOC with a box that lacks an edge": (
        voc(
            "<annotation><object><name>E</name><bndbox><xmin>1</xmin></bndbox></object></annotation>"
        ),
        {},
        "~bad_box",
    ),
    "CVAT for video": (
        text("cvat.xml", '<annotations><track id="0" label="x"/></annotations>'),
        {},
        "CVAT for video.*CVAT for images 1.1",
    ),
    "CVAT with a turned box": (
        cvat('<box label="E" xtl="10" ytl="20" xbr="40" ybr="50" rotation="90"/>'),
        {},
        1,
    ),
    "CVAT with a turned ellipse": (
        cvat('<ellipse label="E" cx="25" cy="35" rx="15" ry="15" rotation="30.00"/>'),
        {},
        1,
    ),
    "CVAT with a flat ellipse on its side": (
        cvat('<ellipse label="E" cx="25" cy="35" rx="5" ry="15" rotation="90.00"/>'),
        {},
        1,
    ),
    "CVAT with an outline": (cvat('<polygon label="E" points="10,20;40,20;40,50"/>'), {}, 1),
    "CVAT with points": (cvat('<points label="E" points="10,20;40,20"/>'), {}, "~missing_box"),
    # YOLO.
    "YOLO without names": (yolo("0 .5 .5 .2 .2\n", None), {}, "--classes=NAME,NAME"),
    "YOLO with names said": (
        yolo("0 .5 .5 .2 .2\n", None),
        {"classes": ("Effusion",)},
        1,
    ),
    "YOLO in pixels": (yolo("0 40 30 20 20\n" * 3), {}, "numbers above 1.*--units=pixels"),
    "YOLO of an outline": (yolo("0 .125 .33333 .5 .33333 .5 .83333 .125 .83333\n"), {}, 1),
    "YOLO of a class without a name": (yolo("7 .5 .5 .2 .2\n"), {}, "~unknown_class"),
    "YOLO with words": (yolo("Effusion .5 .5 .2 .2\n"), {}, "~malformed_row"),
    "YOLO's names as a list": (
        lambda f: (yolo("1 .5 .5 .2 .2\n", None)(f), text("d.yaml", "names: ['E', \"N\"]\n")(f)),
        {},
        1,
    ),
    "YOLO's names with a comma": (
        lambda f: (
            yolo("1 .5 .5 .2 .2\n", None)(f),
            text("d.yaml", "nc: 2\nnames: ['Mass, large', \"Mass, small\"]\n")(f),
        ),
        {},
        1,
    ),
    "YOLO of poses": (
        lambda f: (
            yolo("0 .5 .5 .2 .2 .4 .4 .6 .6\n", None)(f),
            text("d.yaml", "kpt_shape: [2, 2]\nnames:\n  0: E\n")(f),
        ),
        {},
        r"d.yaml: labels of poses \(kpt_shape\)",
    ),
    "YOLO's names out of order": (
        lambda f: (yolo("1 .5 .5 .2 .2\n", None)(f), text("d.yaml", "names:\n  1: E\n")(f)),
        {},
        "number 1 where 0 was expected",
    ),
    # Label Studio.
    "Label Studio's JSON-MIN": (
        studio({"image": "a.png", "annotation_id": 1, "annotator": 1, "label": []}),
        {},
        "JSON-MIN; export as JSON",
    ),
    "Label Studio with a brush": (studio_value({}, "brushlabels"), {}, "~missing_box"),
    "Label Studio with an outline": (
        studio_value({"points": [[10, 20], [40, 20], [40, 50]]}, "polygonlabels"),
        {},
        1,
    ),
    "Label Studio with shapes and labels apart": (
        studio(apart()),
        {},
        1,
    ),
    "Label Studio with a turned ellipse": (
        studio_value(
            {"x": 50, "y": 50, "radiusX": 5, "radiusY": 30, "rotation": 90}, "ellipselabels"
        ),
        {},
        1,
    ),
    "Label Studio with a turned image": (
        studio_value({"x": 1, "y": 1, "width": 9, "height": 9}, image_rotation=90),
        {},
        "~wrong_frame",
    ),
    "Label Studio of a task that nobody did": (
        studio(samples.label_studio_task("a.png", (), annotations=[])),
        {},
        0,
    ),
    # DICOM SR.
    "SR of an image that is not here": (report([("1.2.9", "E", FIRST)]), {}, "~missing_image"),
    "SR without a finding": (report([("1.2.3.1", "", FIRST)]), {}, "~unknown_class"),
    "SR in space": (report([("1.2.3.1", "E", FIRST)], "SCOORD3D"), {}, "regions in space"),
    "SR cut off": (
        lambda f: (
            report([("1.2.3.1", "E", FIRST)])(f),
            (f / "sr.dcm").write_bytes((f / "sr.dcm").read_bytes()[:700]),
        ),
        {},
        r"sr.dcm: a damaged structured report",
    ),
    # Masks.
    "a mask of another size": (mask("Effusion/a.png", marked, (70, 70)), {}, "~mask_size"),
    "a mask of no image": (mask("Effusion/zz.png", marked), {}, "~unmatched_mask"),
    "a mask by its name": (mask("a_Effusion.png", marked), {}, 1),
    "a mask without a class": (mask("a.png", marked), {}, "--label=NAME, --classes=NAME,NAME"),
    "a mask of levels": (
        mask(
            "a.png",
            lambda p: (p.__setitem__(np.s_[5:20, 5:20], 1), p.__setitem__(np.s_[30:50, 30:50], 2)),
        ),
        {"classes": ("Effusion", "Nodule")},
        2,
    ),
    "a mask all over": (mask("Effusion/a.png", lambda p: p.fill(255)), {}, "~inverted_mask"),
    "a picture as a mask": (
        mask("a.png", lambda p: p.__setitem__(..., np.arange(WIDTH))),
        {"classes": ("E",)},
        "~not_a_mask",
    ),
    # Folders.
    "a packed export": (text("export.zip", b"PK"), {}, "export.zip is packed: unpack it first"),
    "a spreadsheet": (text("b.xlsx", b"PK"), {}, r"b.xlsx is a spreadsheet: save it as CSV"),
    "nothing at all": (lambda folder: None, {}, "no annotations found; expected files of COCO"),
    "two formats": (
        lambda folder: (samples.write_coco(folder), samples.write_csv(folder)),
        {},
        "annotations of 2 formats .*--format=NAME",
    ),
    "Windows paths": (
        table(row=lambda n, c, b: [f"C:\\data\\images\\{n}", c, *b]),
        {},
        ALL,
    ),
    "a name that climbs out": (
        text("b.csv", csv_text() + "../../etc/passwd,Effusion,1,2,3,4\n"),
        {},
        ALL + 1,  # its image is not there, which is told once it is opened
    ),
}


def test_there_are_forty_of_them():
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES)
def test_an_awkward_file_is_read_or_refused_in_one_line(tmp_path, case):
    write, said, expected = CASES[case]
    samples.draw_images(tmp_path / "images")
    write(tmp_path)
    quality = QualityLog()
    try:
        _, found = read_annotations(Folder(tmp_path), Stated(**said), quality)
    except UserError as error:
        line = str(error)
        assert "\n" not in line and len(line) < 600
        assert isinstance(expected, str) and re.search(expected, line), line
        return
    if isinstance(expected, str):
        assert [entry.reason for entry in quality.entries] == [expected.removeprefix("~")], found
    else:
        assert (len(found.boxes), quality.entries) == (expected, [])
        for one in found.boxes:
            x0, y0, x1, y1 = one.box
            assert 0 <= x0 < x1 <= WIDTH and 0 <= y0 < y1 <= HEIGHT


@pytest.mark.parametrize(
    ("case", "box"),
    [
        ("xywh by its names", FIRST),
        ("centres by their names", FIRST),
        ("fractions among names of corners", FIRST),
        ("one cell of corners", FIRST),
        ("NIH's broken header", FIRST),
        ("COCO in fractions", FIRST),
        ("decimal commas", (10.25, 20, 40, 50)),
        ("CVAT with a turned box", FIRST),
        ("CVAT's COCO of a turned box", FIRST),
        ("CVAT with a turned ellipse", FIRST),
        ("CVAT with a flat ellipse on its side", (10, 30, 40, 40)),
        ("Label Studio with shapes and labels apart", FIRST),
        ("Label Studio with a turned ellipse", (22, 26, 58, 34)),
        ("German, as Excel saves it", (10.25, 20, 40.25, 50)),
        ("German corners", FIRST),
        ("Excel's line that says what divides cells", FIRST),
        ("YOLO of an outline", FIRST),
        ("a mask by its name", FIRST),
    ],
)
def test_the_first_box_is_where_it_was_drawn(tmp_path, case, box):
    write, said, _ = CASES[case]
    samples.draw_images(tmp_path / "images")
    write(tmp_path)
    _, found = read_annotations(Folder(tmp_path), Stated(**said), QualityLog())
    assert found.boxes[0].box == pytest.approx(box, abs=0.05)


def test_a_report_without_end_is_refused(tmp_path):
    from cxrjax.border.dicom_reports import read_report
    from cxrjax.errors import ForeignError

    samples.report(tmp_path / "deep.dcm", [("1.2.3.1", "E", FIRST)])
    import pydicom

    deep = pydicom.dcmread(tmp_path / "deep.dcm")
    inner = samples.content("CONTAINER", ("1", "x"))
    for _ in range(120):
        inner = samples.content("CONTAINER", ("1", "x"), [inner])
    deep.ContentSequence = [inner]
    deep.save_as(tmp_path / "deep.dcm")
    with pytest.raises(ForeignError, match=r"floors|damaged"):
        read_report(tmp_path / "deep.dcm")
    with open(tmp_path / "deep.dcm", "ab") as file:
        file.truncate(2**25)
    with pytest.raises(ForeignError, match="more than the"):
        read_report(tmp_path / "deep.dcm")


def test_boxes_of_a_copied_file_lie_on_its_own_image(tmp_path):
    write, _, _ = CASES["VOC that names the image it was copied from"]
    samples.draw_images(tmp_path / "images")
    write(tmp_path)
    folder = Folder(tmp_path)
    _, found = read_annotations(folder, Stated(), QualityLog())
    on = {box.label: folder.image(box.image).name for box in found.boxes}
    assert on == {"Effusion": "a.png", "Nodule": "b.png"}


def test_names_with_a_comma_stay_whole(tmp_path):
    write, _, _ = CASES["YOLO's names with a comma"]
    samples.draw_images(tmp_path / "images")
    write(tmp_path)
    _, found = read_annotations(Folder(tmp_path), Stated(), QualityLog())
    assert [box.label for box in found.boxes] == ["Mass, small"]


def test_tasks_that_nobody_did_are_told(tmp_path):
    samples.draw_images(tmp_path / "images")
    cancelled = samples.label_studio_task("a.png", BOXES["a.png"])
    cancelled["annotations"][0]["was_cancelled"] = True
    studio(cancelled, samples.label_studio_task("b.png", BOXES["b.png"]))(tmp_path)
    _, found = read_annotations(Folder(tmp_path), Stated(), QualityLog())
    assert [*found.images] == ["b.png"]
    assert any("1 tasks without an annotation left out" in line for line in found.told)


def test_regions_of_ohif_and_of_ellipses(tmp_path):
    """OHIF names its tool in place of a class; an ellipse has the ends of both axes."""
    import pydicom

    samples.dicom_image(tmp_path / "x.dcm", "1.2.3.1")
    samples.report(tmp_path / "sr.dcm", [("1.2.3.1", "Mass", FIRST), ("1.2.3.1", "Mass", FIRST)])
    dataset = pydicom.dcmread(tmp_path / "sr.dcm")
    turned, unnamed = dataset.ContentSequence[0].ContentSequence
    region = turned.ContentSequence[1]
    region.GraphicType = "ELLIPSE"
    region.GraphicData = [30, 40, 50, 20, 35, 25, 45, 35]  # half axes (10, -10) and (5, 5)
    tool = samples.content("TEXT", ("112039", "Tracking Identifier"))
    tool.TextValue = "Cornerstone3DTools@^0.1.0:RectangleROI"
    unnamed.ContentSequence = [tool, unnamed.ContentSequence[1]]
    dataset.save_as(tmp_path / "sr.dcm")
    quality = QualityLog()
    _, found = read_annotations(Folder(tmp_path), Stated(), quality)
    side = 125**0.5
    box = (40 - side, 30 - side, 40 + side, 30 + side)
    assert found.boxes[0].box == pytest.approx(box)
    assert [entry.reason for entry in quality.entries] == ["unknown_class"]


def test_the_soft_edges_of_a_scaled_mask_are_no_part_of_its_box(tmp_path):
    def soft(pixels):
        pixels[9:21, 9:21] = 60
        pixels[10:20, 10:20] = 255

    samples.draw_images(tmp_path / "images")
    mask("Effusion/a.png", soft)(tmp_path)
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
    def steps(pixels):
        pixels[10:20, 10:20] = pixels[20:30, 20:30] = pixels[40:50, 60:70] = 255

    samples.draw_images(tmp_path / "images")
    mask("Effusion/a.png", steps)(tmp_path)
    _, found = read_annotations(Folder(tmp_path), Stated(), QualityLog())
    assert [one.box for one in found.boxes] == [(10, 10, 30, 30), (60, 40, 70, 50)]


def test_the_newest_annotation_of_a_task_counts(tmp_path):
    older, newer = (samples.label_studio_task("a.png", BOXES[name]) for name in ("b.png", "a.png"))
    older["annotations"][0]["updated_at"] = "2024-05-01T10:00:00Z"
    newer["annotations"][0]["updated_at"] = "2024-05-02T10:00:00Z"
    both = [newer["annotations"][0], older["annotations"][0]]
    samples.draw_images(tmp_path / "images")
    studio(newer | {"annotations": both}, older | {"annotations": both[::-1]})(tmp_path)
    _, found = read_annotations(Folder(tmp_path), Stated(), QualityLog())
    assert [one.box for one in found.boxes] == [
        pytest.approx(box, abs=0.02) for _, box in BOXES["a.png"] * 2
    ]
