"""Makes records of images and boxes from any annotation tool: `cxrjax import FOLDER`.

    cxrjax import FOLDER [--out=runs/own/data] [flags of build --dataset=boxes]

FOLDER holds images and the export of a tool (COCO, Pascal VOC, YOLO, CVAT, Label Studio,
VIA, LabelMe, Supervisely, SuperAnnotate, VoTT, Prodigy, Scale, FiftyOne, MD.ai, V7, Labelbox,
Encord, Datumaro, CreateML, SageMaker, KITTI, DOTA, any JSON of images and boxes), a data set
(ChestX-Det, PadChest-GR, CheXlocalize), chats with boxes, a CSV table, DICOM structured reports or
segmentation masks; it may be a zip, or `hf://datasets/OWNER/NAME`. It is
`python -m cxrjax.build --dataset=boxes`.
OUT/look/index.html shows what was read before records are written.
"""

import sys
from collections.abc import Sequence

DEFAULT_OUT = "runs/own/data"


def main(argv: Sequence[str] | None = None) -> None:
    """Builds what the flags ask for and says what to do next."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-"):
        words[0] = f"--source={words[0]}"
    if {"-h", "--help"} & {*words}:
        print(f"usage: cxrjax import FOLDER [OPTIONS]\n\n{__doc__}", flush=True)
        from cxrjax.apps.annotations.options import BoxesOptions
        from cxrjax.records_io.build_flags import parse

        parse(BoxesOptions, "cxrjax import", ["--help"], "")
    given = [word.partition("=")[2] for word in words if word.startswith("--out=")]
    if not given and "--out" not in words:
        words.append(f"--out={DEFAULT_OUT}")
        given = [DEFAULT_OUT]
    from cxrjax.commands import build  # --help stays quick

    build.main(["--dataset=boxes", *words])
    if given:
        print(f"next: python -m cxrjax.check_records {given[0]} --out=runs/own/check")
