"""Synthetic set in ViX-Ray's own layout: phantoms, and reports that follow from their labels.

    FOLDER/train-00000-of-00002.parquet ... val-00000-of-00001.parquet, test-...

Columns, Unicode and lengths are as in the release; no patient is. A report states in Vietnamese, in
sentences of our own grammar, which classes the phantom shows, on which side and how high; only the
wording is random. Every tenth row has its texts in Unicode's decomposed form NFD, as some editors
leave it. The rows depend on the seed and the sizes only, not on the number of processes; files that
exist already are not made again.
"""

import dataclasses
import functools
import random
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cxrjax.errors import UserError
from cxrjax.files import read_packaged, writing
from cxrjax.papers.vix_ray.build import VixRayBuilder, VixRayOptions
from cxrjax.papers.vix_ray.native import SYNTHETIC_KEY, write_rows
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord
from cxrjax.records_io import workers
from cxrjax.simulation.builder import to_jpeg
from cxrjax.simulation.phantoms import RenderOptions

# The patient's right is on the image's left.
_MIDDLE = 0.5
_ZONES = (("upper", 0.40), ("middle", 0.62), ("lower", 1.01))
# A normal structure is mentioned with a probability that is sampled for each report, so that some
# are terse: Table 3 has 19 to 104 words of findings, 46 on average.
_MENTIONED = (0.0, 0.5)
_SENTENCES = 4  # at least, of findings
_DIAGNOSES = 3  # at most, of an impression
_ADVISED = 0.2
# A split as the files call it -> its number, for the phantoms' seeds.
_SPLITS = {"train": 0, "val": 1, "test": 2}
_ROWS_IN_FILE = 1000
_NFD_EVERY = 10
_JPEG_QUALITY = 90
# Table 3: 69 to 70 years on average; the spread is ours.
_AGE_MEAN, _AGE_SPREAD, _AGES = 69.5, 14.0, (18, 99)
_VIEWS, _VIEW_WEIGHTS = ("PA", "AP"), (84, 16)  # every phantom is frontal


@dataclasses.dataclass(frozen=True)
class SyntheticVixRayOptions(RenderOptions):
    """Flags of phantoms with ViX-Ray's reports; `validation_images` of val, and of test.

    Attributes:
        segmenter, split_manifest: as of vix_ray.
    """

    segmenter: str = "pyvi"
    split_manifest: Path | None = None

    @property
    def made_by(self) -> str:
        """Returns the files' statement of their origin: all that decides the rows."""
        return (
            f"v{grammar()['version']}, phantoms of seed {self.seed}, long side "
            f"{self.long_side}, conspicuity {self.conspicuity:g}, {self.normal_percent} % normal"
        )


class SyntheticVixRayBuilder(VixRayBuilder):
    """Writes the release's layout in OUT/native, and reads it as `vix_ray` does."""

    options_class = SyntheticVixRayOptions

    def __init__(self, options: SyntheticVixRayOptions) -> None:
        native = options.out / "native"
        fields = {f.name for f in dataclasses.fields(VixRayOptions)} - {"source"}
        same = {name: getattr(options, name) for name in fields if hasattr(options, name)}
        super().__init__(VixRayOptions(native, **same))
        self.synthetic = dataclasses.replace(options, out=native)

    def read(self) -> Mapping[str, Iterable[QARecord]]:
        write_synthetic(self.synthetic)
        return super().read()


def write_synthetic(options: SyntheticVixRayOptions) -> None:
    """Writes the files.

    Raises:
        UserError: the folder cannot be written to, or holds other Parquet files.
    """
    files = dict(_files(options))
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        for file in sorted(options.out.glob("*.parquet")):
            if file.name not in files:
                raise UserError(f"{file}: not of this set; choose another --out or remove it")
        total = sum(map(options.count, _SPLITS))
        with (
            workers.pool(options.processes) as apply,
            progress_bar(total=total, unit="image", desc="phantoms") as progress,
        ):
            for name, (split, indices) in files.items():
                path = options.out / name
                if not _is_made(path, options, len(indices)):
                    rows = apply(functools.partial(_row, options, split), indices)
                    # Renamed when it is complete.
                    partial = path.with_suffix(".tmp")
                    write_rows(partial, rows, synthetic=options.made_by)
                    partial.replace(path)
                progress.update(len(indices))


def _files(options: SyntheticVixRayOptions) -> Iterator[tuple[str, tuple[str, range]]]:
    for split in _SPLITS:
        count = options.count(split)
        starts = range(0, count, _ROWS_IN_FILE)
        for number, start in enumerate(starts):
            name = f"{split}-{number:05d}-of-{len(starts):05d}.parquet"
            yield name, (split, range(start, min(start + _ROWS_IN_FILE, count)))


