"""The data sets that `python -m cxrjax.build` can build."""

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cxrjax.papers.benchmarks import CLOSED_CLASSES
from cxrjax.records import QARecord
from cxrjax.records_io.builder import Builder, SourceOptions
from cxrjax.records_io.own_records import OwnRecordsBuilder

# Data set -> what is read and written; module and builder, imported when chosen: a builder loads
# the libraries that it needs, and --help lists the data sets without any.
BUILDERS = {
    "boxes": (
        "images and boxes from any annotation tool",
        "apps.annotations.build",
        "BoxesBuilder",
    ),
    "cxr_qba": ("CXR-QBA's release, or reports", "papers.cxr_qba.build", "QbaBuilder"),
    "gemex": ("GEMeX's files, scene graphs or reports", "papers.gemex.build", "GemexBuilder"),
    "grafts": ("simulated lesions in real radiographs", "simulation.lesions", "LesionBuilder"),
    "lungs": ("radiographs with lung masks", "papers.lungs.build", "LungsBuilder"),
    "ms_cxr": ("MS-CXR's file of phrases", "papers.ms_cxr.build", "MsCxrBuilder"),
    "phantom": ("rendered radiographs with questions", "simulation.phantoms", "PhantomBuilder"),
    "phantom_studies": (
        "rendered studies in MIMIC-CXR-JPG's layout",
        "simulation.studies.build",
        "StudiesBuilder",
    ),
    "records": ("images and records of one's own", "builders", "RecordsBuilder"),
    "shards": ("a build, in shards", "records_io.shards", "ShardsBuilder"),
    "sizes": ("a build, with sizes of images", "records_io.csv_table", "SizesBuilder"),
    "tfds": ("a build or its shards, as a TFDS data set", "builders", "TfdsBuilder"),
    "vindr_cxr_vqa": (
        "VinDr-CXR's box table, or VinDr-CXR-VQA's release",
        "papers.vindr_cxr_vqa.build",
        "VinDrBuilder",
    ),
    "vix_ray": ("ViX-Ray's release", "papers.vix_ray.build", "VixRayBuilder"),
    "vix_ray_synthetic": (
        "rendered radiographs in ViX-Ray's layout",
        "simulation.vix_ray",
        "SyntheticVixRayBuilder",
    ),
}


def builder_of(dataset: str) -> type[Builder[Any]]:
    """Imports the builder of a data set."""
    _, module, name = BUILDERS[dataset]
    return getattr(importlib.import_module(f"cxrjax.{module}"), name)


class RecordsBuilder(OwnRecordsBuilder):
    """Records of one's own, held to the papers' closed lists of classes."""

    closed_classes = CLOSED_CLASSES


@dataclasses.dataclass(frozen=True)
class TfdsOptions(SourceOptions):
    """Flags of a build or of its shards that becomes a TFDS data set.

    Attributes:
        image_root: folder of the images (default: the build; of one in shards: without images).
    """

    image_root: Path | None = None


class TfdsBuilder(Builder[TfdsOptions]):
    """Has TFDS write ArrayRecord shards of a finished build."""

    options_class = TfdsOptions
    unheeded = ("seed", "processes", "strict")

    def read(self) -> Mapping[str, Iterable[QARecord]]:
        return {}  # TFDS reads the build by itself

    def build(self) -> str:
        from cxrjax.papers.cxr_qba.construct.tfds_builder import write_qba_tfds
        from cxrjax.records_io.shards import is_sharded
        from cxrjax.records_io.tfds_builders import write_tfds

        source, out, image_root = self.options.source, self.options.out, self.options.image_root
        if is_sharded(source):
            folder = write_qba_tfds(source, out, image_root)
            return f"{folder}: for tfds.builder_from_directory"
        folder = write_tfds(source, out, image_root)
        return f"{folder}: for config.data.train and tfds.builder_from_directory"
