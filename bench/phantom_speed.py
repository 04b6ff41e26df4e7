"""Prints how fast phantoms are rendered on one core.

`python -m bench.phantom_speed --long_side=224`
"""

import argparse
import time

from cxrjax import cli
from cxrjax.simulation.phantoms.render import SMALLEST, render_phantom


def rendering_rate(count: int, long_side: int, normal: bool | None) -> tuple[float, float]:
    """Pictures a second over `count` pictures of one series: by the clock, by processor time.

    The two agree where nothing else runs on the core.
    """
    render_phantom(0, count, long_side, normal)  # fills the caches
    clock, processor = time.perf_counter(), time.process_time()
    for index in range(count):
        render_phantom(0, index, long_side, normal)
    return count / (time.perf_counter() - clock), count / (time.process_time() - processor)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long_side", type=int, default=224, help="pixels, at least 64")
    parser.add_argument("--count", type=int, default=200, help="pictures to render")
    flags = parser.parse_args(argv)
    if flags.long_side < SMALLEST or flags.count < 1:
        parser.error(f"--long_side must be at least {SMALLEST} and --count at least 1")
    for name, normal in (("mixed", None), ("abnormal", False)):
        clock, processor = rendering_rate(flags.count, flags.long_side, normal)
        print(
            f"long_side={flags.long_side} {name}: {clock:.1f} images/s"
            f" ({processor:.1f} per second of processor time)"
        )


if __name__ == "__main__":
    cli.run(main)
