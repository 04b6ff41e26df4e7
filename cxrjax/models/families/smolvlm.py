"""SmolVLM (arXiv 2504.05299), transformers' Idefics 3: SigLIP, pixel shuffle, and Llama.

An image is one frame, as its processor makes with `do_image_splitting` false; cut into tiles it is
refused.
"""

from collections.abc import Mapping
from typing import Any

from cxrjax.models.families import parts
from cxrjax.models.families.family import Family, key, notes, part, same_tie
from cxrjax.models.presets import VLMConfig

# Of the code that trained it; transformers reads none.
_TRAINING = {
    **notes(
        *("_flash_attn_2_enabled", "neftune_noise_alpha", "perceiver_config", "is_llama_config"),
        *("pixel_shuffle_factor", "transformers.js_config", "use_reentrant_checkpointing"),
    ),
    **dict.fromkeys(("qk_layer_norms", "use_resampler", "rope_interleaved"), key(False)),
}
_TEXT = parts.llama_part(
    **_TRAINING,
    **notes("_scaling", "additional_vocab_size"),
    tie_word_embeddings=key(True, False, None),
)
_VISION = {
    **parts.SIGLIP,
    **parts.tower_keys(1152, 3072, 12, 16),
    **parts.square_keys(224, 32),
    "model_type": key("idefics3", "idefics3_vision"),
    "tie_word_embeddings": key(True, False, None),
    **dict.fromkeys(("max_image_size", "size"), part(notes("longest_edge"))),
    "use_base_siglip": key(True, False),
}
_SETTINGS = {
    **parts.COMMON,
    **_TRAINING,
    "tie_word_embeddings": key(True, False, default=False),
    "text_config": _TEXT,
    "vision_config": part(_VISION),
    "scale_factor": key(most=2**6, default=2),
    **notes("image_token_id", "vocab_size", "_pad_token_id"),
}


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    pool = values["scale_factor"]
    tower = parts.tower(_VISION, values["vision_config"], pool=pool, side_by_side=True)
    side = tower.image_size // tower.patch_size
    if side % pool:
        raise ValueError(f"scale_factor {pool} of {side} x {side} patches")
    tied = bool(values["tie_word_embeddings"])
    decoder = parts.llama(values["text_config"], where, tied=tied)
    return VLMConfig(tower, decoder, -1, projector="plain")


SMOLVLM = Family(
    kind="idefics3",
    named="SmolVLM",
    settings=_SETTINGS,
    sizes=_sizes,
    tensors=("encoder", "siglip", "idefics3"),
    images={
        **parts.IMAGES,
        **parts.PLACED,
        "do_image_splitting": key(False),
        **notes("max_image_size"),
    },
    processor=("image_seq_len", "chat_template"),
    form=lambda values: "smolvlm",
    resize="smolvlm",
    prepare=same_tie,
)
