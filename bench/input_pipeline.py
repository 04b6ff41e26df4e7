"""Reading images beside torch's DataLoader with the Hugging Face processor, in one run.

    make bench_input
    python -m bench.input_pipeline [--rounds 5] [--images 24] [--data DIR] [--sources jpeg]

Grey and colour JPEG 1024 x 1024 (a grey picture in three channels), DICOM 2048 x 2048 of 12 bits
uncompressed with a window, and the grey JPEG out of ArrayRecord; decoded, shown in 8 bits, resized
to the model's size, normalised and batched by 8. What each side is: `input_side.py`; `ours_once` is
ours with `data.jpeg_decoding='once'`, `ours_kept` from the second epoch on with `data.image_cache`.

Figures are images per second of processor time, that is of one core whatever else the machine does:
the median over rounds that alternate between the sides, after one that is not counted. The sides'
pictures of the same file are compared first, in 256 levels. The backend torchvision is measured
where it is installed.
"""

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from bench import input_data
from bench.process import Worker

SIZES = (224, 448)
SOURCES = (*input_data.KINDS, "array_record")


def compare(sides: dict[str, Worker], source: str, size: int, rounds: int, batches: int) -> str:
    """A line of the table: images per second of each side, and by how much ours is faster."""
    asked = {"source": source, "size": size}
    for side in sides.values():
        side.ask(json.dumps(asked | {"batches": 2}))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seconds[name].append(side.ask(json.dumps(asked | {"batches": batches}))["cpu"])
    rates = {name: 1 / median(values) for name, values in seconds.items()}
    best = max(rate for name, rate in rates.items() if not name.startswith("ours"))
    cells = [f"{rate:,.0f}" for rate in rates.values()]
    cells += [f"{rate / best:.2f}" for name, rate in rates.items() if name.startswith("ours")]
    return f"| {source} | {size} | {' | '.join(cells)} |"


def difference(sides: dict[str, Worker], file: Path, size: int) -> str:
    """Mean and largest difference of the sides' pictures of a file from ours, in 256 levels."""
    request = json.dumps({"file": str(file), "size": size})
    found = {name: np.array(side.ask(request)["picture"]) * 127.5 for name, side in sides.items()}
    apart = {name: np.abs(picture - found["ours"]) for name, picture in found.items()}
    told = (f"{n} {a.mean():.2f} ({a.max():.0f})" for n, a in apart.items() if n != "ours")
    return (
        f"{file.parent.parent.name} {size}: mean (largest) difference of levels: {', '.join(told)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=24, help="files of each kind")
    parser.add_argument("--data", type=Path, help="keep the files there")
    parser.add_argument("--sources", nargs="+", default=SOURCES, choices=SOURCES)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = flags.data or Path(directory)
        input_data.make(data, flags.images)
        names = ["ours", "ours_once", "ours_kept", "pil"]
        if importlib.util.find_spec("torchvision"):
            names.append("torchvision")
        sides = {name: Worker("input_side.py", name, data) for name in names}
        for kind in input_data.KINDS:
            file = sorted((data / kind / "images").iterdir())[0]
            for size in SIZES:
                print(difference(sides, file, size), flush=True)
        ratios = [f"{name} / fastest of theirs" for name in names if name.startswith("ours")]
        print(f"| images/s of a core | pixels | {' | '.join([*sides, *ratios])} |")
        print(f"|---|---|{'---|' * (len(sides) + len(ratios))}")
        for source in flags.sources:
            for size in SIZES:
                line = compare(sides, source, size, flags.rounds, flags.images // 8)
                print(line, flush=True)
        for side in sides.values():
            side.close()


if __name__ == "__main__":
    main()
