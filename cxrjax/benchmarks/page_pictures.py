"""The page's pictures and the files beside it."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cxrjax.benchmarks.overlays import jpeg, jpeg_data_uri
from cxrjax.benchmarks.page_cases import Case
from cxrjax.benchmarks.page_data import script_json
from cxrjax.images import read_image

# With more images than this, pictures and texts stand in a folder beside the page.
MOST_IN_ONE_FILE = 300
FOLDER = "index_files"
# How pictures come to the page; `auto` is `file` or `folder`, by their number.
PICTURES = ("auto", "file", "folder", "none")
_THREADS = 2

# A case's picture: its address on the page (None without one), and its height by its width.
Picture = tuple[str | None, float]


def no_pictures(cases: Sequence[Case]) -> Iterator[Picture]:
    """Boxes are drawn on a blank of the image's shape."""
    for case in cases:
        height, width = case.image_hw or (1, 1)
        yield None, height / width


def inline_pictures(cases: Sequence[Case], image_root: Path) -> Iterator[Picture]:
    """Pictures as `data:` addresses.

    Raises:
        UserError: an image that cannot be read.
    """

    def shrink(case: Case) -> Picture:
        image = read_image(image_root / case.image_path)
        return jpeg_data_uri(image), image.shape[0] / image.shape[1]

    return _in_threads(shrink, cases)


def picture_files(cases: Sequence[Case], image_root: Path, folder: Path) -> Iterator[Picture]:
    """Pictures as files in `folder`, called by their numbers.

    Raises:
        UserError: an image that cannot be read.
    """
    numbers = {case.image_id: number for number, case in enumerate(cases)}

    def write(case: Case) -> Picture:
        image = read_image(image_root / case.image_path)
        path = folder / f"image-{numbers[case.image_id]}.jpg"
        path.write_bytes(jpeg(image, long_side=768))
        return f"{folder.name}/{path.name}", image.shape[0] / image.shape[1]

    return _in_threads(write, cases)


def empty_folder(out_dir: Path, wanted: bool) -> Path:
    """The folder beside the page, without what an earlier page left in it; gone if not wanted."""
    folder = out_dir / FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    if wanted:
        folder.mkdir(parents=True)
    return folder


def write_part(folder: Path, number: int, content: Any) -> None:
    """A part as a script: a page that is opened from a disk may read scripts and nothing else."""
    text = f"cxrjaxPart({number}, {script_json(content)});\n"
    (folder / f"part-{number}.js").write_text(text, encoding="utf-8")


def _in_threads(make: Callable[[Case], Picture], cases: Sequence[Case]) -> Iterator[Picture]:
    """In order. Decoding leaves Python's lock to others; few at a time are in memory."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(cases), 4 * _THREADS):
            yield from pool.map(make, cases[start : start + 4 * _THREADS])
