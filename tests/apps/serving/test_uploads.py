"""Pictures that are sent: decoded once for those who ask alike."""

import dataclasses
import io
import threading

import numpy as np
from PIL import Image

from cxrjax.apps.serving import uploads as uploads_module
from cxrjax.apps.serving.uploads import UploadedImage, Uploads, seen_images
from cxrjax.images.files import HeldFile
from cxrjax.input_pipeline.examples import ExampleConfig


def test_each_way_of_decoding_has_its_own_pixels():
    """Of a base and of an adapter beside it, which was trained with the other way."""
    noise = np.random.default_rng(0).integers(0, 256, (512, 512), np.uint8)
    content = io.BytesIO()
    Image.fromarray(noise).save(content, "JPEG")
    file = HeldFile("noise.jpeg", content.getvalue())
    twice = ExampleConfig(128)
    once = dataclasses.replace(twice, jpeg_times=1)
    uploads = Uploads(2**24)
    first, second = (uploads.read(file, how, "a").pixels for how in (twice, once))
    np.testing.assert_array_equal(second, Uploads(2**24).read(file, once, "a").pixels)
    assert (first != second).any()
    assert uploads.read(file, twice, "a").pixels is first


def test_what_is_kept_hangs_on_client_adapter_and_pictures():
    one, other = (
        UploadedImage(name, (8, 8), np.zeros((8, 8, 3), np.uint8)) for name in (b"a", b"b")
    )
    examples = ExampleConfig(8)
    pair = dataclasses.replace(examples, earlier_images=True)
    keys = [
        seen_images([one], examples, "client", 0).key,
        seen_images([other], examples, "client", 0).key,
        seen_images([one], examples, "client", 1).key,
        seen_images([one], examples, "another", 0).key,
        seen_images([one, other], pair, "client", 0).key,
        seen_images([other, one], pair, "client", 0).key,
    ]
    assert len(set(keys)) == 6
    assert seen_images([one], examples, "client", 0).key == keys[0]


def test_decoding_waits_for_the_bytes_of_other_requests(monkeypatch):
    monkeypatch.setattr(uploads_module, "_DECODED_BYTES", 8 * 64 * 64)
    uploads, heard = Uploads(2**20), []
    with uploads._reserved((64, 64)):
        waiting = threading.Thread(target=lambda: _hold(uploads, heard))
        waiting.start()
        waiting.join(0.2)
        assert not heard
    waiting.join(10)
    assert heard == ["decoded"]


def _hold(uploads, heard):
    with uploads._reserved((64, 64)):
        heard.append("decoded")
