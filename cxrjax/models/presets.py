"""The sizes of every model we build, by name."""

import dataclasses
from typing import Literal

from cxrjax.errors import UserError

NUM_LOC_TOKENS = 1024

# Stands in `VLMConfig.context` for one image: as many tokens as an image has.
IMAGE = -1


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """A SigLIP tower: square images of `image_size` pixels cut into `patch_size` patches.

    `pool` averages squares of so many patches a side before the projector (Gemma 3: 4).
    """

    image_size: int
    patch_size: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    pool: int = 1

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """Tokens of one image in the decoder."""
        return (self.image_size // self.patch_size // self.pool) ** 2


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """A Gemma decoder; the defaults are Gemma 1's, what follows `mlp_dim` are later ones' changes.

    Attributes:
        num_kv_heads: divides `num_heads`; 1 is multi-query attention.
        query_scale: queries are divided by the square root of it; None: of `head_dim`.
        rope_base, rope_scale: of the global layers; positions are divided by `rope_scale`.
        local_rope_base: of the layers with a sliding window; None: `rope_base`.
        window: tokens that a local layer sees, itself included; None: no layer is local.
        global_every: of so many layers the last one is global, the others local.
        attn_softcap, final_softcap: c * tanh(x / c) on attention scores and on logits.
        post_norms: norms also behind attention and MLP, before the residual is added.
        qk_norm: norms on the queries and keys of each head.
        prefix_attention: "full": image and prompt see all of each other (PaliGemma); "causal":
            every token sees the past alone, but images also see all of themselves (Gemma 3).
    """

    vocab_size: int
    width: int
    depth: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    query_scale: float | None = None
    rope_base: float = 10_000.0
    rope_scale: float = 1.0
    local_rope_base: float | None = None
    window: int | None = None
    global_every: int = 1
    attn_softcap: float | None = None
    final_softcap: float | None = None
    post_norms: bool = False
    qk_norm: bool = False
    prefix_attention: Literal["full", "causal"] = "full"

    def is_local(self, layer: int) -> bool:
        """Whether layer number `layer`, from 0, sees only a sliding window."""
        return self.window is not None and (layer + 1) % self.global_every != 0


@dataclasses.dataclass(frozen=True)
class VLMConfig:
    """Tower, projector and decoder, and what the tokenizer's ids mean to them.

    Attributes:
        vision: None for a model of text alone.
        loc_token_start: id of `<loc0000>`; the 1,024 location tokens follow one another.
        context: what stands before the question: token ids, and `IMAGE` for each image.
        projector: "linear" (PaliGemma) or "normed": an RMS norm and a map without bias (Gemma 3).
    """

    vision: VisionConfig | None
    decoder: DecoderConfig
    loc_token_start: int
    context: tuple[int, ...] = (IMAGE,)
    projector: Literal["linear", "normed"] = "linear"

    @property
    def num_context(self) -> int:
        """Length of the context in tokens."""
        image = 0 if self.vision is None else self.vision.num_tokens
        return sum(image if token == IMAGE else 1 for token in self.context)


# PaliGemma's tables have 256,000 rows of Gemma's, 1,024 <loc>, 128 <seg>; the 3B checkpoints as
# published have 64 more, for the <image> token and padding.
_PALIGEMMA_VOCAB, _PALIGEMMA_LOC = 257_216, 256_000

# arXiv 2403.08295, table 1, and the published configuration.
_GEMMA_2B = DecoderConfig(
    vocab_size=_PALIGEMMA_VOCAB,
    width=2048,
    depth=18,
    num_heads=8,
    num_kv_heads=1,
    head_dim=256,
    mlp_dim=16_384,
)

# arXiv 2408.00118, table 1, and the published configurations.
_GEMMA2_2B = DecoderConfig(
    vocab_size=_PALIGEMMA_VOCAB,
    width=2304,
    depth=26,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    mlp_dim=9216,
    query_scale=256.0,
    window=4096,
    global_every=2,
    attn_softcap=50.0,
    final_softcap=30.0,
    post_norms=True,
)
_GEMMA2_9B = dataclasses.replace(
    _GEMMA2_2B,
    vocab_size=_PALIGEMMA_VOCAB - 64,
    width=3584,
    depth=42,
    num_heads=16,
    num_kv_heads=8,
    mlp_dim=14_336,
)
_GEMMA2_27B = dataclasses.replace(
    _GEMMA2_9B,
    width=4608,
    depth=46,
    num_heads=32,
    num_kv_heads=16,
    head_dim=128,
    mlp_dim=36_864,
    query_scale=144.0,
)

# arXiv 2503.19786, table 1 and section 2, and the published configurations.
_GEMMA3_4B = DecoderConfig(
    vocab_size=262_208,
    width=2560,
    depth=34,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    mlp_dim=10_240,
    query_scale=256.0,
    rope_base=1_000_000.0,
    rope_scale=8.0,
    local_rope_base=10_000.0,
    window=1024,
    global_every=6,
    post_norms=True,
    qk_norm=True,
    prefix_attention="causal",
)
_GEMMA3_27B = dataclasses.replace(
    _GEMMA3_4B,
    width=5376,
    depth=62,
    num_heads=32,
    num_kv_heads=16,
    head_dim=128,
    mlp_dim=21_504,
    query_scale=168.0,
)
_GEMMA3_1B = dataclasses.replace(
    _GEMMA3_4B,
    vocab_size=262_144,
    width=1152,
    depth=26,
    num_heads=4,
    num_kv_heads=1,
    mlp_dim=6912,
    rope_scale=1.0,
    window=512,
)
_GEMMA3_270M = dataclasses.replace(_GEMMA3_1B, width=640, depth=18, mlp_dim=2048)

# Gemma 3's tokenizer has no location tokens; <unused99> to <unused1122> carry them
# (cxrjax/input_pipeline/tokenizer.py).
_GEMMA3_LOC = 256_001

# "<bos><start_of_turn>user\n" + "\n\n<start_of_image>" + image + "<end_of_image>\n\n" in the ids
# of Gemma 3's tokenizer, which writes three newlines as one token.
_MEDGEMMA_CONTEXT = (2, 105, 2364, 109, 255_999, IMAGE, 256_000, 108)


def _so400m(image_size: int, pool: int = 1) -> VisionConfig:
    """SigLIP So400m/14 (arXiv 2305.13035, 2303.15343)."""
    return VisionConfig(
        image_size=image_size,
        patch_size=14,
        width=1152,
        depth=27,
        num_heads=16,
        mlp_dim=4304,
        pool=pool,
    )


def _paligemma(decoder: DecoderConfig, image_size: int) -> VLMConfig:
    return VLMConfig(_so400m(image_size), decoder, _PALIGEMMA_LOC)


def _medgemma(decoder: DecoderConfig) -> VLMConfig:
    return VLMConfig(
        _so400m(896, pool=4), decoder, _GEMMA3_LOC, context=_MEDGEMMA_CONTEXT, projector="normed"
    )


def _text_only(decoder: DecoderConfig) -> VLMConfig:
    return VLMConfig(None, decoder, _GEMMA3_LOC, context=())


PRESETS: dict[str, VLMConfig] = {
    # The demo's and the tests' model: the same architecture, small enough for two CPU cores.
    "tiny": VLMConfig(
        vision=VisionConfig(
            image_size=128, patch_size=16, width=128, depth=4, num_heads=4, mlp_dim=512
        ),
        decoder=DecoderConfig(
            vocab_size=2048,
            width=128,
            depth=4,
            num_heads=4,
            num_kv_heads=1,
            head_dim=32,
            mlp_dim=256,
        ),
        loc_token_start=4,
    ),
    "paligemma_3b_224": _paligemma(_GEMMA_2B, 224),
    "paligemma_3b_448": _paligemma(_GEMMA_2B, 448),
    "paligemma_3b_896": _paligemma(_GEMMA_2B, 896),
    "paligemma2_3b_224": _paligemma(_GEMMA2_2B, 224),
    "paligemma2_3b_448": _paligemma(_GEMMA2_2B, 448),
    "paligemma2_3b_896": _paligemma(_GEMMA2_2B, 896),
    "paligemma2_10b_224": _paligemma(_GEMMA2_9B, 224),
    "paligemma2_10b_448": _paligemma(_GEMMA2_9B, 448),
    "paligemma2_10b_896": _paligemma(_GEMMA2_9B, 896),
    "paligemma2_28b_224": _paligemma(_GEMMA2_27B, 224),
    "paligemma2_28b_448": _paligemma(_GEMMA2_27B, 448),
    "paligemma2_28b_896": _paligemma(_GEMMA2_27B, 896),
    # MedGemma has Gemma 3's sizes: 4B and 27B multimodal.
    "medgemma_4b": _medgemma(_GEMMA3_4B),
    "medgemma_27b": _medgemma(_GEMMA3_27B),
    "gemma3_270m": _text_only(_GEMMA3_270M),
    "gemma3_1b": _text_only(_GEMMA3_1B),
}


def check_heads_divide(tensor: int, sizes: VLMConfig) -> None:
    """Each of `tensor` devices must get the same number of whole attention heads.

    Raises:
        UserError: it would not.
    """
    heads = {"decoder": sizes.decoder.num_heads}
    if sizes.vision is not None:
        heads["vision tower"] = sizes.vision.num_heads
    for part, count in heads.items():
        if count % tensor:
            raise UserError(
                f"mesh.tensor={tensor} does not divide the {count} attention heads of the {part}"
            )
