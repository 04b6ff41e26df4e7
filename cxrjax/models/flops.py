"""Floating-point operations of a step by formula: XLA counts the body of a loop once.

Matrix products alone, a multiplication and its addition counted as two. What stands beside them
(norms, softmax, dropout, DoRA's norms, the optimiser) is less than a hundredth at these sizes.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from flax import nnx

from cxrjax.models.layers import Linear
from cxrjax.models.partition import parameter_shapes, path_of
from cxrjax.models.presets import NUM_LOC_TOKENS, VLMConfig
from cxrjax.models.vlm import VLM


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The sizes of a batch, all devices and micro-batches together."""

    images: int  # B. questions: Q of each. prefix: P slots. answer: A slots. boxes: K of an answer.
    questions: int
    prefix: int
    answer: int
    boxes: int = 0
    # Text tokens of an image where the padding is left out, else None.
    packed_length: int | None = None
    answer_tokens: int | None = None  # tokens that have logits, of all questions; None: every slot
    from_features: bool = False  # the tower's features are read, and the tower does not run
    two_images: bool = False  # whether a row has room for a second image


@dataclasses.dataclass(frozen=True)
class Flops:
    """The floating-point operations of one step."""

    # `forward`, `backward`: what the model needs; MFU counts these.
    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0  # what is computed again in the backward pass to save memory

    @property
    def model(self) -> float:
        return self.forward + self.backward

    @property
    def computed(self) -> float:
        return self.model + self.recompute

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(
            self.forward + other.forward,
            self.backward + other.backward,
            self.recompute + other.recompute,
        )


def step_flops(
    model: VLM, rules: Sequence[str], shape: BatchShape, *, remat: bool, loc_loss: bool = False
) -> dict[str, Flops]:
    """Operations of a training step by part: vision, projector, decoder, lora, logits.

    Args:
        model: with its adapters; arrays may be abstract.
        rules: what trains, as in `partition`.
        remat: whether layers are computed again in the backward pass.
        loc_loss: whether the `<loc>` logits of the boxes' coordinates are computed beside.

    A product costs as much again for the gradient of its input, where something before it trains,
    and once more for that of its weights, where they train. So a frozen tower has no backward, and
    LoRA saves the gradients of the kernels but not those of their inputs.
    """
    sizes, paths = model.config, parameter_shapes(model)
    trained = [p for p in paths if any(re.search(rule, p) for rule in rules)]

    def trains(*prefixes: str) -> bool:
        return any(path.startswith(prefixes) for path in trained)

    rows, text_rows, length = _sequences(model, shape)
    shown = shape.images * (1 + shape.two_images)
    has_pixels = sizes.vision is not None and not shape.from_features
    images = shown * sizes.vision.num_tiles if has_pixels and sizes.vision is not None else 0
    # What flows backwards through each part: scans treat all of their layers alike.
    vision_backward = trains("vision/") and images > 0
    projector_input = vision_backward or trains("projector_norm/")
    layers = tuple(f"decoder/{name}/" for name in sizes.decoder.stacks())
    decoder_backward = vision_backward or trains(
        "projector", "deepstack/", "decoder/embedder", *layers
    )
    hidden_backward = decoder_backward or trains("decoder/final_norm")
    tokens = {
        "vision": images * (0 if sizes.vision is None else sizes.vision.num_positions),
        "projector": 0 if sizes.vision is None else shown * sizes.vision.num_tokens,
        "decoder": rows * _num_context(sizes, shape) + text_rows * length,
    }
    backwards = {
        "vision": vision_backward,
        "projector": projector_input,
        "deepstack": vision_backward or trains("deepstack/norm/"),
        "decoder": decoder_backward,
    }
    again = {"vision": remat and vision_backward, "decoder": remat and decoder_backward}

    parts: dict[str, Flops] = {}

    def add(part: str, forward: float, gradients: float, recomputed: bool) -> None:
        extra = Flops(forward, gradients * forward, forward if recomputed else 0.0)
        parts[part] = parts.get(part, Flops()) + extra

    for path, module in nnx.iter_modules(model):
        name = path_of(path)
        if not isinstance(module, Linear) or name == "audio":  # which nothing asks
            continue
        part = name.split("/")[0]
        kernel = math.prod(paths[f"{name}/kernel"])
        into = backwards[part.removesuffix("_out")]
        if part == "projector_out":
            part, into = "projector", into or trains("projector/")
        elif part == "deepstack":
            part, into = "projector", into or (name.endswith("/fc2") and trains("deepstack/fc1/"))
        elif name.startswith("vision/layers/") and sizes.vision is not None:
            kernel = kernel * (sizes.vision.depth - sizes.vision.skip_last) // sizes.vision.depth
        count = tokens[part]
        if name.startswith("decoder/shared_"):  # whose context nobody asks
            count = text_rows * length
        gradients = into + (f"{name}/kernel" in trained)
        # Nobody wants a layer's last product again, unless a norm stands behind it.
        last = name.endswith("/fc2") or (
            name.endswith("/down_proj") and not sizes.decoder.post_norms
        )
        repeated = again.get(part, False) and not last
        add(part, 2.0 * count * kernel, gradients, repeated)
        if module.lora is not None:
            branch = sum(math.prod(paths[f"{name}/lora/{m}"]) for m in "ab")
            add("lora", 2.0 * count * branch, 2, repeated)
    for part, operations in _attention(sizes, model.share, shape, images).items():
        add(part, operations, 2 * backwards[part], again[part])

    answer_tokens = shape.answer_tokens
    if answer_tokens is None:
        answer_tokens = shape.images * shape.questions * shape.answer
    width, vocabulary = sizes.decoder.width, sizes.decoder.vocab_size
    gradients = hidden_backward + trains(
        f"decoder/embedder/{'table' if sizes.decoder.tied else 'head'}"
    )
    # The loss takes the gradient together with the logits, and makes nothing again.
    add("logits", 2.0 * answer_tokens * width * vocabulary, gradients, False)
    if loc_loss:
        coordinates = 4 * shape.images * shape.questions * shape.boxes
        add("logits", 2.0 * coordinates * width * NUM_LOC_TOKENS, gradients, False)
    return parts


