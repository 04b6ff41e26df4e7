"""Models: presets, the vision-language model, LoRA, and the split into trainable and frozen."""

from cxrjax.models.lora import LoRAConfig, apply_lora
from cxrjax.models.partition import count_parameters, parameter_shapes, partition
from cxrjax.models.presets import NUM_LOC_TOKENS, PRESETS, VLMConfig
from cxrjax.models.vlm import VLM

__all__ = [
    "NUM_LOC_TOKENS",
    "PRESETS",
    "VLM",
    "LoRAConfig",
    "VLMConfig",
    "apply_lora",
    "count_parameters",
    "parameter_shapes",
    "partition",
]
