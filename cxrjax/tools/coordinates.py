"""Measures where a model puts the coordinates of boxes: swapped corners, stray mass, errors.

    python -m cxrjax.tools.coordinates --workdir=DIR | --checkpoint=DIR --records=FILE --out=FILE

The model reads the records' true answers and says at each coordinate what comes next. FILE becomes
JSON: for `all` boxes and for those of the image's `left_half` and `right_half`, how many there are,
what share of expected boxes has swapped corners, and of x_min, y_min, x_max, y_max each how much
probability lies near the target, how far it spreads, and how far its expectation, its likeliest
value and its median lie from the target (cxrjax/training/coordinate_report.py names every key).
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.evaluation.flags import SourceFlags
from cxrjax.flags import add_options, options_of
from cxrjax.paths import in_path, out_path

# Answers may be longer than those the model was trained on; none is cut.
_LONGER = (64, 128, 256, 512)
_MAX_BOXES = 32


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("tools.coordinates", __doc__)
    add_options(parser, SourceFlags, one_of=("workdir", "checkpoint"))
    add = parser.add_argument
    add("--records", type=in_path, required=True, metavar="FILE", help="records with answers")
    add("--image_root", type=in_path, help="what image_path is relative to (data/README.md)")
    add("--images_per_batch", type=int, default=8, help="at a time (default 8)")
    add("--out", type=out_path, required=True, metavar="FILE", help="JSON to write")
    flags = parser.parse_args(argv)
    if flags.images_per_batch < 1:
        parser.error("--images_per_batch must be at least 1")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the report and prints its first part."""
    flags = parse_arguments(argv)
    from cxrjax.distributed import meshes
    from cxrjax.evaluation.systems.own_model import model_directory, open_model
    from cxrjax.input_pipeline.prompts import PROMPTS
    from cxrjax.input_pipeline.sources import RecordSource
    from cxrjax.input_pipeline.usable_records import check_records
    from cxrjax.training.coordinate_report import (
        make_coordinate_report,
        named_figures,
        swapped_share,
    )
    from cxrjax.training.observers import SWAPPED_LIMIT, swapped_line
    from cxrjax.training.workdir import write_json

    mesh = meshes.make_mesh(meshes.MeshConfig())
    folder = model_directory(options_of(flags, SourceFlags))
    opened = open_model(folder, flags.step, source=flags.source, prompt=flags.prompt, mesh=mesh)
    data = opened.config.data
    records = RecordSource(flags.records, flags.image_root, data.questions_per_image)
    left_out = set(check_records(records, data.record_codec).indices)
    if PROMPTS[data.prompt].needs_finding:
        left_out |= {at for at, name in enumerate(records.columns().findings.tolist()) if name < 0}
    if len(left_out) == records.num_records:
        raise UserError(f"{flags.records}: no record that prompt {data.prompt!r} can ask about")
    buckets = opened.examples.answer_buckets
    report = make_coordinate_report(
        records.without(left_out),
        opened.tokenizer,
        dataclasses.replace(
            opened.examples,
            answer_buckets=buckets + tuple(n for n in _LONGER if n > max(buckets)),
            max_boxes=max(_MAX_BOXES, opened.examples.max_boxes),
        ),
        images_per_batch=opened.generator.whole_batch(flags.images_per_batch),
        mesh=mesh,
    )
    if report is None:
        raise UserError(
            f"data.codec={data.codec!r}: its boxes are not read off single tokens or digits, so "
            "there are no coordinate distributions"
        )
    told = report(opened.generator.model)
    told["all"]["questions_left_out"] += len(left_out)
    write_json(flags.out, told)
    print(json.dumps(told["all"], indent=1))
    share = swapped_share(named_figures(told))
    if share is not None and share > SWAPPED_LIMIT:
        print(swapped_line(share))
    print(f"{flags.out}: all, left_half, right_half")


if __name__ == "__main__":
    cli.run(main)
