"""Prints how fast phantoms are rendered on one core.

`python -m cxrjax.datasets.phantom.benchmark --long_side=224`
"""

import argparse
import sys
import time

from cxrjax.datasets.phantom.render import render_phantom


def rendering_rate(count: int, long_side: int | None, normal: bool | None) -> float:
    """Pictures a second over `count` pictures of one series."""
    render_phantom(0, count, long_side, normal)  # imports and caches
    start = time.perf_counter()
    for index in range(count):
        render_phantom(0, index, long_side, normal)
    return count / (time.perf_counter() - start)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmark")
    parser.add_argument("--long_side", type=int, default=224)
    parser.add_argument("--count", type=int, default=200, help="pictures to render")
    flags = parser.parse_args(argv)
    for name, normal in (("mixed", None), ("abnormal", False)):
        rate = rendering_rate(flags.count, flags.long_side, normal)
        print(f"{name}: {rate:.1f} images/s at long_side {flags.long_side}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
