"""LLaVA's turns as text, the image before the question.

    llava       USER: IMAGE
                QUESTION ASSISTANT: ANSWER
    llava_med   [INST] IMAGE
                QUESTION [/INST] ANSWER

Forms: the model card of llava-hf/llava-1.5-7b-hf, and Mistral's instructions, in which LLaVA-Med
v1.5 was tuned. Their own code tokenizes what stands before and behind the image apart, and so does
this: `llava_context` up to the image, `question` from there. LLaVA 1.5's own code puts a sentence
about the two speakers before the first turn, which the card leaves out.
"""

from typing import Literal

from cxrjax.errors import UserError
from cxrjax.input_pipeline.tokenizer import Tokenizer

Turns = Literal["llava", "llava_med"]
_MARKS: dict[Turns, tuple[str, str]] = {
    "llava": ("USER: ", " ASSISTANT:"),
    "llava_med": ("[INST] ", " [/INST]"),
}


def llava_context(
    tokenizer: Tokenizer, image: int, turns: Turns
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of what stands before a question, and of what a second image puts in behind the first.

    Args:
        tokenizer: Llama's or Mistral's.
        image: what to put for an image.

    Raises:
        UserError: a tokenizer of another family.
    """
    if not tokenizer.is_llama:
        raise UserError(
            f"{tokenizer.name}: not a tokenizer of Llama's family, which LLaVA's turns are written "
            "in; use the one that belongs to the weights"
        )
    before = (tokenizer.bos_id, *tokenizer.encode(_MARKS[turns][0]), image)
    return before, (*tokenizer.encode("\n"), image)


def question(text: str, turns: Turns) -> str:
    """The text behind the image: the question, and the mark of the model's turn."""
    return f"\n{text.strip()}{_MARKS[turns][1]}"
