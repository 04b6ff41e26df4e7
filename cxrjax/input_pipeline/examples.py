"""One record to the tokens, boxes and masks of one question; one image to pixels.

prefix   <bos> prompt newline        the model sees all of it, both ways (Gemma 3: backwards only)
answer   text <eos>                  predicted token by token, the only part with a loss

A conversation has its <bos> before the image and ends its answer otherwise: `PromptFormat`.
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int32, UInt8

from cxrjax.codecs import CODECS, get_codec
from cxrjax.codecs.frames import nearest_grid
from cxrjax.codecs.table import is_codec
from cxrjax.codecs.tokens import PaliGemma
from cxrjax.errors import UserError
from cxrjax.images.decode import read_grey_or_rgb, three_channels
from cxrjax.images.files import AnyFile
from cxrjax.images.geometry import IDENTITY, Geometry, letterbox, letterbox_geometry, resize
from cxrjax.input_pipeline import coordinates
from cxrjax.input_pipeline.augment import ImageChange, OutOfPictureError
from cxrjax.input_pipeline.caches import FeatureCache, ImageCache
from cxrjax.input_pipeline.prompts import PROMPTS, BoxText
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.records import QARecord


@dataclasses.dataclass(frozen=True)
class ExampleConfig:
    """The settings by which records become examples."""

    image_size: int  # side of the model's input in pixels, or its height
    codec: str = "paligemma"  # how the model writes boxes, a key of `cxrjax.codecs.CODECS`
    record_codec: str = "vindr_px"  # how the records' answers have them written
    prompt: str = "vqa"  # a key of `cxrjax.input_pipeline.prompts.PROMPTS`
    box_route: str = "auto"  # how the loss reaches boxes, one of `coordinates.BOX_ROUTES`
    # `resize` stretches the image to the square, `letterbox` pads it.
    geometry: Literal["resize", "letterbox"] = "resize"
    max_boxes: int = 8  # most boxes in one answer (K)
    # `prefix_buckets`, `answer_buckets`: ascending lengths; a batch is padded to the smallest that
    # holds its longest prefix and answer. Each pair of lengths is compiled once.
    prefix_buckets: tuple[int, ...] = (32, 64)
    answer_buckets: tuple[int, ...] = (64, 128)
    # Ascending numbers of tokens, of all questions of an image together; the batch's
    # `packed_length` is the smallest that holds its longest image, or None where none does. Empty:
    # nobody counts.
    packed_buckets: tuple[int, ...] = ()
    # What to do with a question that fits no bucket or has too many boxes: `error` names it and
    # stops, `set_aside` leaves its slot empty and reports it.
    too_long: Literal["error", "set_aside"] = "error"
    # Show the earlier image, too, of a record that has one. Else such a record is left out, and
    # reported.
    earlier_images: bool = False
    # Where a frozen tower's features of the images are, to be read in their place.
    features: FeatureCache | None = None
    # Where images that were prepared before are kept; of this size and geometry.
    image_cache: ImageCache | None = None
    image_width: int | None = None  # of an input that is not square
    # (height, width) of several inputs, of which each image has the nearest.
    grids: tuple[tuple[int, int], ...] = ()
    jpeg_times: int = 2  # the input that a JPEG leaves at least (`read_grey_or_rgb`)

    def on_grid_of(self, image_hw: tuple[int, int] | None) -> "ExampleConfig":
        """The settings of one input: the one that an image of this (height, width) has.

        Of an image whose size is not known it is `image_hw`, as where there is one alone.
        """
        if not self.grids:
            return self
        grid = self.image_hw if image_hw is None else nearest_grid(*image_hw, self.grids)
        return self._by_grid[grid]

    @functools.cached_property
    def _by_grid(self) -> dict[tuple[int, int], "ExampleConfig"]:
        found = {}
        for height, width in self.grids:
            size: dict[str, Any] = {"image_size": height, "image_width": width}
            cache = self.image_cache and dataclasses.replace(self.image_cache, **size)
            found[height, width] = dataclasses.replace(self, **size, image_cache=cache, grids=())
        return found

    @property
    def image_hw(self) -> tuple[int, int]:
        """(height, width) of the model's input."""
        return self.image_size, self.image_width or self.image_size

    def __post_init__(self) -> None:
        for name, table in (("codec", CODECS), ("record_codec", CODECS), ("prompt", PROMPTS)):
            value = getattr(self, name)
            if value not in table and not (name == "codec" and is_codec(value)):
                raise UserError(f"{name} is {value!r}, expected one of {sorted(table)}")
        for name, choices in (
            ("geometry", ("resize", "letterbox")),
            ("too_long", ("error", "set_aside")),
            ("box_route", coordinates.BOX_ROUTES),
        ):
            if getattr(self, name) not in choices:
                raise UserError(f"{name} is {getattr(self, name)!r}, expected one of {choices}")
        if self.grids and self.image_hw not in self.grids:
            raise UserError(f"grids are {self.grids}, and {self.image_hw} is none of them")
        if self.earlier_images and self.features is not None:
            raise UserError(
                "data.feature_cache has features of one image a question, and "
                "data.earlier_images=True shows two; leave one of them out"
            )
        for name in ("image_size", "max_boxes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("prefix_buckets", "answer_buckets", "packed_buckets"):
            buckets = getattr(self, name)
            if not buckets and name == "packed_buckets":
                continue
            if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] < 1:
                raise UserError(f"{name} is {buckets}, expected ascending lengths above zero")

    def empty_input(self) -> np.ndarray:
        """An input of `load_input`'s shape and type, in zeros."""
        if self.features is None:
            several = (2,) if self.earlier_images else ()
            return np.zeros((*several, *self.image_hw, 3), np.uint8)
        shape = (self.features.num_tokens, self.features.width)
        return np.zeros(shape, jnp.dtype(self.features.dtype))


