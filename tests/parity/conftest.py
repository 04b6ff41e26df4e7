"""Small random transformers models of awkward sizes, the same models here, and questions for both.

Made once a session: importing torch and transformers takes longer than all else.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from bench.fuzz.drawn_configs import KINDS, NO_LOC, SIZE, draw_config, draw_storage
from cxrjax.models import VLM
from cxrjax.models.hf_config import read_config
from cxrjax.models.hf_import import (
    make_model,
    open_checkpoint,
    read_parameters,
    with_own_head,
)
from cxrjax.models.hf_layout import vlm_config
from cxrjax.models.partition import path_of
from cxrjax.models.peft import LOC_DELTA, save_peft
from cxrjax.models.presets import CLIP_MEAN, CLIP_STD, IMAGE, IMAGENET_MEAN, IMAGENET_STD
from cxrjax.models.siglip import cut_tiles
from tests.parity.their_masks import as_it_generates

BOS, BEGIN, END, IMAGE_ID, LOC = 2, 1288, 1289, 1290, 100

# Windows are smaller than any of the sequences below, Gemma 4's than an image's tokens; Qwen's are
# of 3 x 3 tokens on an image of 4 x 4: one whole, three that reach over the edge.
MODELS = json.loads(Path(__file__).with_name("small_models.json").read_text())


def _random_hf(kind):
    import torch
    import transformers as t

    torch.manual_seed(KINDS.index(kind))
    made = MODELS[kind]
    return _moved(getattr(t, made["model"])(getattr(t, made["config"])(**made["settings"])))


def _moved(model):
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Large enough that soft-capping, norms and attention all bend what goes through, and
            # that a token is not its own successor for ever (the table is the output layer too).
            scale = 1.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.3
            if model.config.model_type == "qwen3_vl" and "_norm.weight" in name:
                scale = 3.0  # of each head's queries and keys, plainly: scores would be flat
            parameter.copy_(scale * torch.randn_like(parameter))
        # Gemma 4's, which are no parameters.
        for name, buffer in model.named_buffers():
            if name.endswith(("layer_scalar", "std_scale", "std_bias")):
                buffer.copy_(0.7 + 0.3 * torch.rand_like(buffer))
            if name.endswith(("put_min", "put_max")):
                buffer.copy_((0.5 + torch.rand_like(buffer)) * (1 if "max" in name else -1))
    return model.eval()


@dataclasses.dataclass(frozen=True)
class Questions:
    """One question a row, for both sides; the first axis of everything counts rows.

    `context` has `IMAGE` in the place of image tokens.
    """

    images: Any
    context: np.ndarray
    prefix: list[list[int]]
    answers: list[list[int]]
    vision: Any = None

    def _in_patches(self, pixels):
        """As Qwen's image processor: two equal frames, the patches of a token together."""
        p, pool = self.vision.patch_size, self.vision.pool
        rows, columns = self.vision.token_grid
        frames = np.repeat(pixels[:, :, None], 2, axis=2)
        cut = frames.reshape(len(pixels), 3, 2, rows, pool, p, columns, pool, p)
        cut = cut.transpose(0, 3, 6, 4, 7, 1, 2, 5, 8)
        return cut.reshape(len(pixels), self.vision.num_patches, -1)

    def _in_rows(self, pixels):
        """As Gemma 4's image processor: patches from 0 to 1 in reading order, and their places."""
        p = self.vision.patch_size
        n = SIZE // p
        cut = (pixels.transpose(0, 2, 3, 1) / 2 + 0.5).reshape(len(pixels), n, p, n, p, 3)
        places = np.stack(np.divmod(np.arange(n * n), n)[::-1], axis=-1)
        cut = cut.transpose(0, 1, 3, 2, 4, 5).reshape(len(pixels), n * n, -1)
        return cut, np.tile(places, (len(pixels), 1, 1))

    def ours(self):
        """images, prefix_tokens, prefix_mask, answer_tokens, answer_mask; the context by name."""
        rows = len(self.prefix)
        slots = [max(map(len, part)) for part in (self.prefix, self.answers)]
        prefix, answers = (np.zeros((rows, 1, n), np.int32) for n in slots)
        prefix_mask, answer_mask = prefix.astype(bool), answers.astype(bool)
        for row, tokens in enumerate(self.prefix):
            prefix[row, 0, slots[0] - len(tokens) :] = tokens
            prefix_mask[row, 0, slots[0] - len(tokens) :] = True
        for row, tokens in enumerate(self.answers):
            answers[row, 0, : len(tokens)] = tokens
            answer_mask[row, 0, : len(tokens)] = True
        context = {"context_tokens": self.context}
        return (self.images, prefix, prefix_mask, answers, answer_mask), context

    def theirs(self, kind, side="right", answers=True):
        """Arguments of a transformers model, padded on a side; with labels if with answers."""
        import torch

        rows = []
        for context, prefix, answer in zip(self.context, self.prefix, self.answers, strict=True):
            front = [IMAGE_ID if t == IMAGE else int(t) for t in context]
            answer = answer if answers else []
            ids = np.array(front + prefix + answer)
            in_answer = np.arange(len(ids)) >= len(front) + len(prefix)
            types = ids == IMAGE_ID if kind == "gemma3" else in_answer
            rows.append((ids, np.ones_like(ids), types, np.where(in_answer, ids, -100)))
        length = max(len(row[0]) for row in rows)

        def padded(part, value):
            spare = [length - len(row[0]) for row in rows]
            pads = [(0, n) if side == "right" else (n, 0) for n in spare]
            stacked = [
                np.pad(row[part], pad, constant_values=value)
                for row, pad in zip(rows, pads, strict=True)
            ]
            return torch.tensor(np.stack(stacked).astype(np.int64))

        given = {"input_ids": padded(0, 0), "attention_mask": padded(1, 0)}
        if kind != "gemma3_text":
            pixels = self.images.reshape(-1, *self.images.shape[-3:])
            if self.vision.tile_size is not None:
                pixels = np.asarray(cut_tiles(jnp.asarray(pixels), self.vision.tile_size))
            if kind.startswith("llava") or kind in ("qwen", "internvl"):
                own = (IMAGENET_MEAN, IMAGENET_STD) if kind == "internvl" else (CLIP_MEAN, CLIP_STD)
                pixels = ((pixels / 2 + 0.5 - own[0]) / own[1]).astype(np.float32)
            elif kind not in ("qwen3", "smolvlm"):
                # Of padding it does not matter: it is masked.
                given["token_type_ids"] = padded(2, 0)
            pixels = pixels.transpose(0, 3, 1, 2)
            if kind in ("qwen", "qwen3"):
                given["mm_token_type_ids"] = (given["input_ids"] == IMAGE_ID).long()
                pixels = self._in_patches(pixels)
                sides = [1, *self.vision.patch_grid]
                given["image_grid_thw"] = torch.tensor([sides] * len(pixels))
                pixels = pixels.reshape(-1, pixels.shape[-1])
            if kind.startswith("gemma4"):
                del given["token_type_ids"]
                given["mm_token_type_ids"] = (given["input_ids"] == IMAGE_ID).long()
                pixels, places = self._in_rows(pixels)
                given["image_position_ids"] = torch.tensor(places)
            if kind == "smolvlm":  # images by row
                pixels = pixels.reshape(len(rows), -1, *pixels.shape[1:])
            given["pixel_values"] = torch.tensor(np.ascontiguousarray(pixels))
        if answers:
            given["labels"] = padded(3, -100)
        return given


