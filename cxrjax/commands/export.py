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
    from cxrjax.apps.annotations.export import boxed_images, export_boxes
    from cxrjax.files import read_json_lines
    from cxrjax.records import read_records
    from cxrjax.records_io.builder import records_files

    files = records_files(flags.records) if flags.records.is_dir() else [flags.records]
    predictions = None
    if flags.predictions:
        lines = read_json_lines(flags.predictions, "predictions", "expected lines of `predict`")
        predictions = {str(line.get("question_id")): line for _, line in lines}
    images, left_out = boxed_images(
        (record for file in files for record in read_records(file)), predictions
    )
    print(export_boxes(images, flags.to, flags.out))
    if left_out:
        print(f"{left_out:,} boxes left out: their answers name several classes for all of them")
