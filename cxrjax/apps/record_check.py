"""Checks people's own records before anything is made of them: every problem, its remedy."""

import collections
import contextlib
import dataclasses
import json
import random
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.apps.viewer import viewer_parts
from cxrjax.boxes import iou
from cxrjax.codecs import get_codec
from cxrjax.errors import ForeignError, UserError
from cxrjax.evaluation.overlays import BASE, COLOURS, TRUTH, jpeg_data_uri
from cxrjax.evaluation.text_tables import template
from cxrjax.files import replace_text, writing
from cxrjax.input_pipeline import examples
from cxrjax.input_pipeline.sources import default_image_root
from cxrjax.paper import find_paper
from cxrjax.paths import to_path
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord, read_records
from cxrjax.records_io import own_records
from cxrjax.records_io.image_check import check_images
from cxrjax.records_io.quality import QualityLog
from cxrjax.training.base_model import tokenizer_path
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.data import example_config, open_tokenizer
from cxrjax.untrusted.foreign_files import read_lines
from cxrjax.untrusted.json_text import parse_object

RESULT_FILE = "check.json"
_ANY_LENGTH = 2**20  # of a question, in tokens
# Problems that are printed; the file has all.
_PRINTED = 50
REMEDIES = {
    "bad_box": "write [x_min, y_min, x_max, y_max] in pixels, or leave the box out",
    "box_mismatch": "write the same boxes in the text and in boxes_by_image, or none in the text",
    "box_outside_image": "give the box in pixels of the image as displayed, not resized or turned",
    "box_text": "write <loc_x0_y0_x1_y1>, four whole numbers of pixels inside the image, or say "
    "with --config.data.record_codec=NAME which notation it is",
    "duplicate_id": "give every question an id of its own",
    "invalid_record": "write the field as data/README.md says",
    "missing_image": "correct image_path, or say with --image_root what it is relative to",
    "earlier_image": "show both images with --config.data.earlier_images=True",
    "not_encodable": "give the record what the prompt needs, or configure another data.prompt",
    "prefix_too_long": "shorten the question, or add a longer bucket to data.prefix_buckets",
    "answer_too_long": "shorten the answer, or add a longer bucket to data.answer_buckets",
    "size_mismatch": "give image_hw as [height, width] of the original, or leave it out",
    "split_conflict": "give every record a split and each patient one of them, or no record any",
    "too_many_boxes": "raise data.max_boxes, or divide the question",
    "wrong_frame": "multiply x by the image's width and y by its height: boxes are pixels of the "
    "original image, in boxes_by_image and in the text",
    "unknown_class": "use one of the data set's names, or dataset 'custom', which may name any",
    "unreadable_image": "replace the file by a whole PNG, JPEG or DICOM image",
}


@dataclasses.dataclass(frozen=True)
class Usable:
    """A record that the model can be given. `line.record.image_hw` is filled in."""

    line: own_records.RecordLine
    encoded: examples.EncodedQuestion


@dataclasses.dataclass(frozen=True)
class Needs:
    """Sizes that a configuration needs, so that every question fits."""

    prefix: int = 0
    answer: int = 0
    boxes: int = 0

    def with_(self, encoded: examples.EncodedQuestion) -> "Needs":
        """Returns the sizes extended to one more question."""
        return Needs(
            max(self.prefix, len(encoded.prefix)),
            max(self.answer, len(encoded.answer)),
            max(self.boxes, len(encoded.boxes)),
        )

    def settings(self, config: ExperimentConfig) -> dict[str, Any]:
        """Configuration key -> value, of those that must change for these needs."""
        found: dict[str, Any] = {}
        for name, length in (("prefix", self.prefix), ("answer", self.answer)):
            buckets = tuple(getattr(config.data, f"{name}_buckets"))
            if length > buckets[-1]:
                # One shape stays one: it is compiled once.
                kept = buckets if len(buckets) > 1 else ()
                found[f"data.{name}_buckets"] = (*kept, _rounded(length))
        if self.boxes > config.data.max_boxes:
            found["data.max_boxes"] = self.boxes
        if self.answer > config.decoding.max_answer_tokens:
            found["decoding.max_answer_tokens"] = _rounded(self.answer)
        return found


