"""A side of the benchmark of input pipelines: from files to normalised batches.

    python bench/input_side.py {ours,ours_once,ours_kept,torchvision,pil} DATA

Ours is the loader of training, with its questions in tokens, and the normalisation of the model,
which runs where the model does; `ours_once` has `data.jpeg_decoding='once'`; `ours_kept` reads
images that were prepared before (data.image_cache). The other is torch's DataLoader with the image
processor of SigLIP (PaliGemma's too) in transformers, of one of its two backends, without any
text. All of it in one process, torch with one thread.
"""

import importlib.util
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.input_data import QUESTIONS
from bench.process import HERE, reply
from cxrjax.input_pipeline.sources import open_tfds
from cxrjax.input_pipeline.stored_images import StoredImages

BATCH = 8
TOKENIZER = HERE.parent / "data" / "demo_base" / "tokenizer.model"


class Ours:
    def __init__(self, data: Path, kept: bool, jpeg_times: int) -> None:
        self.data = data
        self.kept = kept
        self.jpeg_times = jpeg_times

    def batches(self, source: str, size: int) -> Iterator[np.ndarray]:
        import jax
        import jax.numpy as jnp

        from cxrjax.input_pipeline.caches import ImageCache
        from cxrjax.input_pipeline.examples import ExampleConfig, load_image
        from cxrjax.input_pipeline.loader import single_source, train_loader
        from cxrjax.input_pipeline.sources import RecordSource
        from cxrjax.input_pipeline.tokenizer import load_tokenizer
        from cxrjax.models.siglip import normalize_images

        normalize = jax.jit(normalize_images, static_argnums=1)
        folder = self.data / source
        if source == "array_record":
            records = open_tfds(folder, "train", 1)
        else:
            records = RecordSource(folder / "records" / "train.jsonl", folder, 1)
        cache = ImageCache(self.data / "kept", size, "resize") if self.kept else None
        config = ExampleConfig(
            size,
            prefix_buckets=(32,),
            answer_buckets=(32,),
            image_cache=cache,
            jpeg_times=self.jpeg_times,
        )
        if self.kept:
            for element in range(0, len(records), QUESTIONS):
                load_image(records[element].image_path, config)
        tokenizer = load_tokenizer(TOKENIZER)
        for loaded in train_loader(
            single_source(records, config), tokenizer, global_batch_size=BATCH, seed=0
        ):
            assert not loaded.problems
            yield normalize(loaded.batch.images, jnp.float32).block_until_ready()

    def picture(self, file: Path, size: int) -> np.ndarray:
        from cxrjax.input_pipeline.examples import ExampleConfig, load_image

        config = ExampleConfig(size, jpeg_times=self.jpeg_times)
        return load_image(file, config)[..., 0] / 127.5 - 1


class Theirs:
    def __init__(self, data: Path, backend: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.data = data
        if importlib.util.find_spec("torchvision"):
            import_torchvision()  # transformers does, whichever backend is used
        if backend == "torchvision":
            from transformers import SiglipImageProcessor as Processor
        else:
            from transformers import SiglipImageProcessorPil as Processor
        self.processors = {s: Processor(size={"height": s, "width": s}) for s in (224, 448)}

    def batches(self, source: str, size: int) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        images: list[Any]
        if source == "array_record":
            store = StoredImages(self.data / source, "train")
            images = [(store, number) for number in range(len(store._images))]
        else:
            images = sorted((self.data / source / "images").iterdir())
        processor = self.processors[size]
        loader = DataLoader(
            Pictures(images * QUESTIONS),
            batch_size=BATCH,
            shuffle=True,
            drop_last=True,
            collate_fn=lambda rows: processor(images=rows, return_tensors="pt")["pixel_values"],
        )
        while True:
            yield from loader

    def picture(self, file: Path, size: int) -> np.ndarray:
        images = self.processors[size](images=[Pictures([file])[0]], return_tensors="pt")
        return images["pixel_values"][0, 0].numpy()


class Pictures:
    """A torch data set of PIL images, as tutorials write it."""

    def __init__(self, images: list[Any]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Any:
        from PIL import Image

        image = self.images[number]
        if isinstance(image, tuple):
            store, position = image
            return Image.open(io.BytesIO(store.read(position))).convert("RGB")
        if image.suffix == ".dcm":
            return Image.fromarray(read_dicom(image)).convert("RGB")
        return Image.open(image).convert("RGB")


def read_dicom(file: Path) -> np.ndarray:
    """Reads an image by pydicom's own functions: window applied, 8 bits."""
    import pydicom
    from pydicom.pixels import apply_modality_lut, apply_windowing

    dataset = pydicom.dcmread(file)
    shown = apply_windowing(apply_modality_lut(dataset.pixel_array, dataset), dataset)
    return (shown * (255 / (2**dataset.BitsStored - 1))).round().astype(np.uint8)


def import_torchvision() -> None:
    """Also a build for another torch: its compiled operations are not used here."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        global _LIBRARY
        _LIBRARY = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        import torchvision  # noqa: F401


def main(name: str, data: Path) -> None:
    side: Ours | Theirs
    if name.startswith("ours"):
        side = Ours(data, name == "ours_kept", 1 if name == "ours_once" else 2)
    else:
        side = Theirs(data, name)
    open_batches: dict[tuple[str, int], Iterator[Any]] = {}
    reply({})
    for line in sys.stdin:
        asked = json.loads(line)
        if "file" in asked:
            picture = side.picture(Path(asked["file"]), asked["size"])
            reply({"picture": np.round(picture.astype(float), 4).tolist()})
            continue
        key = (asked["source"], asked["size"])
        batches = open_batches.setdefault(key, side.batches(*key))
        processor, wall = time.process_time(), time.perf_counter()
        for _ in range(asked["batches"]):
            shape = next(batches).shape
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
        count = asked["batches"] * BATCH
        reply({"cpu": processor / count, "wall": wall / count, "shape": list(shape)})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