class TooLongError(UserError):
    """A question does not fit the configured lengths.

    Attributes:
        reason: `prefix_too_long`, `answer_too_long` or `too_many_boxes`.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


class EncodedQuestion(NamedTuple):
    """One question in tokens."""

    # `<bos>` (where the format begins with it), prompt, newline.
    prefix: Int32[np.ndarray, " prefix"]
    answer: Int32[np.ndarray, " answer"]  # text and end marker; empty where no answer was asked for
    # On the answer axis, canonical order, one row a box.
    coordinate_positions: Int32[np.ndarray, "n 4"]
    boxes: Float32[np.ndarray, "n 4"]  # what those tokens say, xyxy fractions of the model's input
    # The same boxes digit by digit, where the loss reaches them so.
    digits: coordinates.DigitCoordinates | None = None


def image_geometry(height: int, width: int, config: ExampleConfig) -> Geometry:
    """The placement of an image of this size in the model's input, told without its pixels."""
    if config.geometry == "resize":
        return IDENTITY
    return letterbox_geometry(height, width, *config.on_grid_of((height, width)).image_hw)


def load_image(
    path: AnyFile,
    config: ExampleConfig,
    change: ImageChange | None = None,
    image_hw: tuple[int, int] | None = None,
) -> UInt8[np.ndarray, "H W 3"]:
    """The image at the model's input size.

    Args:
        change: of training; caches hold images without it.
        image_hw: (height, width) of the original, for a change within a letterbox, and for the
            grid where there are several.

    Raises:
        ImageError: the file is missing or does not decode.
        UserError: the image cache cannot be written.
    """
    config = config.on_grid_of(image_hw)
    transform = resize if config.geometry == "resize" else letterbox
    size = config.image_hw

    def prepare() -> UInt8[np.ndarray, "H W *channels"]:
        # Resized before its channel is repeated: the same pixels for a third of the work.
        return transform(read_grey_or_rgb(path, size, config.jpeg_times), *size)[0]

    cache = config.image_cache
    image = prepare() if cache is None else cache.get(path, prepare)
    if change is not None:
        placed = IDENTITY if image_hw is None else image_geometry(*image_hw, config)
        image = change.of_pixels(image, placed)
    return three_channels(image)


def load_input(
    path: AnyFile,
    config: ExampleConfig,
    change: ImageChange | None = None,
    image_hw: tuple[int, int] | None = None,
) -> np.ndarray:
    """The model's input of an image: its pixels, or a frozen tower's features of it.

    Args are those of `load_image`; features are of images without a change.

    Raises:
        ImageError: the file is missing or does not decode.
        UserError: features are configured and this image has none.
    """
    if config.features is None:
        return load_image(path, config, change, image_hw)
    features = config.features.read(path)
    if features is None:
        load_image(path, config)  # where it does not decode, that is the reason
        raise UserError(
            f"{path}: no features of it in {config.features.directory}; the image was changed "
            "since they were made, so start the run again"
        )
    return features


