"""Rows in the release's layout, made up here: no patient is in them."""

import io

import numpy as np
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest

FINDINGS = "Bóng tim to. Góc sườn hoành hai bên nhọn."
IMPRESSION = "Bóng tim to."


def png(value=0, side=40):
    encoded = io.BytesIO()
    pixels = np.random.default_rng(value).integers(0, 255, (side, side), np.uint8)
    PIL.Image.fromarray(pixels).save(encoded, "PNG")
    return encoded.getvalue()


def row(number=0, **changes):
    return {
        "image": {"bytes": png(number), "path": f"{number}.png"},
        "findings": FINDINGS,
        "impressions": IMPRESSION,
        "Ages": 60,
        "sex": "Nam",
        "view": "PA",
        "Ghi chú": "",
        "Kỹ thuật": "Chụp Xquang",
    } | changes


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


@pytest.fixture
def folder(tmp_path):
    """A release of three splits, training in two files."""
    source = tmp_path / "release"
    write(source / "data" / "train-00000-of-00002.parquet", [row(n) for n in range(3)])
    write(source / "data" / "train-00001-of-00002.parquet", [row(n) for n in (3, 4)])
    write(source / "data" / "val-00000-of-00001.parquet", [row(5)])
    write(source / "data" / "test-00000-of-00001.parquet", [row(6)])
    return source
