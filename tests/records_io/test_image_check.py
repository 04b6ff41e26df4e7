"""Images are decoded once, however often a build is begun."""

import os

import numpy as np
import PIL.Image
import pytest

from cxrjax.errors import UserError
from cxrjax.records_io import image_check
from cxrjax.records_io.image_check import CHECKS_FILE, check_images
from cxrjax.records_io.quality import QualityLog


@pytest.fixture
def paths(tmp_path):
    """Three pictures, a broken one and one that is not there."""
    found = [tmp_path / f"{name}.png" for name in "abc"]
    for number, path in enumerate(found):
        ramp = np.linspace(0, 255, 40 * (30 + number)).reshape(30 + number, 40)
        PIL.Image.fromarray(ramp.astype(np.uint8)).save(path)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    return [*found, tmp_path / "broken.png", tmp_path / "gone.png"]


@pytest.fixture
def decoded(monkeypatch):
    """The names of files that were looked at; raises at the one called `decoded.stop`."""

    class Decoded(list):
        stop = None

    names, check = Decoded(), image_check._check

    def counting(path):
        if path.name == names.stop:
            raise KeyboardInterrupt
        names.append(path.name)
        return check(path)

    monkeypatch.setattr(image_check, "_check", counting)
    return names


def test_a_second_build_decodes_what_has_changed(paths, decoded, tmp_path):
    out = tmp_path / "out"
    quality, again = QualityLog(), QualityLog()
    first = check_images(paths, quality, out)
    assert first[paths[1]].image_hw == (31, 40)
    assert first[paths[3]].reason == "unreadable_image"
    assert first[paths[4]].reason == "missing_image"
    decoded.clear()
    assert check_images(paths, again, out) == first
    assert decoded == ["gone.png"]  # perhaps it has come
    assert (again.examined, again.warnings) == (quality.examined, quality.warnings)
    decoded.clear()
    PIL.Image.fromarray(np.zeros((50, 60), np.uint8)).save(paths[0])
    assert check_images(paths[:2], QualityLog(), out)[paths[0]].image_hw == (50, 60)
    assert decoded == ["a.png"]


def test_an_interrupted_build_goes_on(paths, decoded, tmp_path):
    out = tmp_path / "out"
    decoded.stop = "c.png"
    with pytest.raises(KeyboardInterrupt):
        check_images(paths, QualityLog(), out)
    assert decoded == ["a.png", "b.png", "broken.png"]
    # A line that was cut off while it was written is decoded again, and spoils no other.
    file = out / CHECKS_FILE
    os.truncate(file, file.stat().st_size - 5)
    decoded.stop = None
    decoded.clear()
    found = check_images(paths, QualityLog(), out)
    assert decoded == ["broken.png", "c.png", "gone.png"]
    assert found[paths[2]].image_hw == (32, 40)
    decoded.clear()
    assert check_images(paths, QualityLog(), out) == found
    assert decoded == ["gone.png"]


def test_a_folder_that_cannot_be_written_is_told(paths, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        check_images(paths, QualityLog(), tmp_path / "file" / "out")
