"""The batch: what the model, the loss and the decoder are given, and nothing besides.

B images, Q questions per image, P prefix slots, A answer slots, K boxes per answer. The sequence
that the model builds for one image is

    [image tokens | question 0: P prefix, A answer | question 1: P prefix, A answer | ...]

in which each question sees the image and itself alone; the Q axis is the segment id. A question
slot whose `question_index` is -1 is empty: its masks are all False and nothing in it may count.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int32, UInt8

ArrayLike: TypeAlias = Array | np.ndarray


@struct.dataclass
class DigitTokens:
    """The digits of boxes that are written in digits: D at most in a coordinate.

    coordinate = (sum of place_weights * digits) * scale + offset
    """

    # Index on the answer axis of each digit's token, the coordinates in the order of
    # `coordinate_positions`, the first digit first; 0 in padding.
    positions: Int32[ArrayLike, "B Q K 4 D"]
    # 1000, 100, 10 or 1, what the digit counts; 0 in padding.
    place_weights: Float[ArrayLike, "B Q K 4 D"]
    # `scale`, `offset`: from the number written to a fraction of the model's input frame, for
    # x_min, y_min, x_max, y_max; of each question's image.
    scale: Float[ArrayLike, "B Q 4"]
    offset: Float[ArrayLike, "B Q 4"]
    # Ids of the tokens 0 to 9. Static: each value is compiled once.
    token_ids: tuple[int, ...] = struct.field(pytree_node=False)


@struct.dataclass
class Batch:
    """Fixed-shape arrays of one step, on the host (NumPy) or on devices (JAX)."""

    # RGB pixels at the model's input size, 0..255; or features that the model's frozen tower gave
    # for them, N of them D wide (input_pipeline/caches.py); or two images a row, the one that is
    # asked about and one of an earlier study.
    images: UInt8[ArrayLike, "B H W 3"] | UInt8[ArrayLike, "B 2 H W 3"] | Float[ArrayLike, "B N D"]
    # `<bos>`, prompt, newline; left-padded, so that the answer starts at slot P of every question.
    prefix_tokens: Int32[ArrayLike, "B Q P"]
    prefix_mask: Bool[ArrayLike, "B Q P"]  # True on the prefix's tokens
    answer_tokens: Int32[ArrayLike, "B Q A"]  # the answer and `<eos>`, right-padded
    # True on the answer's tokens and `<eos>`: where the token loss is taken.
    answer_mask: Bool[ArrayLike, "B Q A"]
    # Index on the answer axis of the tokens that carry x_min, y_min, x_max, y_max, in this order
    # whatever order the codec emits them in; of a number of several digits, the first.
    coordinate_positions: Int32[ArrayLike, "B Q K 4"]
    # The boxes those tokens say (bin centres, or the numbers written), xyxy, fractions of the
    # model's input frame.
    target_boxes: Float[ArrayLike, "B Q K 4"]
    box_mask: Bool[ArrayLike, "B Q K"]  # True where a box is
    # Position of the question's record in its file, -1 for an empty slot; in a mixture the files
    # are counted as if one followed the other.
    question_index: Int32[ArrayLike, "B Q"]
    # No image has more tokens than this in all its questions together, so that the model may leave
    # the padding out; None where nobody counted. Static: each value is compiled once.
    packed_length: int | None = struct.field(pytree_node=False, default=None)
    # Of boxes written in digits, None where each coordinate is one token.
    digits: DigitTokens | None = None
    # Of batches with two images a row, where there is a second one.
    has_earlier: Bool[ArrayLike, " B"] | None = None


class BatchProblem(NamedTuple):
    """A question left out of a batch at run time, never replaced by another one."""

    question_index: int  # position of its record in the file, or in a mixture's files
    question_id: str  # the record's id
    # `unreadable_image`, `earlier_image`, `prefix_too_long`, `answer_too_long` or `too_many_boxes`,
    # as quality.json names them.
    reason: str
    detail: str  # what was found, naming the file


class LoadedBatch(NamedTuple):
    """A step's batch of this host with what only the host needs to know."""

    batch: Batch  # arrays of this host's images
    question_ids: list[list[str | None]]  # `[B][Q]`, None where the slot is empty
    problems: list[BatchProblem]  # questions of this host's images that were left out of the batch
    # Images that a training loader has given of each source of a mixture up to this batch, over all
    # hosts; empty of a single source.
    images_by_source: Mapping[str, int] = {}  # never changed in place
    # Questions of this host's images that variation had to spare at this visit: `out_of_picture`,
    # left out because a box of theirs has left the image, and `wording_too_long`, asked in their
    # own words because no bucket holds the others.
    unvaried: Mapping[str, int] = {}


def empty_batch(
    images: int,
    image: np.ndarray,
    questions: int,
    prefix_slots: int,
    answer_slots: int,
    boxes: int,
    packed_length: int | None = None,
    max_digits: int = 0,
    digit_ids: tuple[int, ...] = (),
) -> Batch:
    """A batch of empty slots in NumPy, to be filled in place (tokens 0 = `<pad>`).

    `image` is what stands for an image that is not there (`ExampleConfig.empty_input`).
    With `max_digits` it has room for boxes in digits, whose tokens are `digit_ids`.
    """
    question_shape = (images, questions)
    digits = None
    if max_digits:
        digits = DigitTokens(
            positions=np.zeros((*question_shape, boxes, 4, max_digits), np.int32),
            place_weights=np.zeros((*question_shape, boxes, 4, max_digits), np.float32),
            scale=np.zeros((*question_shape, 4), np.float32),
            offset=np.zeros((*question_shape, 4), np.float32),
            token_ids=digit_ids,
        )
    return Batch(
        images=np.repeat(image[None], images, axis=0),
        prefix_tokens=np.zeros((*question_shape, prefix_slots), np.int32),
        prefix_mask=np.zeros((*question_shape, prefix_slots), bool),
        answer_tokens=np.zeros((*question_shape, answer_slots), np.int32),
        answer_mask=np.zeros((*question_shape, answer_slots), bool),
        coordinate_positions=np.zeros((*question_shape, boxes, 4), np.int32),
        target_boxes=np.zeros((*question_shape, boxes, 4), np.float32),
        box_mask=np.zeros((*question_shape, boxes), bool),
        question_index=np.full(question_shape, -1, np.int32),
        packed_length=packed_length,
        digits=digits,
        has_earlier=np.zeros(images, bool) if image.ndim == 4 else None,
    )
