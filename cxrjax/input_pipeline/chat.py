"""Conversations as text, in the form of each family's chat template and image processor.

A form is data (`[chat.NAME]` in `cxrjax/models/families/*.toml`). Our decoders take everything up
to the image as the context that all its questions share, so that a conversation is written in two
parts: `contexts` up to there, `ChatForm.question` from there. Tokenized apart they have the ids of
the whole. Weights that come with a template of their own are compared with their family's form when
they are imported (`check_template`).
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from cxrjax.errors import ForeignError, UserError
from cxrjax.family_tables import family_tables
from cxrjax.files import read_json_object, reading
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.untrusted.foreign_files import MIB, read_text
from cxrjax.untrusted.names import shown_value

# Published templates have up to some 20 kB and take milliseconds; tokenizers' settings 1.2 MB.
_MOST_TEMPLATE_BYTES, _MOST_CONFIG_BYTES = MIB, 8 * MIB
_TEMPLATE_SECONDS, _TEMPLATE_MEMORY, _LONGEST_CONVERSATION = 1.0, 200 * MIB, 2_000
# Where a folder keeps its template, in the order in which transformers looks.
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_BOS = "<bos>"


@dataclasses.dataclass(frozen=True)
class ChatForm:
    """A family's marks of a conversation."""

    # `named`, `source`: the family, and the model whose template has this form; "": none has.
    named: str
    source: str
    # `user`, `model`: what begins each side's turns.
    user: str
    model: str
    image: str  # an image as the template writes it
    shown: str = "{}"  # an image as the image processor makes text of it, {} for its tokens
    opening: str = ""  # what stands before the first turn
    # What ends a turn, a newline behind it; "": nothing does, and there is one turn a side.
    end: str = ""
    # What stands behind `model` where the model is to go on; earlier turns are without.
    begun: str = ""
    lead: str = ""  # what stands between an image and a question
    # What stands between a mark and words, where neither an image nor the model's own comes.
    gap: str = ""
    # What stands between two images, where that is not what `shown` says.
    between: str | None = None
    pieces: Sequence[str] = ()  # which the tokenizer must have for an image
    control: str = ""  # a pattern of what texts may not contain; "": they may contain anything
    tokenizer: str = ""  # "llama": it must be of that family
    prompt: str = ""  # the prompt format that writes this form; "": the one of its own name

    def question(self, text: str, history: Sequence[tuple[str, str]] = ()) -> str:
        """Returns the text behind the image: the user's question, and the model's turn begun.

        Args:
            history: (question, answer) of earlier turns; the images stand before the first one.

        Raises:
            UserError: a text contains a control token, or there are earlier turns in a form that
                has none.
        """
        if history and not self.end:
            raise UserError(
                f"has earlier turns, and {self.named}'s prompt formats ask one question; use the "
                "format 'vqa', or leave history out"
            )
        end = f"{self.end}\n" if self.end else ""
        said = "".join(
            f"{self.answer(asked)}{end}{self.model}{self.gap}{self.answer(answered)}{end}"
            f"{self.user}{self.gap}"
            for asked, answered in history
        )
        return f"{self.lead}{said}{self.answer(text)}{end}{self.model}{self.begun}"

    def answer(self, text: str) -> str:
        """Returns the words of one side, without the mark that ends them.

        Raises:
            UserError: they contain a control token.
        """
        found = re.search(self.control, text) if self.control else None
        if found is not None:
            raise UserError(
                f"the text {text[:60]!r} contains {found[0]}, which only the chat format itself "
                "may write; remove it"
            )
        return text.strip()

    def whole(self, text: str, history: Sequence[tuple[str, str]] = ()) -> str:
        """Returns a conversation about an image as the template writes it."""
        return f"{self.opening}{self.user}{self.image}{self.question(text, history)}"


# By name; families give the name of theirs.
CHAT_FORMS = {name: ChatForm(**entry) for name, entry in family_tables("chat").items()}


def contexts(
    form: ChatForm, tokenizer: Tokenizer, image: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns ids of what stands before a question, and of what a second image puts in.

    The first end with the first image and what stands behind it, the others go behind the image.

    Args:
        image: what to put for an image, in place of its tokens.

    Raises:
        UserError: the tokenizer is of another family, or has no such pieces.
    """
    if form.tokenizer == "llama" and not tokenizer.is_llama:
        raise UserError(
            f"{tokenizer.name}: not a tokenizer of Llama's family, which {form.named}'s turns are "
            "written in; use the one that belongs to the weights"
        )
    for piece in form.pieces:
        tokenizer.piece_id(piece)
    before, behind = form.shown.split("{}")
    begins = form.opening.startswith(_BOS) or form.tokenizer == "llama"
    first = form.opening.removeprefix(_BOS) + form.user + before
    between = behind + before if form.between is None else form.between
    return (
        (
            *((tokenizer.bos_id,) if begins else ()),
            *tokenizer.encode(first),
            image,
            *(tokenizer.encode(behind) if behind else ()),
        ),
        (*tokenizer.encode(between), image),
    )


def check_template(folder: Path, form: ChatForm) -> None:
    """Compares the template of a folder of weights, where it has one, with its family's form.

    Raises:
        UserError: the template cannot be read, or it writes a conversation in another form.
    """
    templates = ((folder / name, _template(folder / name)) for name in TEMPLATE_FILES)
    path, template = next((each for each in templates if each[1]), (folder, None))
    if template is None or not form.source:
        return
    history = [("Is there a nodule?", "Yes.")] if form.end else []
    turns = [text for turn in history for text in turn] + ["Where?"]
    messages = [
        {"role": ("user", "assistant")[n % 2], "content": [{"type": "text", "text": text}]}
        for n, text in enumerate(turns)
    ]
    messages[0]["content"] = [{"type": "image"}, *messages[0]["content"]]
    # In a process of its own, since a template is a program.
    from cxrjax.input_pipeline.chat_template import render
    from cxrjax.untrusted.child import run_in_child

    ours = form.whole("Where?", history)
    expected = (
        f"expected {form.named}'s template; the file may be replaced by that of {form.source}, "
        "where the weights were trained in its form"
    )
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
