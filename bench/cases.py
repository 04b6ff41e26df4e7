"""Cases of the benchmark: two model shapes of about 45 M parameters, and work for both sides."""

import dataclasses

# Sizes as transformers' configurations name them; 256 image tokens each.
_TEXT = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "head_dim": 64,
    "vocab_size": 8192,
}
_VISION = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "patch_size": 14,
    "projection_dim": 512,
    "vision_use_head": False,
}
SHAPES = {
    "paligemma": {
        "text": _TEXT | {"model_type": "gemma", "num_key_value_heads": 1},
        "vision": _VISION | {"image_size": 224},
    },
    "gemma3": {
        "text": _TEXT
        | {"num_key_value_heads": 4, "query_pre_attn_scalar": 64, "sliding_window": 1024},
        "vision": _VISION | {"image_size": 448},
    },
}
IMAGE_TOKENS = 256
IMAGE_ID, BEGIN_IMAGE_ID, END_IMAGE_ID, BOS_ID, EOS_ID = 8000, 8001, 8002, 2, 1
# Ids of questions and answers come from this range, so that nothing special is among them.
TEXT_IDS = (2000, 7000)
PROMPT_TOKENS = 16
LORA_RANK, LORA_ALPHA = 16, 32.0
LORA_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclasses.dataclass(frozen=True)
class Case:
    """Some images with some questions each, of so many text tokens (prompt and answer)."""

    kind: str  # "train" or "generate"
    images: int
    questions: int
    text_tokens: int

    @property
    def answer_tokens(self) -> int:
        return self.text_tokens - PROMPT_TOKENS

    def bound(self) -> float:
        """Decoder tokens of separate examples over those of shared ones: the most to be gained.

        The tower, which shrinks by the number of questions, is left out.
        """
        apart = self.questions * (IMAGE_TOKENS + self.text_tokens)
        return apart / (IMAGE_TOKENS + self.questions * self.text_tokens)

    def __str__(self) -> str:
        count = "1 question" if self.questions == 1 else f"{self.questions} questions"
        return f"{self.kind}, {self.images} x {count}, {self.text_tokens} text tokens"


CASES = (
    Case("train", 8, 1, 64),
    Case("train", 2, 4, 64),
    Case("train", 1, 11, 64),
    Case("train", 1, 4, 350),
    Case("train", 1, 11, 350),
    Case("generate", 8, 1, PROMPT_TOKENS + 32),
    Case("generate", 1, 11, PROMPT_TOKENS + 32),
)
