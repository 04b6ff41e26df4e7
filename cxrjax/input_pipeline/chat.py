"""Gemma 3's, MedGemma's, Gemma 4's and Qwen-VL's conversations as text.

    <bos><start_of_turn>user
    IMAGE QUESTION<end_of_turn>
    <start_of_turn>model
    ANSWER<end_of_turn>

in the form that their chat template and image processor give (google/gemma-3-4b-it;
`Gemma3Processor` in transformers), of Gemma 4's larger sizes (google/gemma-4-31B-it), which an
empty thought keeps from thinking aloud,

    <bos><|turn>user
    IMAGE QUESTION<turn|>
    <|turn>model
    <|channel>thought
    <channel|>ANSWER<turn|>

and of Qwen2.5-VL (Qwen/Qwen2.5-VL-7B-Instruct)

    <|im_start|>system
    You are a helpful assistant.<|im_end|>
    <|im_start|>user
    IMAGE QUESTION<|im_end|>
    <|im_start|>assistant
    ANSWER<|im_end|>

which Qwen3-VL (Qwen/Qwen3-VL-8B-Instruct) writes without the system's turn.

Our decoders take everything up to the image as the context that all its questions share, so that a
conversation is written in two parts: `context_ids` up to there, `question` from there. Tokenized
apart they have the ids of the whole. Weights that come with a template of their own are compared
with this one when they are imported (`check_template`).
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from cxrjax.errors import ForeignError, UserError
from cxrjax.files import read_json_object, reading
from cxrjax.input_pipeline.tokenizer import (
    END_OF_TURN,
    IM_END,
    IM_START,
    IMAGE_SOFT_TOKEN,
    TURN_END,
    Tokenizer,
)
from cxrjax.untrusted.foreign_files import MIB, read_text
from cxrjax.untrusted.names import shown_value

START_OF_TURN = "<start_of_turn>"
START_OF_IMAGE, END_OF_IMAGE = "<start_of_image>", "<end_of_image>"
USER_TURN, _MODEL_TURN = f"{START_OF_TURN}user\n", f"{START_OF_TURN}model\n"
# Gemma 3's template has 2 kB and takes milliseconds; its tokenizer's settings have 1.2 MB.
_MOST_TEMPLATE_BYTES, _MOST_CONFIG_BYTES = MIB, 8 * MIB
_TEMPLATE_SECONDS, _TEMPLATE_MEMORY, _LONGEST_CONVERSATION = 1.0, 200 * MIB, 2_000
# Where a folder keeps its template, in the order in which transformers looks.
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")

_CONTROL = re.compile(
    "|".join((START_OF_TURN, END_OF_TURN, START_OF_IMAGE, END_OF_IMAGE, IMAGE_SOFT_TOKEN))
)
_VISION_START, _VISION_END = "<|vision_start|>", "<|vision_end|>"


@dataclasses.dataclass(frozen=True)
class ChatForm:
    """A family's marks of a conversation.

    Attributes:
        opening: what stands before the first turn.
        user, model: what begins each side's turns.
        end: what ends a turn, a newline behind it.
        begun: what stands behind `model` where the model is to go on; earlier turns are without.
        image: an image as the template writes it.
        control: what texts may not contain.
        named, source: the family, and the model whose template has this form.
    """

    opening: str
    user: str
    model: str
    end: str
    image: str
    control: re.Pattern[str]
    named: str
    source: str
    begun: str = ""

    def question(self, text: str, history: Sequence[tuple[str, str]] = ()) -> str:
        """The text behind the image: the user's question, and the start of the model's turn.

        Args:
            history: (question, answer) of earlier turns; the images stand before the first one.

        Raises:
            UserError: a text contains a control token.
        """
        behind = f"{self.end}\n{self.model}"
        said = "".join(
            f"{self.answer(asked)}{behind}{self.answer(answered)}{self.end}\n{self.user}"
            for asked, answered in history
        )
        return f"{said}{self.answer(text)}{behind}{self.begun}"

    def answer(self, text: str) -> str:
        """The words of one side, without the mark that ends them.

        Raises:
            UserError: it contains a control token.
        """
        found = self.control.search(text)
        if found is not None:
            raise UserError(
                f"the text {text[:60]!r} contains {found[0]}, which only the chat format itself "
                "may write; remove it"
            )
        return text.strip()


GEMMA = ChatForm(
    opening="<bos>",
    user=USER_TURN,
    model=_MODEL_TURN,
    end=END_OF_TURN,
    image=START_OF_IMAGE,
    control=_CONTROL,
    named="Gemma 3",
    source="google/gemma-3-4b-it",
)
GEMMA4 = ChatForm(
    opening="<bos>",
    user="<|turn>user\n",
    model="<|turn>model\n",
    end=TURN_END,
    image="<|image|>",
    control=re.compile(r"<\|[a-z_]+\|?>|<[a-z_]+\|>"),
    named="Gemma 4",
    source="google/gemma-4-31B-it",
    begun="<|channel>thought\n<channel|>",
)
# These sizes begin an answer without a thought, not even an empty one.
GEMMA4_SMALL = dataclasses.replace(
    GEMMA4, begun="", named="Gemma 4 E2B and E4B", source="google/gemma-4-E4B-it"
)
QWEN = ChatForm(
    opening=f"{IM_START}system\nYou are a helpful assistant.{IM_END}\n",
    user=f"{IM_START}user\n",
    model=f"{IM_START}assistant\n",
    end=IM_END,
    image=f"{_VISION_START}<|image_pad|>{_VISION_END}",
    control=re.compile(r"<\|[a-z_]+\|>"),
    named="Qwen2.5-VL",
    source="Qwen/Qwen2.5-VL-7B-Instruct",
)


# Without a system's turn.
QWEN3 = dataclasses.replace(QWEN, opening="", named="Qwen3-VL", source="Qwen/Qwen3-VL-8B-Instruct")


# The processor puts the marks of an image around its tokens.
INTERNVL = dataclasses.replace(
    QWEN3,
    image="<IMG_CONTEXT>\n",
    control=re.compile(r"<\|[a-z_]+\|>|</?img>|<IMG_CONTEXT>"),
    named="InternVL 3",
    source="OpenGVLab/InternVL3-8B-hf",
)


# By the name that a family gives its form; the prompt format that writes it.
FORMS = {
    **{"medgemma": GEMMA, "gemma4": GEMMA4, "gemma4_small": GEMMA4_SMALL},
    **{"qwen": QWEN, "qwen3": QWEN3, "internvl": INTERNVL},
}
PROMPT_OF = {"qwen3": "qwen", "internvl": "qwen", "llava": "llava", "llava_med": "llava_med"} | {
    name: name for name in ("medgemma", "gemma4", "gemma4_small", "qwen")
}


def contexts(
    form: str, tokenizer: Tokenizer, image: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns ids before a question, and those of a second image, in a family's form."""
    if form == "medgemma":
        return context_ids(tokenizer, image), second_image_ids(tokenizer, image)
    if form == "internvl":
        return internvl_context(tokenizer, image)
    if form.startswith("gemma4"):
        return gemma4_context(tokenizer, image)
    if form == "llava" or form == "llava_med":
        from cxrjax.input_pipeline.llava_turns import llava_context

        return llava_context(tokenizer, image, form)  # type: ignore[arg-type]
    return qwen_context(tokenizer, image, FORMS[form])