@dataclasses.dataclass(frozen=True)
class Pair:
    """The same model twice."""

    kind: str
    hf: Any
    directory: Any
    model: VLM
    one_image: tuple[int, ...]  # our context with one image

    def questions(self, images=1, seed=0, rows=3):
        rng = np.random.default_rng(seed)
        config = self.model.config
        size = (SIZE, SIZE, 3) if config.vision is None else (*config.vision.image_hw, 3)
        shape = (rows, *size) if images == 1 else (rows, images, *size)
        pixels = rng.uniform(-1, 1, shape).astype(np.float32)
        front = self.one_image
        if images > 1:
            front = (BOS, *(BEGIN, IMAGE, END, 11) * images)
        per_image = 0 if config.vision is None else config.vision.num_tokens
        context = [t for token in front for t in [token] * (per_image if token == IMAGE else 1)]
        lengths = [(3, 5), (6, 2), (4, 6)]
        text = [[rng.integers(3, 1280, n).tolist() for n in lengths[i % 3]] for i in range(rows)]
        return Questions(
            None if config.vision is None else pixels,
            np.tile(np.array(context, np.int32), (rows, 1)),
            [[*prefix] for prefix, _ in text],
            [answer for _, answer in text],
            config.vision,
        )


def _pair(kind, hf, directory):
    if kind == "gemma4_unified":
        hf = as_it_generates(hf)
    one_image = {"gemma3": (BOS, BEGIN, IMAGE, END, 12), "gemma3_text": ()}
    one_image |= dict.fromkeys(("llava", "llava_mistral"), (BOS, 7, 8, IMAGE))
    one_image |= dict.fromkeys(("qwen", "qwen3", "internvl", "smolvlm"), (7, 8, BEGIN, IMAGE, END))
    of_gemma4 = (kind for kind in KINDS if kind.startswith("gemma4"))
    one_image |= dict.fromkeys(of_gemma4, (BOS, BEGIN, IMAGE, END))
    front = one_image.get(kind, (IMAGE,))
    start = -1 if kind in NO_LOC else LOC
    config = vlm_config(read_config(directory), str(directory), start, front)
    if kind.startswith(("qwen", "gemma4")):  # whose configurations have no size of images
        vision = dataclasses.replace(config.vision, image_size=SIZE)
        config = dataclasses.replace(config, vision=vision)
    files = open_checkpoint(directory)
    config = with_own_head(config, files)
    arrays = read_parameters(files, config)
    return Pair(kind, hf, directory, make_model(config, arrays), front)


