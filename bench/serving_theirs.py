"""The worker of the other side of the server's benchmark: transformers in a loop over batches.

serving_theirs.py make SHAPE DIR    writes a random model and the tokenizer of data/real_base
serving_theirs.py DIR               answers lines of JSON, see `Loop.answer`
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoModelForImageTextToText, SiglipImageProcessorPil

from bench.cases import EOS_ID, IMAGE_ID, IMAGE_TOKENS, SHAPES
from bench.process import reply
from bench.theirs import make_checkpoint

TOKENIZER = Path(__file__).parents[1] / "data" / "real_base" / "tokenizer.model"


class Loop:
    """A loaded model that answers questions, a batch after the other."""

    def __init__(self, directory: str) -> None:
        self._model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
        self._model.eval()
        side = self._model.config.vision_config.image_size
        self._images = SiglipImageProcessorPil(size={"height": side, "width": side})

    def answer(self, asked: list[Any], batch: int, limit: int) -> dict[str, Any]:
        """Answers with the seconds that all of it took, on the wall and of processors.

        Files are opened within them.

        Args:
            asked: file of the image, ids of the prompt. Who asks about one image follow each other.
            batch: questions that go through together.
            limit: tokens of an answer.
        """
        begun, processor, ids = time.perf_counter(), time.process_time(), []
        for start in range(0, len(asked), batch):
            ids += self._batch(asked[start : start + batch], limit)
        seconds = time.perf_counter() - begun, time.process_time() - processor
        return {"seconds": seconds, "ids": ids}

    def _batch(self, asked: list[Any], limit: int) -> list[list[int]]:
        # An image is opened and resized once for all of its questions.
        files = list(dict.fromkeys(file for file, _ in asked))
        opened = [Image.open(file).convert("RGB") for file in files]
        pixels = self._images(images=opened, return_tensors="pt")["pixel_values"]
        before = [IMAGE_ID] * IMAGE_TOKENS
        longest = max(len(prompt) for _, prompt in asked)
        rows, masks = [], []
        for _, prompt in asked:
            row = [*before, *prompt]
            missing = longest - len(prompt)
            rows.append([0] * missing + row)
            masks.append([0] * missing + [1] * len(row))
        tokens = torch.tensor(rows)
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=tokens,
                attention_mask=torch.tensor(masks),
                token_type_ids=torch.zeros_like(tokens),
                pixel_values=pixels[[files.index(file) for file, _ in asked]],
                do_sample=False,
                max_new_tokens=limit,
                eos_token_id=EOS_ID,
                pad_token_id=0,
            )
        return [_until_end(row) for row in output[:, tokens.shape[1] :].numpy()]


def _until_end(row: np.ndarray) -> list[int]:
    ends = np.flatnonzero(row == EOS_ID)
    return row[: ends[0] if len(ends) else None].tolist()


def make(directory: Path) -> None:
    """A random model in a folder that `convert` takes."""
    print(make_checkpoint("paligemma", directory))
    # A piece for each row of the table.
    model = sentencepiece_model_pb2.ModelProto.FromString(TOKENIZER.read_bytes())
    for number in range(len(model.pieces), SHAPES["paligemma"]["text"]["vocab_size"]):
        model.pieces.add(piece=f"<x{number}>", score=-1000.0, type=1)
    (directory / "tokenizer.model").write_bytes(model.SerializeToString())


def main() -> None:
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
        return
    loop = Loop(sys.argv[1])
    reply({})
    for line in sys.stdin:
        reply(loop.answer(**json.loads(line)))


if __name__ == "__main__":
    main()