class QuestionEncoder:
    """Records to tokens under one configuration. Can be pickled."""

    def __init__(self, tokenizer: Tokenizer, config: ExampleConfig) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self._codec = get_codec(config.codec)

    @functools.cached_property
    def box_route(self) -> coordinates.BoxRoute:
        """The route by which the loss reaches boxes.

        Raises:
            UserError: not in the way that is configured.
        """
        return coordinates.resolve_box_route(self.config.box_route, self.config.codec)

    @functools.cached_property
    def digit_finder(self) -> coordinates.DigitFinder | None:
        """Finds coordinates in digits; None where there are none, or none that a loss reaches.

        Raises:
            UserError: the tokenizer does not give every digit a token of its own.
        """
        if self.box_route == "none" or self._codec.number_pattern is None:
            return None
        return coordinates.DigitFinder(self.tokenizer)

    @property
    def digit_shape(self) -> tuple[int, tuple[int, ...]]:
        """Digits that a batch needs room for in each coordinate, and the ids of 0 to 9."""
        if self.digit_finder is None or self.box_route != "digits":
            return 0, ()
        return self._codec.max_digits, self.digit_finder.token_ids

    def encode(
        self,
        record: QARecord,
        with_answer: bool = True,
        change: ImageChange | None = None,
        asked: QARecord | None = None,
    ) -> EncodedQuestion:
        """Tokens of one question.

        Args:
            change: of the image; boxes are where it has them.
            asked: the question in other words.

        Raises:
            OutOfPictureError: the change leaves too little of a box.
            TooLongError: no bucket holds it, or it has more than `max_boxes` boxes.
            UserError: the image's size is not known, the record has no answer though one is
                wanted, or a box in the answer does not parse. Every message names the question.
        """
        prompt = PROMPTS[self.config.prompt]
        begin = [self.tokenizer.bos_id] if prompt.begins else []
        said = prompt.prefix(asked or record)
        prefix = np.asarray([*begin, *self.tokenizer.encode(said)], np.int32)
        self._check_length(record, "prefix", len(prefix), self.config.prefix_buckets)
        if not with_answer:
            return EncodedQuestion(prefix, _NO_TOKENS, _NO_POSITIONS, _NO_BOXES)
        text = self.target_text(record, change)
        end = self.tokenizer.eos_id if prompt.end is None else self.tokenizer.piece_id(prompt.end)
        answer = np.asarray([*self.tokenizer.encode(text), end], np.int32)
        self._check_length(record, "answer", len(answer), self.config.answer_buckets)
        positions, boxes, digits = self._coordinates(record, text, answer)
        if len(boxes) > self.config.max_boxes:
            raise TooLongError(
                f"question {record.question_id}: {len(boxes)} boxes in the answer, expected at "
                f"most {self.config.max_boxes}; raise max_boxes or set such questions aside",
                "too_many_boxes",
            )
        return EncodedQuestion(prefix, answer, positions, boxes, digits)

    def target_text(self, record: QARecord, change: ImageChange | None = None) -> str:
        """The answer that the model should give, boxes in the model's codec."""
        if record.image_hw is None:
            raise UserError(
                f"question {record.question_id}: image_hw is null, so its boxes cannot be scaled; "
                "join the image sizes first"
            )
        if not record.answers:
            raise UserError(
                f"question {record.question_id}: no answer to learn from; is this a questions file?"
            )
        height, width = record.image_hw
        box_text = BoxText(
            source=self.config.record_codec,
            target=self.config.codec,
            height=height,
            width=width,
            geometry=image_geometry(height, width, self.config),
            change=change,
        )
        try:
            return PROMPTS[self.config.prompt].target(record, box_text)
        except OutOfPictureError:
            raise
        except UserError as error:
            raise UserError(f"question {record.question_id}: {error}") from None

    def _coordinates(
        self, record: QARecord, text: str, answer: Int32[np.ndarray, " answer"]
    ) -> tuple[
        Int32[np.ndarray, "n 4"], Float32[np.ndarray, "n 4"], coordinates.DigitCoordinates | None
    ]:
        """The boxes' places among the answer's tokens, and what those tokens say."""
        if self.box_route == "none":
            return _NO_POSITIONS, _NO_BOXES, None
        if self.digit_finder is not None:
            assert record.image_hw is not None
            size = record.image_hw
            geometry = image_geometry(*size, self.config)
            try:
                found = self.digit_finder.find(text, answer, self._codec, *size, geometry)
            except UserError as error:
                raise UserError(f"question {record.question_id}: {error}") from None
            return found.positions[..., 0], found.boxes, found
        assert isinstance(self._codec, PaliGemma)
        first, last = self.tokenizer.loc_ids[[0, -1]]
        # The prompt format wrote whole boxes only, so that location tokens come in fours.
        emitted = np.flatnonzero((answer >= first) & (answer <= last))
        if len(emitted) % 4:
            raise UserError(
                f"question {record.question_id}: {len(emitted)} location tokens in the answer, "
                "expected four a box; the prompt format must write boxes with its BoxText"
            )
        of_boxes = emitted.reshape(-1, 4)
        positions = np.empty(of_boxes.shape, np.int32)
        positions[:, list(self._codec.coordinate_order)] = of_boxes
        return positions, self._codec.from_bins(answer[positions] - first), None

    def _check_length(
        self, record: QARecord, part: str, length: int, buckets: tuple[int, ...]
    ) -> None:
        if length > buckets[-1]:
            raise TooLongError(
                f"question {record.question_id}: {part} of {length} tokens, expected at most "
                f"{buckets[-1]}; add a longer bucket to {part}_buckets or set such questions aside",
                f"{part}_too_long",
            )


_NO_TOKENS = np.zeros(0, np.int32)
_NO_POSITIONS = np.zeros((0, 4), np.int32)
_NO_BOXES = np.zeros((0, 4), np.float32)


def bucket(length: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds `length`."""
    return next(size for size in buckets if size >= length)
