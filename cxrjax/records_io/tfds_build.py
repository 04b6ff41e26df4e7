"""The build that turns another build, or its shards, into a TFDS data set."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.files import read_json_object
from cxrjax.paper import find_paper
from cxrjax.records import QARecord
from cxrjax.records_io.builder import Builder, SourceOptions


@dataclasses.dataclass(frozen=True)
class TfdsOptions(SourceOptions):
    """Flags of a build or of its shards that becomes a TFDS data set.

    Attributes:
        image_root: folder of the images (default: the build; of one in shards: without images).
    """

    image_root: Path | None = None


class TfdsBuilder(Builder[TfdsOptions]):
    """Conversion of a finished build to TFDS: ArrayRecord shards."""

    options_class = TfdsOptions
    unheeded = ("seed", "processes", "strict")

    def read(self) -> Mapping[str, Iterable[QARecord]]:
        return {}  # TFDS reads the build by itself

    def build(self) -> str:
        from cxrjax.records_io.shard_layout import is_sharded
        from cxrjax.records_io.tfds_builders import write_tfds

        source, out, image_root = self.options.source, self.options.out, self.options.image_root
        if is_sharded(source):
            dataset = str(read_json_object(source / "manifest.json").get("dataset"))
            write_shards = find_paper(dataset).part("write_shards_tfds")
            if write_shards is None:
                raise UserError(f"{source}: shards of {dataset} cannot become a TFDS data set")
            folder = write_shards(source, out, image_root)
            return f"{folder}: for tfds.builder_from_directory"
        folder = write_tfds(source, out, image_root)
        return f"{folder}: for config.data.train and tfds.builder_from_directory"
