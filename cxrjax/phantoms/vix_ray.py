"""A synthetic set in the release's own layout: phantoms, reports that follow from their labels.

    FOLDER/train-00000-of-00002.parquet ... val-00000-of-00001.parquet, test-...

Real about it are the columns, the Unicode and the lengths; no patient is. Every tenth row has its
texts in Unicode's decomposed form NFD, as some editors leave it. Depends on the seed and the sizes
alone, not on the number of processes; a file that is there already is not made again.
"""

import dataclasses
import functools
import io
import os
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import PIL.Image
import pyarrow
import pyarrow.parquet
import tqdm

from cxrjax.errors import UserError
from cxrjax.files import writing
from cxrjax.papers.vix_ray.native import SYNTHETIC_KEY, write_rows
from cxrjax.phantoms import render_phantom
from cxrjax.phantoms.render import SMALLEST
from cxrjax.phantoms.vix_ray_grammar import LesionCentre, load_grammar
from cxrjax.records_io import workers

# A split as the files call it -> its number, for the phantoms' seeds.
_SPLITS = {"train": 0, "val": 1, "test": 2}
_ROWS_IN_FILE = 1000
_NFD_EVERY = 10
_JPEG_QUALITY = 90
# Table 3: 69 to 70 years on average; the spread is ours.
_AGE_MEAN, _AGE_SPREAD, _AGES = 69.5, 14.0, (18, 99)
_VIEWS, _VIEW_WEIGHTS = ("PA", "AP", "LATERAL"), (80, 15, 5)


@dataclasses.dataclass(frozen=True)
class SyntheticViXRay:
    """What to make.

    Attributes:
        out: folder of the files.
        images: training rows. `validation_images`: rows of val, and of test.
        long_side: longer side of the images in pixels; None leaves each its own size.
        conspicuity, normal_percent: as of the phantoms.
        processes: worker processes.
    """

    out: Path
    images: int
    validation_images: int
    seed: int = 0
    long_side: int | None = None
    conspicuity: float = 1.0
    normal_percent: int = 10
    processes: int = 1

    def __post_init__(self) -> None:
        if self.images < 1 or self.validation_images < 1:
            raise UserError(
                f"--images={self.images} --validation_images={self.validation_images}: expected "
                "at least 1 of each"
            )
        if self.seed < 0 or self.processes < 1 or not self.conspicuity > 0:
            raise UserError(
                f"--seed={self.seed} --processes={self.processes} --conspicuity="
                f"{self.conspicuity}: expected 0 or more, at least 1, above 0"
            )
        if not 0 <= self.normal_percent <= 100:
            raise UserError(f"--normal_percent={self.normal_percent}: expected 0 to 100")
        if self.long_side is not None and self.long_side < SMALLEST:
            raise UserError(f"--long_side={self.long_side}: expected at least {SMALLEST} pixels")

    def count(self, split: str) -> int:
        """Rows of a split."""
        return self.images if split == "train" else self.validation_images

    @property
    def made_by(self) -> str:
        """What the files say of where they come from, all that decides the rows included."""
        return (
            f"v{load_grammar().version}, phantoms of seed {self.seed}, long side "
            f"{self.long_side}, conspicuity {self.conspicuity:g}, {self.normal_percent} % normal"
        )


def write_synthetic(build: SyntheticViXRay) -> None:
    """Writes the files.

    Raises:
        UserError: the folder cannot be written to, or holds other Parquet files.
    """
    files = dict(_files(build))
    with writing(build.out):
        build.out.mkdir(parents=True, exist_ok=True)
        for file in sorted(build.out.glob("*.parquet")):
            if file.name not in files:
                raise UserError(f"{file}: not of this set; choose another --out or remove it")
        total = sum(map(build.count, _SPLITS))
        with (
            workers.pool(build.processes) as apply,
            tqdm.tqdm(total=total, unit="image", desc="phantoms") as progress,
        ):
            for name, (split, indices) in files.items():
                path = build.out / name
                if not _is_made(path, build, len(indices)):
                    rows = apply(functools.partial(_row, build, split), indices)
                    # Written aside and renamed: a file is there only when it is whole.
                    aside = path.with_suffix(".tmp")
                    write_rows(aside, rows, synthetic=build.made_by)
                    os.replace(aside, path)
                progress.update(len(indices))


def _files(build: SyntheticViXRay) -> Iterator[tuple[str, tuple[str, range]]]:
    for split in _SPLITS:
        count = build.count(split)
        starts = range(0, count, _ROWS_IN_FILE)
        for number, start in enumerate(starts):
            name = f"{split}-{number:05d}-of-{len(starts):05d}.parquet"
            yield name, (split, range(start, min(start + _ROWS_IN_FILE, count)))


def _is_made(path: Path, build: SyntheticViXRay, rows: int) -> bool:
    """Whether an earlier, interrupted build left this very file."""
    if not path.is_file():
        return False
    try:
        schema = pyarrow.parquet.read_schema(path)
        count = pyarrow.parquet.read_metadata(path).num_rows
    except (OSError, pyarrow.ArrowInvalid):
        return False
    made_by = (schema.metadata or {}).get(SYNTHETIC_KEY)
    return count == rows and made_by == build.made_by.encode()


def _row(build: SyntheticViXRay, split: str, index: int) -> tuple[dict[str, Any], bytes]:
    """One row as `write_rows` takes it."""
    # Seeds of the splits never meet, whatever the build's.
    stream = len(_SPLITS) * build.seed + _SPLITS[split]
    share = build.normal_percent
    phantom = render_phantom(
        stream,
        index,
        long_side=build.long_side,
        normal=(index + 1) * share // 100 > index * share // 100,
        conspicuity=build.conspicuity,
    )
    lesions = [
        LesionCentre.of_box(label, [float(edge) for edge in box])
        for label, box in zip(phantom.labels, phantom.boxes, strict=True)
    ]
    rng = random.Random(f"{build.seed}/{split}-{index}/report")
    report = load_grammar().report(lesions, rng)
    form: Literal["NFC", "NFD"] = "NFD" if index % _NFD_EVERY == _NFD_EVERY - 1 else "NFC"
    encoded = io.BytesIO()
    PIL.Image.fromarray(phantom.image).save(encoded, "JPEG", quality=_JPEG_QUALITY)
    age = round(min(max(rng.gauss(_AGE_MEAN, _AGE_SPREAD), _AGES[0]), _AGES[1]))
    texts = {
        "findings": report.findings,
        "impressions": report.impression,
        "Ghi chú": report.note,
        "Kỹ thuật": report.technique,
    }
    texts = {name: unicodedata.normalize(form, text) for name, text in texts.items()}
    native = {
        "image": {"path": f"{split}_{index:05d}.jpg"},
        "findings": texts["findings"],
        "impressions": texts["impressions"],
        "Ages": age,
        "sex": rng.choice(("Nam", "Nữ")),
        "view": rng.choices(_VIEWS, _VIEW_WEIGHTS)[0],
        "Ghi chú": texts["Ghi chú"],
        "Kỹ thuật": texts["Kỹ thuật"],
    }
    return native, encoded.getvalue()
