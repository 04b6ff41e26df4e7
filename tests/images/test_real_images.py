"""Real radiographs: the DICOM files of pydicom-data, and a collection beside the repository."""

import json
from pathlib import Path

import numpy as np
import pydicom
import pytest

from cxrjax.images.decode import audit_header, audit_image, image_size, read_image

COLLECTION = Path(__file__).parents[2].parent / "shared" / "real_cxr"


@pytest.fixture(scope="module")
def dicom_folder():
    package = pytest.importorskip(
        "data_store", reason="real DICOM files come with pydicom-data==1.0.0 (the test extra)"
    )
    return Path(package.__file__).parent / "data"


@pytest.fixture(scope="module")
def chest(dicom_folder):
    """The four encodings of one chest radiograph, 15 bits, MONOCHROME1."""
    names = ("RG1_UNCI", "RG1_J2KI", "RG1_UNCR", "RG1_J2KR")
    return {name: read_image(dicom_folder / f"{name}.dcm") for name in names}


@pytest.mark.parametrize("pair", [("RG1_UNCI", "RG1_J2KI"), ("RG1_UNCR", "RG1_J2KR")])
def test_jpeg_2000_equals_its_uncompressed_twin(chest, pair):
    assert chest[pair[0]].shape == (1955, 1841, 3)
    assert (chest[pair[0]] == chest[pair[1]]).all()


def test_the_real_pair_is_close_and_windowed_as_the_standard_says(chest, dicom_folder):
    difference = np.abs(chest["RG1_UNCI"].astype(int) - chest["RG1_UNCR"])
    assert 0 < difference.max() <= 4
    # A leg; the lead letter R in it reads mirrored.
    notes = audit_header(dicom_folder / "RG3_UNCR.dcm")
    assert any("mirrored" in note for note in notes)
    dataset = pydicom.dcmread(dicom_folder / "RG1_UNCR.dcm")
    assert (dataset.WindowCenter, dataset.WindowWidth) == (15000, 30000)
    windowed = np.clip((dataset.pixel_array - 14999.5) / 29999 + 0.5, 0, 1) * 255
    assert np.abs(chest["RG1_UNCR"][..., 1] - (255 - windowed)).max() <= 0.5 + 1e-6


def test_the_real_chest_looks_as_a_radiologist_expects(dicom_folder, chest):
    image = chest["RG1_UNCR"][..., 0].astype(float)
    height, width = image.shape

    def mean(top, bottom, left, right):
        rows = slice(int(top * height), int(bottom * height))
        return image[rows, int(left * width) : int(right * width)].mean()

    spine = mean(0.3, 0.7, 0.46, 0.52)
    air_above_the_shoulder = mean(0.03, 0.09, 0.0, 0.07)
    right_apex, left_apex = mean(0.10, 0.20, 0.25, 0.38), mean(0.10, 0.20, 0.60, 0.72)
    assert air_above_the_shoulder < min(right_apex, left_apex) < max(right_apex, left_apex) < spine
    # The heart lies to the patient's left, which is the image's right.
    beside_the_spine = mean(0.62, 0.70, 0.30, 0.36), mean(0.62, 0.70, 0.60, 0.66)
    assert beside_the_spine[1] > beside_the_spine[0] + 20
    assert audit_image(chest["RG1_UNCR"]) == []
    assert audit_image(255 - chest["RG1_UNCR"])
    assert audit_header(dicom_folder / "RG1_UNCR.dcm") == ["15 bits stored, shown in 8"]


@pytest.mark.parametrize("name", ["JPEG-LL", "JPGLosslessP14SV1_1s_1f_8b", "vlut_04", "mlut_18"])
def test_other_real_encodings_decode(dicom_folder, name):
    path = dicom_folder / f"{name}.dcm"
    image = read_image(path)
    assert image.shape[:2] == image_size(path)
    assert image.max() == 255 and image.std() > 20


@pytest.fixture(scope="module")
def collection():
    if not COLLECTION.is_dir():
        pytest.skip("the folder of real radiographs, ../shared/real_cxr, is not here")
    with open(COLLECTION / "records.jsonl") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_real_radiographs_have_the_size_that_their_records_say(collection, every):
    assert len(collection) == 90
    inverted = 0
    for record in collection[::every]:
        path = COLLECTION / record["image"]
        expected = record["height"], record["width"]
        assert image_size(path) == expected, path
        image = read_image(path)
        assert image.shape == (*expected, 3), path
        # None of them is inverted or flat; nearly all are called inverted once they are.
        assert audit_image(image) == [], path
        inverted += bool(audit_image(255 - image))
    assert inverted >= 80 / every
