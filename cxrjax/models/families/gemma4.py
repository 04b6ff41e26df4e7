"""Gemma 4: its larger sizes, the small ones (E2B and E4B), and the 12B, whose tower has no layers.

Sources: transformers' `gemma4` and `gemma4_unified`, and the configurations of google/gemma-4-*.
"""

from collections.abc import Mapping
from typing import Any

from cxrjax.errors import UserError
from cxrjax.models.families.family import (
    MOST_LAYERS,
    Table,
    divides,
    expect,
    global_every,
    key,
    kinds_of_layers,
    make_family,
    ours,
    part,
    table,
    tower_of,
)
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig

# Its images are of any size; ours are of one, which its configuration does not have: of the squares
# of whole tokens the largest within 280 tokens, its default.
_SIDE = 16
# Sizes of global layers by the layer's number, which some versions of transformers write in one
# length.
_OF_LAYER = {"head_dim": key(most=2**12), "num_key_value_heads": key(most=2**10)}
_LAYERS = dict.fromkeys(
    {f"{layer:0{digits}}" for layer in range(MOST_LAYERS) for digits in (1, 2, 3)},
    part(_OF_LAYER, null=False),
)
_TEXT, _VISION = table("gemma4_text"), table("gemma4_vision")


def _settings(name: str, text: str) -> Table:
    """Returns the table of this name, with the sizes of single layers in its decoder's."""
    of_text = table(text) | {"per_layer_config": part(_LAYERS, null=False)}
    return table(name) | {"text_config": part(of_text, default={})}


def _placed(tower: VisionConfig) -> VisionConfig:
    side = tower.image_size // tower.patch_size
    if tower.most_positions < side:
        raise ValueError(f"{tower.most_positions} positions, {side} patches")
    return tower


def _sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    vision, found = values["vision_config"], ours(_VISION, values["vision_config"])
    heads, width = found["num_heads"], found["width"]
    expect(where, "vision_config.num_key_value_heads", vision["num_key_value_heads"], heads)
    if vision["head_dim"] * heads != width:
        raise ValueError(f"{heads} heads of {vision['head_dim']} in a tower of width {width}")
    divides(4, vision["head_dim"], "quarters of the tower's heads")
    size = _SIDE * found["pool"] * found["patch_size"]
    tower = _placed(VisionConfig(**found, image_size=size, **tower_of("gemma4")))
    return VLMConfig(tower, _decoder(values["text_config"], where), -1, projector="unscaled")


def _unified_sizes(values: Mapping[str, Any], where: str) -> VLMConfig:
    vision = values["vision_config"]
    width, unit = vision["mm_embed_dim"], vision["patch_size"] * vision["pooling_kernel_size"]
    expect(where, "vision_config.output_proj_dims", vision["output_proj_dims"], width)
    stated = vision.get("model_patch_size", unit)
    if stated != unit:
        raise ValueError(f"model_patch_size {stated}, {unit} pixels")
    tower = VisionConfig(
        image_size=_SIDE * unit,
        patch_size=unit,
        width=width,
        depth=0,
        num_heads=1,
        mlp_dim=0,
        most_positions=vision["mm_posemb_size"],
        **tower_of("gemma4_unified"),
    )
    sound = values["audio_config"]
    return VLMConfig(
        _placed(tower),
        _decoder(values["text_config"], where),
        -1,
        projector="unscaled",
        audio_width=sound["audio_embed_dim"] if sound else 0,
    )


