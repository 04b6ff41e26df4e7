"""Images out of a TFDS data set that `cxrjax.records_io.tfds_builders` wrote, by random access."""

import dataclasses
import errno
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError, first_line
from cxrjax.files import read_json_object

IMAGES_FILE = "images.json"
RECORDS = "records"


@dataclasses.dataclass(frozen=True)
class StoredImage:
    """One image of a split; read when it is opened.

    `number` is the example's; `image_hw` is (height, width) of the image file.
    """

    store: "StoredImages" = dataclasses.field(compare=False, repr=False)
    number: int
    image_path: str
    image_hw: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.store.directory}[{self.store.split}][{self.number}]: {self.image_path}"

    def open(self) -> io.BytesIO:
        """The image file's bytes.

        Raises:
            OSError: the shard cannot be read.
        """
        return io.BytesIO(self.store.read(self.number))


class StoredImages:
    """The images of a split, by (image id, path). Can be pickled; reads one image at a time.

    Args:
        directory: of the data set's version, such as `DIR/NAME/1.0.0`.
        split: such as `train`.

    Raises:
        UserError: there is no such data set, or no such split in it.
    """

    def __init__(self, directory: Path, split: str) -> None:
        index = read_json_object(directory / IMAGES_FILE)
        if split not in index:
            raise UserError(f"{directory}: no split {split!r}, found {sorted(index)}")
        self.directory = directory
        self.split = split
        try:
            self._images = {
                (image_id, image_path): StoredImage(self, number, image_path, (height, width))
                for number, (image_id, image_path, (height, width)) in enumerate(index[split])
            }
        except (TypeError, ValueError):
            raise UserError(
                f"{directory / IMAGES_FILE}: {split!r} is not a list of [image id, path, [height, "
                "width]]; write the data set again"
            ) from None
        self._source: Any = None

    @property
    def records_file(self) -> Path:
        """The split's records, JSON Lines."""
        return self.directory / RECORDS / f"{self.split}.jsonl"

    def __getitem__(self, key: tuple[str, str]) -> StoredImage:
        """The image with this id and path.

        Raises:
            UserError: the data set does not have it.
        """
        if key not in self._images:
            raise UserError(
                f"{self.records_file}: image {key[0]} ({key[1]}) is not among the "
                f"{len(self._images)} stored beside it; write the data set again"
            )
        return self._images[key]

    def read(self, number: int) -> bytes:
        """The bytes of the image of this example.

        Raises:
            OSError: the shard is damaged there, by its own checksums.
        """
        if self._source is None:
            import tensorflow_datasets as tfds  # takes seconds, and most runs read image files

            builder = tfds.builder_from_directory(str(self.directory))
            self._source = builder.as_data_source(self.split)
        try:
            return self._source[number]["image"]
        except (RuntimeError, ValueError) as error:
            problem = f"the shard is damaged ({first_line(error)})"
            raise OSError(errno.EIO, problem) from error

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_source": None}