def copied(model):
    return nnx.merge(*nnx.split(model))


def with_loc(questions):
    """Questions that use some <loc> tokens on both sides."""
    for row, (prefix, answer) in enumerate(zip(questions.prefix, questions.answers, strict=True)):
        prefix[-1] = LOC + 7 * row
        answer[0] = answer[-1] = 300 + row
    return questions


@nnx.jit
def _compute(graphdef, trainable, frozen, given, context):
    """The mean loss of the answers' tokens, their logits, and gradients of the adapters."""

    def loss(trainable):
        model = nnx.merge(graphdef, trainable, frozen)
        logits = model.logits(model(*given, context_tokens=context))
        logprobs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logprobs, given[3][..., None], axis=-1)[..., 0]
        return -jnp.sum(chosen * given[4]) / jnp.sum(given[4]), logits

    (loss, logits), gradients = jax.value_and_grad(loss, has_aux=True)(trainable)
    return loss, logits, gradients


def logits_and_gradients(parts, given, context, directory):
    """`_compute`, with the gradients under PEFT's names, and of added rows under `LOC_DELTA`."""
    loss, logits, gradients = _compute(*parts, given, context)
    model = nnx.merge(parts[0], gradients, parts[2])
    delta = model.decoder.embedder.loc_delta
    model.decoder.embedder.loc_delta = None
    paths = {path_of(path) for path, _ in nnx.to_flat_state(gradients)}
    save_peft(directory, model, whole={path for path in paths if "/lora/" not in path})
    named = load_file(directory / "adapter_model.safetensors")
    return loss, logits, named | ({} if delta is None else {LOC_DELTA: np.asarray(delta[...])})


def check_same_adapter(first, back):
    first, back = (load_file(folder / "adapter_model.safetensors") for folder in (first, back))
    assert back.keys() == first.keys()
    for name in first:
        np.testing.assert_allclose(back[name], first[name], atol=1e-6)


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory):
    """`make_pair(kind, stored="float32") -> Pair`, each made once; both compute in float32."""
    torch = pytest.importorskip("torch")
    made: dict[tuple[str, str], Pair] = {}

    def make(kind, stored="float32"):
        if (kind, stored) not in made:
            hf = _random_hf(kind)
            directory = tmp_path_factory.mktemp(kind)
            hf.to(getattr(torch, stored)).save_pretrained(directory)
            if stored != "float32":  # read again: scales that are no parameters are rounded too
                hf = type(hf).from_pretrained(directory, dtype=torch.float32).eval()
            made[kind, stored] = _pair(kind, hf, directory)
        return made[kind, stored]

    return make


@pytest.fixture(scope="session")
def make_random_pair(tmp_path_factory):
    """`make_random_pair(kind, seed) -> Pair` of a drawn configuration."""
    pytest.importorskip("torch")

    def make(kind, seed):
        import torch
        import transformers as t

        directory = tmp_path_factory.mktemp(f"{kind}_{seed}")
        drawn = draw_config(kind, seed)
        (directory / "config.json").write_text(json.dumps(drawn))
        torch.manual_seed(seed)
        auto = t.AutoModelForImageTextToText if "vision_config" in drawn else t.AutoModelForCausalLM
        hf = _moved(auto.from_config(t.AutoConfig.from_pretrained(directory)).float())
        hf.to(getattr(torch, draw_storage(kind, seed))).save_pretrained(directory)
        hf = auto.from_pretrained(directory, dtype=torch.float32).eval()
        # As it was drawn: the library writes its own reading of it.
        (directory / "config.json").write_text(json.dumps(drawn))
        return _pair(kind, hf, directory)

    return make


@pytest.fixture
def close():
    """`close(ours, theirs, part=1e-4)`: equal but for this part of the largest value."""

    def check(ours, theirs, part=1e-4):
        ours, theirs = np.asarray(jax.device_get(ours)), np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert np.isfinite(ours).all()
        assert np.abs(ours - theirs).max() <= part * np.abs(theirs).max()

    return check


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory):
    """`bert_folder(words, kind="bert")`: a tiny random encoder that knows these words."""

    def make(words, kind="bert"):
        import torch
        import transformers as t
        from tokenizers import Tokenizer, models, pre_tokenizers, processors

        folder = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        sizes = {
            "hidden_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 3,
            "intermediate_size": 24,
            "max_position_embeddings": 40,
        }
        vocabulary = {w: i for i, w in enumerate(["<s>", "<pad>", "</s>", "<unk>", *words])}
        config = t.BertConfig if kind == "bert" else t.RobertaConfig
        model = t.BertModel if kind == "bert" else t.RobertaModel
        model(config(vocab_size=len(vocabulary), pad_token_id=1, **sizes)).save_pretrained(folder)
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        t.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            cls_token="<s>",
            sep_token="</s>",
            pad_token="<pad>",
            unk_token="<unk>",
            model_max_length=38,
        ).save_pretrained(folder)
        return folder

    return make