def internvl_context(tokenizer: Tokenizer, image: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`qwen_context` of InternVL, where a newline stands behind each image."""
    begin, end = (tokenizer.piece_id(piece) for piece in ("<img>", "</img>"))
    newline = tokenizer.encode("\n")
    before = tokenizer.encode(INTERNVL.opening + INTERNVL.user)
    return (*before, begin, image, end, *newline), (end, *newline, begin, image)


def qwen_context(
    tokenizer: Tokenizer, image: int, form: ChatForm = QWEN
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of what stands before a question, and of what a second image puts in behind the first.

    Args:
        tokenizer: Qwen's.
        image: what to put for an image.
        form: of Qwen2.5-VL or Qwen3-VL.

    Raises:
        UserError: the tokenizer has no such pieces.
    """
    begin, end = (tokenizer.piece_id(piece) for piece in (_VISION_START, _VISION_END))
    before = tokenizer.encode(form.opening + form.user)
    return (*before, begin, image, end), (end, begin, image)


def gemma4_context(tokenizer: Tokenizer, image: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`qwen_context` of Gemma 4."""
    begin, end = (tokenizer.piece_id(piece) for piece in ("<|image>", "<image|>"))
    before = tokenizer.encode(GEMMA4.user)
    return (tokenizer.bos_id, *before, begin, image, end), (end, begin, image)


def context_ids(tokenizer: Tokenizer, image: int, images: int = 1) -> tuple[int, ...]:
    """Ids of what stands before a question: all up to the last image and its two newlines.

    Args:
        tokenizer: Gemma 3's.
        image: what to put for an image, in place of its 256 ids.
        images: how many of them follow one another.

    Raises:
        UserError: the tokenizer has no image tokens.
    """
    # The image processor's form of the template's `<start_of_image>`.
    text = USER_TURN + f"\n\n{START_OF_IMAGE}{IMAGE_SOFT_TOKEN}{END_OF_IMAGE}\n\n" * images
    soft_token = tokenizer.piece_id(IMAGE_SOFT_TOKEN)
    ids = tokenizer.encode(text)
    return (tokenizer.bos_id, *(image if i == soft_token else i for i in ids))


def second_image_ids(tokenizer: Tokenizer, image: int) -> tuple[int, ...]:
    """Ids that a second image puts in behind the first: the first one's end, and its own."""
    ids = context_ids(tokenizer, image, images=2)
    first, second = (place for place, token in enumerate(ids) if token == image)
    return ids[first + 1 : second + 1]


def question(text: str, history: Sequence[tuple[str, str]] = ()) -> str:
    """`ChatForm.question` of Gemma 3, behind `context_ids`."""
    return GEMMA.question(text, history)


def answer(text: str) -> str:
    """`ChatForm.answer` of Gemma 3."""
    return GEMMA.answer(text)


def check_template(folder: Path, form: ChatForm = GEMMA) -> None:
    """Compares the template of a folder of weights, where it has one, with this module's form.

    Raises:
        UserError: the template cannot be read, or it writes a conversation in another form.
    """
    templates = ((folder / name, _template(folder / name)) for name in TEMPLATE_FILES)
    path, template = next((each for each in templates if each[1]), (folder, None))
    if template is None:
        return
    asked, answered, last = "Is there a nodule?", "Yes.", "Where?"
    contents = [
        ("user", [{"type": "image"}, {"type": "text", "text": asked}]),
        ("assistant", [{"type": "text", "text": answered}]),
        ("user", [{"type": "text", "text": last}]),
    ]
    messages = [{"role": role, "content": content} for role, content in contents]
    # In a process of its own, since a template is a program.
    from cxrjax.input_pipeline.chat_template import render
    from cxrjax.untrusted.child import run_in_child

    ours = f"{form.opening}{form.user}{form.image}{form.question(last, [(asked, answered)])}"
    expected = f"expected {form.named}'s template, as of {form.source}"
    try:
        _, theirs = run_in_child(
            render,
            template.encode(),
            {"messages": messages},
            seconds=_TEMPLATE_SECONDS,
            memory=_TEMPLATE_MEMORY,
            most=_LONGEST_CONVERSATION,
        )
    except ForeignError as error:
        raise UserError(f"{path}: a chat template that fails: {error}; {expected}") from None
    if theirs != ours.encode():
        written = theirs.decode(errors="replace")
        raise UserError(
            f"{path}: its template writes a conversation as {written!r}, and {form.named}'s form "
            f"is {ours!r}; {expected}"
        )


def _template(path: Path) -> str | None:
    if not path.is_file():
        return None
    if path.suffix == ".jinja":
        with reading(path, "chat template"):
            return read_text(path, _MOST_TEMPLATE_BYTES)
    found = read_json_object(path, _MOST_CONFIG_BYTES).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = [each for each in found if isinstance(each, dict) and each.get("name") == "default"]
        found = named[0].get("template") if named else None
    if found is not None and not isinstance(found, str):
        raise UserError(f"{path}: chat_template is {shown_value(found)}, expected a text")
    return found
