"""Prints how fast phantoms are rendered, and lesions simulated into a radiograph, on one core.

`python -m bench.simulation_speed --long_side=224 [--source=FOLDER]`
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from cxrjax import cli
from cxrjax.records_io.quality import QualityLog
from cxrjax.simulation.compose import simulate_lesions
from cxrjax.simulation.lesions import SMALLEST, normal_images, read_pair
from cxrjax.simulation.render import render_phantom
from tests.simulation.rendered_chest import rendered_chest


def rates(count: int, render: Callable[[int], object]) -> tuple[float, float]:
    """Returns images a second, by the clock and by processor time.

    The two agree where nothing else runs on the core.
    """
    render(count)  # fills the caches
    clock, processor = time.perf_counter(), time.process_time()
    for index in range(count):
        render(index)
    return count / (time.perf_counter() - clock), count / (time.process_time() - processor)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="real radiographs (default: a rendered one)")
    parser.add_argument("--long_side", type=int, default=224, help="pixels")
    parser.add_argument("--count", type=int, default=200, help="images of each kind")
    flags = parser.parse_args(argv)
    if flags.long_side < SMALLEST or flags.count < 1:
        parser.error(f"--long_side must be at least {SMALLEST} and --count at least 1")
    if flags.source:
        images = list(normal_images(flags.source, QualityLog()))[: flags.count]
        pairs = [read_pair(image, flags.long_side) for image in images]
    else:
        pairs = [rendered_chest(side=flags.long_side)]
    kinds: dict[str, Callable[[int], object]] = {
        "phantoms": lambda k: render_phantom(0, k, flags.long_side),
        "abnormal phantoms": lambda k: render_phantom(0, k, flags.long_side, False),
        "lesions": lambda k: simulate_lesions(*pairs[k % len(pairs)], 0, str(k)),
    }
    for name, render in kinds.items():
        clock, processor = rates(flags.count, render)
        print(
            f"long_side={flags.long_side} {name}: {clock:.1f} images/s"
            f" ({processor:.1f} per second of processor time)"
        )


if __name__ == "__main__":
    cli.run(main)
