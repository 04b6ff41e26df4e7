"""Images in the place of a question's own, to measure what a model knows without seeing it.

    shown     the image itself
    blind     mid-grey (128) everywhere
    shuffled  another image of the same file; no image keeps its own
    noise     every pixel drawn evenly from 0 to 255, the same value in all three channels
    blurred   the image, by a Gaussian whose standard deviation is a sixteenth of the longer side
    masked    the image, its own mean grey over all that is a tenth of a side or more from its edges

Our models have a place for an image in every sequence, and were never trained without one. So "no
image" is an image without content: 128 is what normalisation (x / 127.5 - 1) brings closest to 0,
so that patches carry no more than their position. Dropping the image's tokens instead would move
all positions and be a sequence that no training had. Blind and noise fill the model's input; boxes
are read as places on the question's own image, of which nothing but its size was used.

Blurred keeps what is coarse (outlines of lungs and heart, exposure) and loses lesions. Masked keeps
the margins alone: arms, neck, markers, how the image was cut, which give away view and hospital.
It hides the same region everywhere, since whoever predicts knows no true boxes, and a patch over
the lesion would point at it. On 90 real radiographs (data/real_cxr) it hides 85 % of the lungs.
"""

import dataclasses
import io
import random
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from PIL import Image, ImageFilter

from cxrjax.codecs.frames import nearest_grid
from cxrjax.errors import UserError
from cxrjax.images.decode import read_grey_or_rgb
from cxrjax.images.files import AnyFile
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord

StandIn = Literal["shown", "blind", "shuffled", "noise", "blurred", "masked"]
STAND_INS: tuple[str, ...] = get_args(StandIn)

_GREY = 128
BLUR = 1 / 16  # standard deviation, of the longer side
MARGIN = 1 / 10  # of a side, on each of the four
# What run.json says of it, beside the kind.
CHANGES = {"blurred": {"image_blur": BLUR}, "masked": {"image_margin": MARGIN}}
_Key = tuple[str, str]  # image_id, image_path


@dataclasses.dataclass(frozen=True)
class DrawnImage:
    """An image that is made when it is opened."""

    kind: str  # `blind` or `noise`
    image_id: str
    # `height`, `width`: in pixels.
    height: int
    width: int
    seed: int  # of the noise, with the image's id

    def __str__(self) -> str:
        return f"{self.kind} in the place of image {self.image_id}"

    def open(self) -> io.BytesIO:
        """Returns the bytes of a PNG file."""
        shape = (self.height, self.width)
        if self.kind == "noise":
            drawn = random.Random(f"{self.seed}/{self.image_id}/noise")
            noise = drawn.randbytes(self.height * self.width)
            pixels = np.frombuffer(noise, np.uint8).reshape(shape)
        else:
            pixels = np.full(shape, _GREY, np.uint8)
        return _as_file(Image.fromarray(pixels))


@dataclasses.dataclass(frozen=True)
class ChangedImage:
    """A question's own image, changed when it is opened; its size stays."""

    kind: str  # `blurred` or `masked`
    own: AnyFile

    def __str__(self) -> str:
        return f"{self.own} ({self.kind})"

    def open(self) -> io.BytesIO:
        """Returns the bytes of a PNG file.

        Raises:
            ImageError: the image itself cannot be read.
        """
        pixels = read_grey_or_rgb(self.own).copy()
        if self.kind == "blurred":
            blur = ImageFilter.GaussianBlur(BLUR * max(pixels.shape[:2]))
            return _as_file(Image.fromarray(pixels).filter(blur))
        mean = pixels.mean(axis=(0, 1))
        top, left = (round(side * MARGIN) for side in pixels.shape[:2])
        pixels[top : pixels.shape[0] - top, left : pixels.shape[1] - left] = np.round(mean)
        return _as_file(Image.fromarray(pixels))


def _as_file(image: Image.Image) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    file.seek(0)
    return file


class StandInImages:
    """Images in the place of others, for `RecordSource.showing`. Can be pickled.

    Args:
        questions: all questions, those of later turns too, so that an image is replaced by the
            same one in every turn.
        grids: (height, width) of the model's inputs in pixels; the first is that of an image whose
            record does not tell its size.
        seed: of the noise and of the order.

    Raises:
        UserError: only one image, and it is to be shuffled.
    """

    def __init__(
        self, kind: str, questions: RecordSource, grids: Sequence[tuple[int, int]], seed: int
    ) -> None:
        self.kind = kind
        self.seed = seed
        self._grids = grids
        self._questions = questions
        self._shuffled: dict[_Key, AnyFile] = {}
        if kind != "shuffled":
            return
        files: dict[_Key, AnyFile] = {}
        for _, record in questions.records():
            files.setdefault(_key(record), questions.image_of(record))
        if len(files) < 2:
            raise UserError(
                f"{questions.path}: questions about one image alone; --image=shuffled shows another"
            )
        keys = list(files)
        order = derangement(len(keys), random.Random(f"{seed}/shuffled_images"))
        self._shuffled = {key: files[keys[k]] for key, k in zip(keys, order, strict=True)}

    def of(self, record: QARecord) -> AnyFile:
        """Returns the image in the place of the record's."""
        if self.kind == "shuffled":
            return self._shuffled[_key(record)]
        if self.kind in CHANGES:
            return ChangedImage(self.kind, self._questions.image_of(record))
        own = record.image_hw
        size = self._grids[0] if own is None else nearest_grid(*own, self._grids)
        return DrawnImage(self.kind, record.image_id, *size, self.seed)


def derangement(n: int, drawn: random.Random) -> list[int]:
    """Returns an order of 0 to n - 1 in which no number keeps its place, drawn evenly from those
    that are one cycle through all numbers (Sattolo's algorithm)."""
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        other = drawn.randrange(last)
        order[last], order[other] = order[other], order[last]
    return order


def _key(record: QARecord) -> _Key:
    return record.image_id, record.image_path
