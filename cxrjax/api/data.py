"""Data in, records out, and out again: builds, imports, checks, exports, reviews."""

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_type_hints

import pydantic

from cxrjax.api.builds import Build
from cxrjax.choices import BoxFormat
from cxrjax.errors import UserError
from cxrjax.paths import AnyPath, to_path
from cxrjax.records import QARecord
from cxrjax.records import read_records as _read_records

if TYPE_CHECKING:
    from cxrjax.apps.annotations.coordinates import Form
    from cxrjax.apps.record_check import RecordsCheck
    from cxrjax.records_io.builder import Builder
    from cxrjax.training.config import ExperimentConfig

DEFAULT_CONFIG = "configs/records_lora.py"


class ImportOptions(TypedDict, total=False):
    """Options of `import_boxes`; `cxrjax.apps.annotations.options.BoxesOptions` explains each."""

    format: str
    images: AnyPath | None
    columns: str
    box_form: "Form | None"
    units: Literal["pixels", "fractions", "percent", "thousandths"] | None
    label: str
    classes: str
    patient: str
    readers: str
    split: Literal["keep", "again"]
    predictions_as_labels: float | None
    negatives: Literal["balanced", "none"]
    unlisted: Literal["skip", "negative"]
    accept: bool
    seed: int
    processes: int
    strict: bool


def import_boxes(
    source: AnyPath, out: AnyPath = "runs/own/data", **options: Unpack[ImportOptions]
) -> Build:
    """Imports images and boxes from any annotation tool as records, as `cxrjax import` does.

    Args:
        source: folder with images and annotations, one file of annotations, or a zip.
        out: folder to write, with the page look/index.html of what was read.
        options: what the files leave open, such as columns="image=file,label=finding"; `accept`
            writes in spite of doubts, after somebody has inspected the page.

    Raises:
        UserError: nothing can be used, something is doubtful and `accept` is not set, or there is
            no such option.
    """
    return build("boxes", out, {"source": source, **options})


def build(dataset: str, out: AnyPath, options: Mapping[str, object] | None = None) -> Build:
    """Builds a data set: records by split, statistics, rejected records, hashes.

    Args:
        dataset: such as "phantom" or "lungs"; `cxrjax build --help` lists them.
        out: folder to write.
        options: name -> value of the data set's flags, such as {"source": "train.csv", "seed": 1};
            `cxrjax build --dataset=NAME --help` lists them.

    Raises:
        UserError: no such data set or option, or the source cannot be used.
    """
    from cxrjax.paper import find_paper
    from cxrjax.records_io import build_flags

    paper = find_paper(dataset)
    if not paper.builder:
        raise UserError(f"{dataset}: a data set that nothing is built of")
    builder = paper.part("builder")
    values = {"out": out, **(options or {})}
    known = build_flags.flags_of(builder.options_class)
    for name in values.keys() - known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
        raise UserError(f"{dataset}: no option {name!r}; the nearest is {near!r}")
    return run_builder(builder(_options(dataset, builder.options_class, values)))


def _options(dataset: str, kind: type[Any], values: Mapping[str, object]) -> Any:
    """Options of a data set, each value checked against its field's type."""
    hints, given = get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        nested, name = field.default_factory, field.name
        if isinstance(nested, type):
            given[name] = _options(dataset, nested, values)
        elif name in values:
            given[name] = _checked(f"{dataset}: option {name!r}", hints[name], values[name])
        elif field.default is nested is dataclasses.MISSING:
            raise UserError(f"{dataset}: option {name!r} is missing")
    return kind(**given)


def _checked(where: str, hint: Any, value: object) -> Any:
    if isinstance(value, os.PathLike) or (isinstance(value, str) and "Path" in str(hint)):
        return to_path(value)
    try:
        return pydantic.TypeAdapter(hint).validate_python(value)
    except pydantic.ValidationError as error:
        told = error.errors()[0]["msg"].lower()
        raise UserError(f"{where}: found {value!r}; {told}") from None


def run_builder(builder: "Builder[Any]") -> Build:
    """Builds by a data set's builder, with its folder locked, and prints where it is."""
    from cxrjax.lock import folder_lock

    estimate = builder.estimate()
    if estimate is None:
        with folder_lock(builder.options.out):
            estimate = builder.build()
    print(estimate)
    return Build(builder.options.out)