def _rounded(tokens: int) -> int:
    """A length that hardware likes."""
    return -(-tokens // 8) * 8


@dataclasses.dataclass(frozen=True)
class RecordsCheck:
    """The usable records and the problems of a file under a configuration."""

    file: Path
    encoder: examples.QuestionEncoder
    examined: int
    images: int
    problems: list[own_records.Problem]
    warnings: collections.Counter[str]  # what can be used and looks odd -> how often
    usable: list[Usable]
    needs: Needs = Needs()  # of all its questions, and of the other splits of its build


def check_file(
    source: Path,
    config: ExperimentConfig,
    out: Path,
    image_root: Path | None = None,
    processes: int = 1,
) -> RecordsCheck:
    """Reads every line, decodes every image, encodes every usable question.

    Args:
        source: records, questions, or a folder with records.jsonl.
        config: the experiment whose prompt, codec, lengths and tokenizer are used.
        out: remembers what was found of images, for the next time.

    Raises:
        UserError: the file cannot be read or has no line, or the configuration's base is not there.
    """
    file = file_of(source)
    encoder = _encoder(config)
    wide = _without_limits(encoder)
    needs = Needs()
    root = image_root or (
        to_path(config.data.image_root) if config.data.image_root else default_image_root(file)
    )
    problems: list[own_records.Problem] = []
    lines = list(
        progress_bar(
            own_records.read_own_records(file, root, problems), unit="record", desc="reading"
        )
    )
    examined = len(lines) + len({problem.where for problem in problems})
    if not examined:
        raise UserError(f"{file}: no records in it; expected JSON Lines (data/README.md)")
    quality = QualityLog()
    checks = check_images((line.image for line in lines), quality, out, processes)
    warnings = collections.Counter(quality.warnings)
    problems += [
        line.problem("split_conflict", "split", why)
        for line, why in own_records.split_problems(lines)
    ]
    usable = []
    for line in progress_bar(lines, unit="question", desc="encoding"):
        found = list(
            own_records.record_problems(line, checks[line.image], encoder.config.record_codec)
        )
        if not found:
            image_hw = own_records.original_size(line.record, checks[line.image].size())
            record = line.record.model_copy(update={"image_hw": image_hw})
            line = dataclasses.replace(line, record=record)
            encoded = _encode(line, encoder)
            of_any_length = _encode(line, wide)
            if not isinstance(of_any_length, own_records.Problem):
                needs = needs.with_(of_any_length)
            if isinstance(encoded, own_records.Problem):
                found.append(encoded)
            else:
                usable.append(Usable(line, encoded))
                warnings.update(_oddities(line, encoded))
        problems += found
    for record in _other_splits(file):
        other = _encode(own_records.RecordLine(record, "", to_path(record.image_path)), wide)
        if not isinstance(other, own_records.Problem):
            needs = needs.with_(other)
    return RecordsCheck(file, encoder, examined, len(checks), problems, warnings, usable, needs)


def file_of(source: Path) -> Path:
    """The records to check: of a folder its records.jsonl, of a build its training records."""
    file = own_records.records_file(source)
    built = source / "records" / "train.jsonl"
    return built if source.is_dir() and not file.is_file() and built.is_file() else file


def splits_of(file: Path) -> dict[str, Path]:
    """Split -> file of the build that a records file belongs to; none of a file by itself."""
    if file.parent.name != "records":
        return {}
    return {path.stem: path for path in sorted(file.parent.glob("*.jsonl"))}


def _other_splits(file: Path) -> Iterator[QARecord]:
    """Records of the other splits of the same build, which are trained or evaluated with it."""
    for path in splits_of(file).values():
        if path != file:
            yield from (record for record in read_records(path) if record.image_hw)


def _without_limits(encoder: examples.QuestionEncoder) -> examples.QuestionEncoder:
    """Returns an encoder for questions of any length, to measure the sizes that they need."""
    config = dataclasses.replace(
        encoder.config,
        prefix_buckets=(_ANY_LENGTH,),
        answer_buckets=(_ANY_LENGTH,),
        max_boxes=_ANY_LENGTH,
    )
    return examples.QuestionEncoder(encoder.tokenizer, config)


def notation_of(source: Path) -> str | None:
    """The codec in which a records file's answers write boxes, a key of `cxrjax.codecs.CODECS`.

    None where the file cannot be read, or its data sets differ in it: `check_file` says the rest.
    """
    found: set[str] = set()
    with contextlib.suppress(OSError, ForeignError):
        for _, line in read_lines(file_of(source)):
            # What is no record is told with its line.
            with contextlib.suppress(ForeignError, UserError, KeyError, TypeError):
                found.add(find_paper(parse_object(line)["dataset"]).record_codec)
    return found.pop() if len(found) == 1 else None


def _encoder(config: ExperimentConfig) -> examples.QuestionEncoder:
    tokenizer = open_tokenizer(tokenizer_path(config), config)
    return examples.QuestionEncoder(tokenizer, example_config(config))


def _encode(
    line: own_records.RecordLine, encoder: examples.QuestionEncoder
) -> examples.EncodedQuestion | own_records.Problem:
    """The question in tokens, with its answer where there is one."""
    for field in ("question", "answers") if line.record.answers else ("question",):
        try:
            encoded = encoder.encode(line.record, with_answer=field == "answers")
        except UserError as error:
            reason = error.reason if isinstance(error, examples.TooLongError) else "not_encodable"
            told = str(error).removeprefix(f"question {line.record.question_id}: ")
            return line.problem(reason, field, told)
    return encoded


def _oddities(line: own_records.RecordLine, encoded: examples.EncodedQuestion) -> list[str]:
    record = line.record
    found = []
    if not record.answers:
        found.append("questions without an answer: they can be asked, not learned or scored")
    elif record.boxes and not len(encoded.coordinate_positions):
        found.append("answers whose boxes the model does not learn: none is in the target text")
    if record.dataset == "custom" and not record.boxes:
        others = {image for answer in record.answers for image in answer.boxes_by_image}
        if others - {record.image_id, record.earlier.image_id if record.earlier else ""}:
            found.append("answers with boxes of other images than the record's, which count not")
    return found


def write_result(check: RecordsCheck, out: Path) -> None:
    """`RESULT_FILE`: counts, every problem with its remedy, and warnings."""
    content: dict[str, Any] = {
        "file": str(check.file),
        "questions": check.examined,
        "images": check.images,
        "usable": len(check.usable),
        "counts": dict(sorted(_counts(check).items())),
        "warnings": dict(sorted(check.warnings.items())),
        "needs": dataclasses.asdict(check.needs),
        "problems": [
            dataclasses.asdict(problem) | {"remedy": REMEDIES[problem.reason]}
            for problem in check.problems
        ],
    }
    with writing(out):
        text = json.dumps(content, indent=1, ensure_ascii=False)
        replace_text(out / RESULT_FILE, text + "\n")


def _counts(check: RecordsCheck) -> collections.Counter[str]:
    return collections.Counter(problem.reason for problem in check.problems)


def describe(check: RecordsCheck) -> str:
    """A line a problem (the first ones), then counts."""
    said = [
        f"{problem.where}: {problem.field}: {problem.reason}: {problem.found}\n"
        f"    -> {REMEDIES[problem.reason]}"
        for problem in check.problems[:_PRINTED]
    ]
    if len(check.problems) > _PRINTED:
        said.append(f"... and {len(check.problems) - _PRINTED:,} more in {RESULT_FILE}")
    said += [f"{count:6,} x {reason}" for reason, count in _counts(check).most_common()]
    said += [f"{count:6,} x (warning) {text}" for text, count in check.warnings.most_common()]
    said.append(
        f"{check.file}: {len(check.usable):,} of {check.examined:,} questions usable, "
        f"on {check.images:,} images"
    )
    return "\n".join(said)


def next_commands(
    check: RecordsCheck, config: ExperimentConfig, named: str, given: Sequence[str]
) -> str:
    """The settings that the data need, and the commands that train on them, the last one `train`.

    Args:
        named: the configuration's file, as flags have it.
        given: overrides that the user gave, which stay.
    """
    settings = check.needs.settings(config)
    said = []
    if settings:
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        said.append(f"the data need {told}: the command below has it")
    splits = splits_of(check.file)
    paths = {}
    if {"train", "validation"} <= set(splits):
        paths = {f"data.{split}": str(splits[split]) for split in ("train", "validation")}
    else:
        out = "runs/own/data"
        source = check.file.parent if check.file.name == own_records.FILE_NAME else check.file
        said.append(f"python -m cxrjax.build --dataset=records --source={source} --out={out}")
        paths = {
            f"data.{split}": f"{out}/records/{split}.jsonl" for split in ("train", "validation")
        }
    stands = {"data.train": config.data.train, "data.validation": config.data.validation}
    settings = {key: path for key, path in paths.items() if stands[key] != path} | settings
    codec = check.encoder.config.record_codec
    if codec != config.data.record_codec:
        settings["data.record_codec"] = codec
    words = [
        f"--config={named}",
        "--workdir=runs/own/train",
        *(word for word in given if word.partition("=")[0][9:] not in settings),
        *(f"--config.{key}={value}" for key, value in settings.items()),
    ]
    said.append(f"python -m cxrjax.train {shlex.join(words)}")
    return "\n".join(said)


PAGE_FILE = "index.html"


def write_page(check: RecordsCheck, out: Path, count: int, seed: int = 0) -> Path:
    """Writes the page of `count` usable records, drawn by `seed`, and returns its path.

    Raises:
        UserError: the folder cannot be written to.
    """
    drawn = random.Random(f"{seed}/record samples").sample(
        check.usable, min(count, len(check.usable))
    )
    html = template(str(__package__), "record_check.html.j2").render(
        check=check,
        config=check.encoder.config,
        remedies=REMEDIES,
        samples=[model_view(one, check.encoder) for one in drawn],
        truth_colour=COLOURS[TRUTH],
        token_colour=COLOURS[BASE],
        viewer=viewer_parts(),
    )
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        replace_text(out / PAGE_FILE, html)
    return out / PAGE_FILE


def model_view(usable: Usable, encoder: examples.QuestionEncoder) -> dict[str, Any]:
    """The template's view of a record: nothing of text and boxes that is not in the tokens.

    `boxes` are read from the decoded target, `record_boxes` are where the record has them; both in
    pixels of the model's input, of `input_hw`. `lowest_iou` compares them pairwise, None where
    they are not the same number.
    """
    record, encoded = usable.line.record, usable.encoded
    assert record.image_hw is not None
    height, width = record.image_hw
    config = encoder.config.on_grid_of(record.image_hw)
    geometry = examples.image_geometry(height, width, config)
    target = encoder.tokenizer.decode(encoded.answer.tolist())
    codec = get_codec(config.codec)
    decoded = geometry.apply(codec.decode(target, height, width, geometry).boxes)
    size = np.array([width, height, width, height], np.float64)
    true = geometry.apply(np.array(record.boxes, np.float64).reshape(-1, 4) / size)
    lowest = None
    if len(true) and len(true) == len(decoded):
        lowest = float(iou(decoded, true.astype(np.float32)).min())
    return {
        "record": record,
        "where": usable.line.where,
        "picture": jpeg_data_uri(
            examples.load_image(usable.line.image, config), max(config.image_hw)
        ),
        "prompt": encoder.tokenizer.decode(encoded.prefix.tolist()),
        "target": target,
        "tokens": (len(encoded.prefix), len(encoded.answer)),
        "input_hw": config.image_hw,
        "boxes": _rectangles(decoded, config.image_hw),
        "record_boxes": _rectangles(true, config.image_hw),
        "lowest_iou": lowest,
    }


def _rectangles(boxes: np.ndarray, image_hw: tuple[int, int]) -> list[dict[str, float]]:
    height, width = image_hw
    return [
        {"x": x0, "y": y0, "width": x1 - x0, "height": y1 - y0}
        for x0, y0, x1, y1 in (boxes * np.array([width, height] * 2)).round(2).tolist()
    ]
