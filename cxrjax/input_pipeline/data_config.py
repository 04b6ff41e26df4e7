"""The groups `data` and `mixture` of a configuration: which records, and as what they are asked."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from cxrjax.input_pipeline.augment import AugmentConfig
from cxrjax.paths import ROOM, is_address
from cxrjax.settings import STRICT, NotNegative, Positive, PositiveFloat, Share


def _without_dots(name: str) -> str:
    if not name or "." in name:
        raise ValueError("expected a name without dots")
    return name


def _room(text: str) -> str:
    if not ROOM.fullmatch(text) or is_address(text):
        raise ValueError("expected a local folder and a size, such as DIR,50GB")
    return text


SourceName = Annotated[str, AfterValidator(_without_dots)]


@dataclass(frozen=True, config=STRICT)
class DataConfig:
    """The group `data`."""

    train: str | None = None  # records file (JSON Lines) to train on
    validation: str | None = None  # records file that evaluations during training use
    # Evaluate on questions, images or patients that are trained on: figures then tell nothing of
    # what was learned.
    allow_overlap: bool = False
    image_root: str | None = None  # what image_path is relative to; null: see data/README.md
    codec: str = "paligemma"  # a name in cxrjax.codecs.CODECS: how the model writes boxes
    record_codec: str = "vindr_px"  # the same table: how the records' answers have them written
    # Train on questions about these findings alone; empty: on all questions.
    findings: tuple[str, ...] = ()
    # Of a folder of shards, the questions whose table says so: ("grade=A++|A+|A", "view=PA|AP").
    select: tuple[str, ...] = ()
    prompt: str = "vqa"  # a name in cxrjax.input_pipeline.prompts.PROMPTS
    # 'resize' (aspect ratio is lost) or 'letterbox'.
    geometry: Literal["resize", "letterbox"] = "resize"
    # JPEGs are decoded at 1/2, 1/4 or 1/8 of their size where that leaves 'twice' the input on each
    # side, or 'once', which is faster; pixels are then off by 0.8 of 256 levels in the mean.
    jpeg_decoding: Literal["twice", "once"] = "twice"
    questions_per_image: Positive = 1  # question slots of an image in one sequence
    # Question lengths that batches are padded up to, in tokens.
    prefix_buckets: tuple[int, ...] = (64,)
    answer_buckets: tuple[int, ...] = (64,)  # answer lengths, the same
    # Batches of answers of like length, so that few are padded far; not of shards or several grids.
    like_lengths: bool = False
    # With share='image', compute on so many text tokens an image instead of on padded slots: the
    # smallest that holds a batch's longest image is taken, else the padded slots. Empty: never.
    packed_buckets: tuple[int, ...] = ()
    # Show two images where a question compares with an earlier one: each sequence then has room for
    # two. False: such questions are left out and counted.
    earlier_images: bool = False
    max_boxes: Positive = 8  # boxes of one answer that the box loss can hold
    # A question that fits no bucket: 'error', or 'set_aside' and counted.
    too_long: Literal["error", "set_aside"] = "error"
    # Directory for what a frozen vision tower makes of each image, computed once before training
    # and then read in the place of pixels; null: the tower runs at every step.
    feature_cache: str | None = None
    # Directory for images as the model takes them, decoded and resized once for all epochs and
    # runs (0.2 MB a grey image of 448 pixels, 0.8 MB of 896); null: their files at every visit.
    image_cache: str | None = None
    # Local directory and room for copies of what is read from buckets, 'DIR,50GB'; null: 20 GB in
    # ~/.cache/cxrjax/buckets, or what CXRJAX_BUCKET_CACHE says.
    cache: Annotated[str, AfterValidator(_room)] | None = None
    workers: NotNegative = 0  # processes that decode images; 0: the training process itself
    # Share of training questions that are put in other words, others at every visit: case, names,
    # forms, marks, typing errors (cxrjax/input_pipeline/wording.toml). Answers stay.
    vary_wording: Share = 0.0
    # Share of training questions about one finding that ask about an unknown thing instead, and are
    # answered 'Unknown.'
    unknown_share: Share = 0.0
    # Changes of training images, others at every visit.
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)


@dataclass(frozen=True, config=STRICT)
class SourceConfig:
    """A group `mixture.sources.NAME`: null means what `data` says."""

    train: str | None = None  # records file; each source has its own
    weight: float | None = None  # share relative to the others'; null in all: by size
    image_root: str | None = None
    prompt: str | None = None
    codec: str | None = None
    record_codec: str | None = None
    findings: tuple[str, ...] | None = None
    questions_per_image: Positive | None = None


@dataclass(frozen=True, config=STRICT)
class MixtureConfig:
    """The group `mixture`: several files in one run, in the place of data.train."""

    # Made by `add_source`.
    sources: Mapping[SourceName, SourceConfig] = dataclasses.field(default_factory=dict)
    # Of sources without weights: shares in proportion to images^(1/temperature). With them: 1.
    temperature: PositiveFloat = 1.0