def check(
    source: AnyPath,
    config: "str | ExperimentConfig | None" = None,
    overrides: Mapping[str, object] | Sequence[str] = (),
    *,
    out: AnyPath = "runs/check_records",
    mixture_source: str | None = None,
    image_root: AnyPath | None = None,
    samples: int = 20,
    seed: int = 0,
    processes: int = 1,
) -> "RecordsCheck":
    """Checks records and images as a model would read them; prints every problem with its remedy.

    Args:
        source: records or questions file, a folder with records.jsonl, or a build.
        config: FILE.py[:VARIANT] or a configuration whose prompt, tokenizer and lengths are used;
            None: configs/records_lora.py, with the box format of the records.
        overrides: key -> value, such as {"data.prompt": "vqa"}, or words as on the command line.
        out: receives check.json and index.html, the page of samples.
        mixture_source: of a configuration that mixes several, the one of these records.
        image_root: folder that image_path is relative to.
        samples: number of records on the page.
        seed: chooses them.
        processes: workers for images; above 1 a script needs `if __name__ == "__main__":`.

    Returns:
        The check: `problems`, `warnings`, `usable` records, `needs` (lengths in tokens).

    Raises:
        UserError: the file or the configuration cannot be read.
    """
    from cxrjax.apps import record_check
    from cxrjax.training.config_file import load_config, override_words

    source, out, overrides = to_path(source), to_path(out), override_words(overrides)
    named = DEFAULT_CONFIG if config is None else config
    loaded = load_config(named, overrides) if isinstance(named, str) else named
    if loaded.mixture.sources and not mixture_source:
        raise UserError(
            f"{config}: a mixture; name the source of these records (--source=NAME, from Python "
            f"mixture_source=NAME), one of {', '.join(loaded.mixture.sources)}"
        )
    if mixture_source:
        loaded = loaded.of_source(mixture_source)
    used, codec = loaded, loaded.data.record_codec
    if config is None and not any(w.startswith("--config.data.record_codec=") for w in overrides):
        codec = record_check.notation_of(source) or codec
        used = dataclasses.replace(
            loaded, data=dataclasses.replace(loaded.data, record_codec=codec)
        )
    found = record_check.check_file(
        source,
        used,
        out,
        image_root=None if image_root is None else to_path(image_root),
        processes=processes,
    )
    record_check.write_result(found, out)
    page = record_check.write_page(found, out, samples, seed)
    if codec != loaded.data.record_codec:
        print(
            f"boxes in answers were read as {codec} writes them: a configuration that trains "
            f"on these records says data.record_codec={codec!r}"
        )
    print(record_check.describe(found), page, sep="\n")
    if found.needs.answer and not mixture_source and isinstance(named, str):
        print(record_check.next_commands(found, loaded, named, overrides))
    return found


def export(
    records: AnyPath | Iterable[QARecord],
    to: Literal["coco", "cvat", "label_studio", "yolo"],
    out: AnyPath,
    *,
    predictions: AnyPath | Iterable[Mapping[str, Any]] | None = None,
) -> str:
    """Writes boxes as files of an annotation tool. Images are named, not copied.

    Args:
        records: a records file, a build (all splits), or records.
        to: the tool that reads the files.
        out: folder to write.
        predictions: answers of `predict` to the records, whose boxes are written instead: a file,
            or lines.

    Returns:
        Counts of images and boxes, and of what is left out.

    Raises:
        UserError: no such tool, or files that cannot be read or written.
    """
    from cxrjax.apps.annotations.export import TOOLS, boxed_images, export_boxes
    from cxrjax.evaluation.predictions import parse_prediction, read_predictions
    from cxrjax.records_io.builder import records_files

    if to not in TOOLS:
        raise UserError(f"{to!r}: no such tool; expected one of {', '.join(TOOLS)}")
    if isinstance(records, str | os.PathLike):
        place = to_path(records)
        files = records_files(place) if place.is_dir() else [place]
        records = (record for file in files for record in _read_records(file))
    if isinstance(predictions, str | os.PathLike):
        lines = read_predictions(to_path(predictions))
    elif predictions is not None:
        lines = [parse_prediction(one, f"[{n}]") for n, one in enumerate(predictions)]
    images, left_out = boxed_images(records, None if predictions is None else lines)
    return export_boxes(images, to, to_path(out), left_out)


def review(
    records: AnyPath,
    out: AnyPath,
    *,
    predictions: AnyPath | None = None,
    sample: int | None = None,
    seed: int = 0,
    image_root: AnyPath | None = None,
    box_format: BoxFormat | str = "paligemma",
    corrected: AnyPath | None = None,
) -> Path:
    """Writes a page for people to review answers, or takes their corrections over.

    Args:
        records: a records file, or a build.
        out: receives index.html, to fill in beside the images, and sheet.csv, the same as a table.
        predictions: a model's answers to the records, reviewed in their place, the least certain
            first.
        sample: number of questions; None: at most 100.
        seed: chooses them.
        image_root: folder that image_path is relative to.
        box_format: of the predictions.
        corrected: folder for the whole set with the corrections of the review in `out`, which must
            have been made with the same arguments; None: write the page.

    Returns:
        The page, or `corrected`.

    Raises:
        UserError: the records cannot be read, or nothing is reviewed yet.
    """
    from cxrjax.apps.review.flags import ReviewFlags
    from cxrjax.apps.review.quality_control import draw_sample, export_review

    asked = ReviewFlags(
        records=[to_path(records)],
        out=to_path(out),
        predictions=[to_path(predictions)] if predictions else (),
        sample=sample,
        seed=seed,
        image_root=to_path(image_root) if image_root else None,
        codec=BoxFormat(box_format).value,
        export=to_path(corrected) if corrected else None,
    )
    if asked.export is not None:
        export_review(asked, asked.export)
        return asked.export
    draw_sample(asked)
    return asked.out / "index.html"