def total(parts: Mapping[str, Flops]) -> Flops:
    """The sum of what `step_flops` gave."""
    return sum(parts.values(), Flops())


def _sequences(model: VLM, shape: BatchShape) -> tuple[int, int, int]:
    """Rows that have the context, rows of text, and the text's length in each."""
    slots = shape.prefix + shape.answer
    if model.share == "tower":
        rows = shape.images * shape.questions
        return rows, rows, slots
    if shape.packed_length is not None:
        return shape.images, shape.images, shape.packed_length
    return shape.images, shape.images * shape.questions, slots


def _num_context(sizes: VLMConfig, shape: BatchShape) -> int:
    return sizes.num_context + shape.two_images * sizes.num_tokens(sizes.second_image)


def _attention(sizes: VLMConfig, share: str, shape: BatchShape, images: int) -> dict[str, float]:
    """Operations of scores and weighted sums, by part.

    Queries times keys as the sections of attention.py pair them; pairs that a mask takes out are
    counted, as is usual.
    """
    found = {}
    if sizes.vision is not None:
        vision = sizes.vision
        # Places of a window that lie beyond the image's edge are left out.
        near = math.prod(min(vision.window or 0, side) for side in vision.patch_grid)
        layers = range(vision.depth - vision.skip_last)
        keys = sum(near if vision.is_local(n) else vision.num_positions for n in layers)
        found["vision"] = 4.0 * images * vision.num_positions * vision.width * keys
    decoder, context = sizes.decoder, _num_context(sizes, shape)
    text, seen = shape.prefix + shape.answer, context
    rows, questions = shape.images, shape.images * shape.questions
    if share == "tower":
        rows = questions
        seen += shape.prefix if decoder.prefix_attention == "full" else 0
    elif shape.packed_length is not None:
        questions, text = shape.images, shape.packed_length
    of_text = questions * text * (context + text)
    pairs = [
        of_text + (rows * context * seen if decoder.keys_of(n) == n else 0)
        for n in range(decoder.depth)
    ]
    widths = [decoder.num_heads * decoder.of_layer(n).head_dim for n in range(decoder.depth)]
    found["decoder"] = sum(4.0 * n * width for n, width in zip(pairs, widths, strict=True))
    return found
