"""Gemma 3's and MedGemma's conversations as text.

    <bos><start_of_turn>user
    IMAGE QUESTION<end_of_turn>
    <start_of_turn>model
    ANSWER<end_of_turn>

in the form that their published chat template and image processor give (tokenizer_config.json of
google/gemma-3-4b-it; `Gemma3Processor` in transformers). An image is `<start_of_image>` in the
template's text, and then two newlines, `<start_of_image>`, 256 times `<image_soft_token>`,
`<end_of_image>`, two newlines.

Our decoders take everything up to the image as the context that all its questions share, so that a
conversation is also offered in two parts: `context_ids` up to there, `question` from there.
Tokenized apart they have the ids of the whole.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from cxrjax.errors import UserError
from cxrjax.input_pipeline.tokenizer import END_OF_TURN, IMAGE_SOFT_TOKEN, Tokenizer

START_OF_TURN = "<start_of_turn>"
START_OF_IMAGE, END_OF_IMAGE = "<start_of_image>", "<end_of_image>"
TOKENS_PER_IMAGE = 256
_USER_TURN, _MODEL_TURN = f"{START_OF_TURN}user\n", f"{START_OF_TURN}model\n"

_CONTROL = re.compile(
    "|".join((START_OF_TURN, END_OF_TURN, START_OF_IMAGE, END_OF_IMAGE, IMAGE_SOFT_TOKEN))
)


class ChatTurn(NamedTuple):
    """What one side says.

    Attributes:
        role: who says it.
        parts: texts, and `START_OF_IMAGE` for each image.
    """

    role: Literal["user", "model"]
    parts: tuple[str, ...]


def chat_text(turns: Sequence[ChatTurn], system: str = "", generate: bool = True) -> str:
    """A conversation as the published template writes it, without `<bos>`.

    Args:
        turns: user and model in turn; the user first.
        system: instructions, which Gemma 3 reads at the start of the first turn.
        generate: end with the beginning of the model's turn.

    Raises:
        UserError: a text contains a control token, or the turns do not alternate.
    """
    pieces = []
    for index, turn in enumerate(turns):
        expected = "user" if index % 2 == 0 else "model"
        if turn.role != expected:
            raise UserError(
                f"turn {index} of the conversation is of role {turn.role!r}, expected "
                f"{expected!r}: user and model take turns, the user begins"
            )
        first = _plain(system) + "\n\n" if system and index == 0 else ""
        parts = [part if part == START_OF_IMAGE else _plain(part).strip() for part in turn.parts]
        pieces.append(f"{START_OF_TURN}{turn.role}\n{first}{''.join(parts)}{END_OF_TURN}\n")
    return "".join(pieces) + (_MODEL_TURN if generate else "")


def expand_images(text: str, tokens_per_image: int = TOKENS_PER_IMAGE) -> str:
    """The template's text with each `<start_of_image>` turned into the tokens of an image."""
    image = f"\n\n{START_OF_IMAGE}{IMAGE_SOFT_TOKEN * tokens_per_image}{END_OF_IMAGE}\n\n"
    return text.replace(START_OF_IMAGE, image)


def context_ids(tokenizer: Tokenizer, image: int) -> tuple[int, ...]:
    """Ids of what stands before a question: all up to the image and its two newlines.

    Args:
        tokenizer: Gemma 3's.
        image: what to put for the image, in place of its 256 ids.

    Raises:
        UserError: the tokenizer has no image tokens.
    """
    turn = ChatTurn("user", (START_OF_IMAGE,))
    text = chat_text([turn], generate=False).removesuffix(f"{END_OF_TURN}\n")
    soft_token = tokenizer.piece_id(IMAGE_SOFT_TOKEN)
    ids = tokenizer.encode(expand_images(text, tokens_per_image=1))
    return (tokenizer.bos_id, *(image if i == soft_token else i for i in ids))


def question(text: str, history: Sequence[tuple[str, str]] = ()) -> str:
    """What follows `context_ids`: the user's question, and the beginning of the model's turn.

    Args:
        history: (question, answer) of earlier turns; the images stand before the first question.

    Raises:
        UserError: a text contains a control token.
    """
    turns = []
    for asked, answered in history:
        turns += [ChatTurn("user", (asked,)), ChatTurn("model", (answered,))]
    return chat_text([*turns, ChatTurn("user", (text,))]).removeprefix(_USER_TURN)


def answer(text: str) -> str:
    """What the model says, without the `<end_of_turn>` that ends it.

    Raises:
        UserError: it contains a control token.
    """
    return _plain(text).strip()


def _plain(text: str) -> str:
    found = _CONTROL.search(text)
    if found is not None:
        raise UserError(
            f"the text {text[:60]!r} contains {found[0]}, which only the chat format itself may "
            "write; remove it"
        )
    return text