def _is_made(path: Path, options: SyntheticVixRayOptions, rows: int) -> bool:
    """Checks if an interrupted build left this very file."""
    import pyarrow.parquet

    if not path.is_file():
        return False
    try:
        found = pyarrow.parquet.read_metadata(path)
    except (OSError, pyarrow.ArrowInvalid):
        return False
    made_by = (found.metadata or {}).get(SYNTHETIC_KEY)
    return found.num_rows == rows and made_by == options.made_by.encode()


def _row(options: SyntheticVixRayOptions, split: str, index: int) -> tuple[dict[str, Any], bytes]:
    """Returns one row as `write_rows` expects it."""
    # Seeds of the splits never meet, whatever the build's.
    stream = len(_SPLITS) * options.seed + _SPLITS[split]
    phantom = options.render(stream, index)
    lesions = [
        LesionCentre(label, (x0 + x1) / 2, (y0 + y1) / 2)
        for label, (x0, y0, x1, y1) in zip(phantom.labels, phantom.boxes.tolist(), strict=True)
    ]
    rng = random.Random(f"{options.seed}/{split}-{index}/report")
    view = rng.choices(_VIEWS, _VIEW_WEIGHTS)[0]
    report = word_report(lesions, rng, view)
    form: Literal["NFC", "NFD"] = "NFD" if index % _NFD_EVERY == _NFD_EVERY - 1 else "NFC"
    age = round(min(max(rng.gauss(_AGE_MEAN, _AGE_SPREAD), _AGES[0]), _AGES[1]))
    texts = [unicodedata.normalize(form, text) for text in report]
    native = {
        "image": {"path": f"{split}_{index:05d}.jpg"},
        **dict(zip(("findings", "impressions"), texts[:2], strict=True)),
        "Ages": age,
        "sex": rng.choice(("Nam", "Nữ")),
        "view": view,
        **dict(zip(("Ghi chú", "Kỹ thuật"), texts[2:], strict=True)),
    }
    return native, to_jpeg(phantom.image, _JPEG_QUALITY)


class LesionCentre(NamedTuple):
    """A class and the centre of its box, fractions of the image."""

    label: str
    x: float
    y: float


class VixRayReport(NamedTuple):
    """Texts of one synthetic study."""

    findings: str
    impression: str
    note: str
    technique: str


def grammar() -> dict[str, Any]:
    """Reads the sentences."""
    return read_packaged("cxrjax.simulation", "vix_ray_grammar.json")


def word_report(
    lesions: Sequence[LesionCentre], rng: random.Random, view: str = "PA"
) -> VixRayReport:
    """Words findings with every class of the lesions, and the weightiest diagnoses."""
    words = grammar()
    by_label: dict[str, list[LesionCentre]] = {}
    for lesion in lesions:
        by_label.setdefault(lesion.label, []).append(lesion)
    findings = [
        _say(rng.choice(words["present"][label]), found) for label, found in by_label.items()
    ]
    chance = rng.uniform(*_MENTIONED)
    topics = [t for t in words["normal"].values() if not by_label.keys() & set(t["unless"])]
    rng.shuffle(topics)
    for topic in topics:
        if len(findings) < _SENTENCES or rng.random() < chance:
            findings.append(rng.choice(topic["sentences"]))
    rng.shuffle(findings)
    if rng.random() < chance:
        findings.insert(0, rng.choice(words["openings"]))
    # The file has the classes in order of weight.
    weighty = [label for label in words["impression"] if label in by_label][:_DIAGNOSES]
    impression = [
        _say(rng.choice(words["impression"][label]), by_label[label]) for label in weighty
    ] or [rng.choice(words["normal_impression"])]
    advice = [text for text, classes in words["advice"].items() if {*weighty} & {*classes}]
    if advice and rng.random() < _ADVISED:
        impression.append(rng.choice(advice))
    return VixRayReport(
        " ".join(findings),
        ". ".join(impression) + ".",
        rng.choice(words["notes"]),
        rng.choice(words["techniques"][view]),
    )


def _say(wording: str, lesions: Sequence[LesionCentre]) -> str:
    sides = {"right" if lesion.x < _MIDDLE else "left" for lesion in lesions}
    side = grammar()["sides"][sides.pop() if len(sides) == 1 else "both"]
    zones = {next(name for name, end in _ZONES if lesion.y < end) for lesion in lesions}
    place = grammar()["zones"][zones.pop() if len(zones) == 1 else "any"]
    return wording.format(side=side, place=place.format(side=side))
