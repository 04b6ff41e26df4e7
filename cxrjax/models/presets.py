"""The sizes of every model we build, by name."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """A SigLIP tower: square images of `image_size` pixels cut into `patch_size` patches."""

    image_size: int
    patch_size: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int

    @property
    def num_tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """A Gemma 1 decoder. `num_kv_heads` divides `num_heads`; 1 is multi-query attention."""

    vocab_size: int
    width: int
    depth: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    rope_base: float = 10_000.0


@dataclasses.dataclass(frozen=True)
class VLMConfig:
    """Tower, projector and decoder, and where the tokenizer puts `<loc0000>`.

    The 1,024 location tokens have consecutive ids from `loc_token_start`.
    """

    vision: VisionConfig
    decoder: DecoderConfig
    loc_token_start: int


NUM_LOC_TOKENS = 1024

# arXiv 2407.07726 section 3.1 and the published configurations: SigLIP So400m/14, Gemma 1 2B,
# and a vocabulary of 256,000 + 1,024 <loc> + 128 <seg>.
_GEMMA_2B = DecoderConfig(
    vocab_size=257_152,
    width=2048,
    depth=18,
    num_heads=8,
    num_kv_heads=1,
    head_dim=256,
    mlp_dim=16_384,
)


def _so400m(image_size: int) -> VisionConfig:
    return VisionConfig(
        image_size=image_size, patch_size=14, width=1152, depth=27, num_heads=16, mlp_dim=4304
    )


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
    "paligemma_3b_224": VLMConfig(_so400m(224), _GEMMA_2B, loc_token_start=256_000),
    "paligemma_3b_448": VLMConfig(_so400m(448), _GEMMA_2B, loc_token_start=256_000),
    "paligemma_3b_896": VLMConfig(_so400m(896), _GEMMA_2B, loc_token_start=256_000),
}
