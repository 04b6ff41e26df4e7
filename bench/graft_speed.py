"""Prints how fast lesions are simulated into a radiograph on one core.

`python -m bench.graft_speed --long_side=224 [--source=FOLDER]`
"""

import argparse
import time
from pathlib import Path

from cxrjax import cli
from cxrjax.records_io.quality import QualityLog
from cxrjax.simulation.lesions.build import SMALLEST, normal_images, read_pair
from cxrjax.simulation.lesions.compose import render_graft
from tests.simulation.lesions.drawn_chest import drawn_chest


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="real radiographs (default: a drawn one)")
    parser.add_argument("--long_side", type=int, default=224, help="of the drawn chest")
    parser.add_argument("--count", type=int, default=200, help="pictures")
    flags = parser.parse_args(argv)
    if flags.long_side < SMALLEST or flags.count < 1:
        parser.error(f"--long_side must be at least {SMALLEST} and --count at least 1")
    if flags.source:
        images = list(normal_images(flags.source, QualityLog()))[: flags.count]
        pairs = [read_pair(image, flags.long_side) for image in images]
    else:
        pairs = [drawn_chest(side=flags.long_side)]
    clock, processor = time.perf_counter(), time.process_time()
    for k in range(flags.count):
        render_graft(*pairs[k % len(pairs)], 0, str(k))
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    print(
        f"long_side={flags.long_side}: {flags.count / clock:.1f} images/s"
        f" ({flags.count / processor:.1f} per second of processor time)"
    )


if __name__ == "__main__":
    cli.run(main)
