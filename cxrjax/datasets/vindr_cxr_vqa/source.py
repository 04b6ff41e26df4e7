"""What of VinDr-CXR-VQA is found at a path: one file, or a folder with any of these, by name.

    VinBigData (Kaggle)                       PhysioNet (vindr-cxr 1.0.0)
    train.csv, train.csv.gz                   annotations/annotations_train.csv
    torchxrayvision-*.whl (the same table)    annotations/image_labels_train.csv
    train_meta.csv (sizes)                    annotations/annotations_test.csv
    images/, train/                           annotations/image_labels_test.csv
                                              train/, test/
    data_v1.json (the release: its questions)

PhysioNet's tables may also lie in the folder itself. Of several tables the first of this list is
read. Images are `<image_id>.dicom`, .dcm, .png, .jpg or .jpeg.
"""

import dataclasses
from pathlib import Path

from cxrjax.datasets.vindr_cxr_vqa.native import FILE_NAME
from cxrjax.errors import UserError

_TABLES = ("train.csv", "train.csv.gz", "torchxrayvision-*.whl")
_PHYSIONET = ("annotations/", "")
_PHYSIONET_TABLE = "annotations_train.csv"
_SIZES = ("train_meta.csv", "train_meta.csv.gz")
_IMAGE_FOLDERS = ("images", "train")
_TEST_IMAGE_FOLDERS = ("test",)


@dataclasses.dataclass(frozen=True)
class OfficialTest:
    """VinDr-CXR's official test part (PhysioNet): one consensus of readers an image.

    Attributes:
        table: the boxes, without a reader's column.
        labels: the image labels, None where they are not there.
        images: folders of image files; empty where there is none.
    """

    table: Path
    labels: Path | None
    images: tuple[Path, ...]


@dataclasses.dataclass(frozen=True)
class Source:
    """The pieces that were found; at least a table or a release file.

    Attributes:
        images: folders of image files; empty where there is none.
        labels: PhysioNet's image labels of the table's images.
        sizes: table of image sizes.
        test: the official test part.
    """

    table: Path | None
    release: Path | None
    images: tuple[Path, ...]
    labels: Path | None = None
    sizes: Path | None = None
    test: OfficialTest | None = None


def find_source(path: Path, sizes: Path | None = None) -> Source:
    """The pieces at a path.

    Args:
        path: a file, or a folder.
        sizes: table of image sizes that lies elsewhere, in the place of the folder's.

    Raises:
        UserError: there is nothing there that can be read.
    """
    if path.is_file():
        if path.suffix == ".json":
            return Source(None, path, (), sizes=sizes)
        if path.name.endswith((".csv", ".csv.gz", ".whl")):
            return Source(path, None, (), sizes=sizes)
        raise UserError(f"{path}: expected a box table (.csv, .csv.gz, .whl), {FILE_NAME} or both")
    table = next((file for pattern in _TABLES for file in sorted(path.glob(pattern))), None)
    physionet = _physionet(path, _PHYSIONET_TABLE)
    release = _file(path / FILE_NAME)
    if not table and not physionet and not release:
        names = ", ".join((*_TABLES, f"annotations/{_PHYSIONET_TABLE}", FILE_NAME))
        raise UserError(f"{path}: found none of {names} there")
    return Source(
        table=table or physionet,
        release=release,
        images=_folders(path, _IMAGE_FOLDERS),
        labels=_physionet(path, "image_labels_train.csv") if not table else None,
        sizes=sizes or next((path / name for name in _SIZES if (path / name).is_file()), None),
        test=_official_test(path),
    )


def _official_test(path: Path) -> OfficialTest | None:
    table = _physionet(path, "annotations_test.csv")
    if table is None:
        return None
    labels = _physionet(path, "image_labels_test.csv")
    return OfficialTest(table, labels, _folders(path, _TEST_IMAGE_FOLDERS))


def _physionet(path: Path, name: str) -> Path | None:
    return next((file for prefix in _PHYSIONET if (file := _file(path / prefix / name))), None)


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None


def _folders(path: Path, names: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(path / name for name in names if (path / name).is_dir())
