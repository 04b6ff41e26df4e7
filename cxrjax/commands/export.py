"""Writes records or predictions as files of annotation tools.

    cxrjax export --records=FILE --to=coco --out=DIR [--predictions=FILE]

FILE is a records file (of a build, or the corrected ones of `review --export`) or the folder of a
build. With --predictions the boxes of these answers are written in place of the records' own.
Images are named, not copied: `cxrjax import DIR --images=FOLDER` reads the same boxes again.
"""

from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.paths import in_path, out_path


def main(argv: Sequence[str] | None = None) -> None:
    """Exports what the flags request and prints counts."""
    parser = command_parser("export", __doc__)
    add = parser.add_argument
    add(
        "--records",
        type=in_path,
        required=True,
        metavar="FILE",
        help="records, or a build's folder",
    )
    add("--predictions", type=in_path, metavar="FILE", help="answers of `predict` to the records")
    tools = ("coco", "cvat", "label_studio", "yolo")
    add("--to", choices=tools, required=True, help="the tool that is to read them")
    add("--out", type=out_path, required=True, metavar="DIR", help="folder to write")
    flags = parser.parse_args(argv)
    from cxrjax.api.data import export  # --help stays quick

    print(export(flags.records, flags.to, flags.out, predictions=flags.predictions))