def _decoder(text: Mapping[str, Any], where: str) -> DecoderConfig:
    found = ours(_TEXT, text)
    given, shared, depth = found["per_layer_width"], found["shared_layers"], found["depth"]
    if given:
        rows = text["vocab_size_per_layer_input"]
        expect(where, "vocab_size_per_layer_input", rows, text["vocab_size"])
    far, near = (text["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding"))
    if far["rope_type"] == "default":  # by which the library reads neither
        far = {**far, "factor": 1.0, "partial_rotary_factor": 1.0}
    layers = list(text["layer_types"] or kinds_of_layers(depth, 6))
    if len(layers) != depth:
        raise ValueError(f"{len(layers)} layer_types for {depth} layers")
    layers[-1] = "full_attention"  # as transformers does, whatever is stated
    every = global_every(layers, where)
    if shared % every or shared >= depth:
        raise UserError(
            f"{where}: num_kv_shared_layers is {shared}; expected a multiple of {every}, after so "
            f"many layers a global one comes, and fewer than all {depth}"
        )
    wide = 2 if text.get("use_double_wide_mlp") else 1
    global_heads = _heads_of_global_layers(text, layers, every)
    in_both = text["use_bidirectional_attention"] == "vision"
    decoder = DecoderConfig(
        **found,
        query_scale=1.0,
        rope_base=float(far["rope_theta"]),
        rope_scale=float(far.get("factor", 1.0)),
        local_rope_base=float(near["rope_theta"]),
        global_every=every,
        post_norms=True,
        qk_norm=True,
        prefix_attention="local" if in_both else "past",
        plain_norms=True,
        global_head_dim=global_heads["head_dim"],
        global_kv_heads=global_heads["num_key_value_heads"],
        global_rope_share=float(far.get("partial_rotary_factor", 1.0)),
        value_norm=True,
        layer_scale=True,
        shared_mlp_dim=wide * text["intermediate_size"] if shared else None,
    )
    for layer in (0, every - 1):
        sizes = decoder.of_layer(layer)
        divides(sizes.num_kv_heads, found["num_heads"], "heads of keys and values")
        divides(2, sizes.head_dim, "halves of a head")
    return decoder


def _heads_of_global_layers(
    text: Mapping[str, Any], layers: list[str], every: int
) -> dict[str, int]:
    """Returns head_dim and key-value heads of the global layers; local ones have the decoder's."""
    usual = {key: text[key] for key in ("head_dim", "num_key_value_heads")}
    if "per_layer_config" in text:
        own = {int(layer): found for layer, found in text["per_layer_config"].items()}
    else:
        of_global = {"head_dim": text["global_head_dim"]}
        heads = text["num_global_key_value_heads"]
        if text["attention_k_eq_v"] and heads is not None:
            of_global["num_key_value_heads"] = heads
        own = {n: of_global for n, kind in enumerate(layers) if kind == "full_attention"}
    found = [usual | own.get(layer, {}) for layer in range(len(layers))]
    is_global = [(layer + 1) % every == 0 for layer in range(len(layers))]
    if every > len(layers) or found != [found[every - 1] if far else usual for far in is_global]:
        raise ValueError(
            f"per_layer_config {own}: expected the same head_dim and num_key_value_heads for every "
            "full_attention layer, and nothing for the others"
        )
    return found[every - 1]


def _left_out(config: VLMConfig) -> dict[str, str]:
    """A tower for sounds with its map, and keys and values of layers that read another's."""
    shared = [n for n in range(config.decoder.depth) if config.decoder.keys_of(n) != n]
    patterns = {"the tower for sounds": r"audio\..*|text\.(audio_tower|embed_audio)\..*"}
    if shared:
        numbers = "|".join(map(str, shared))
        patterns["keys that no layer reads"] = (
            rf"text\.layers\.({numbers})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*"
        )
    return patterns


def _form(values: Mapping[str, Any]) -> str:
    """E2B and E4B alone have an embedding for every layer."""
    return "gemma4_small" if values["text_config"]["hidden_size_per_layer_input"] else "gemma4"


GEMMA4 = make_family(
    "gemma4", _sizes, settings=_settings("gemma4", "gemma4_text"), form=_form, left_out=_left_out
)
GEMMA4_UNIFIED = make_family(
    "gemma4_unified", _unified_sizes, settings=_settings("gemma4_unified", "gemma4_unified_text")
)
