"""The languages that answers come in, by the name that `decoding.grammar` gives them.

| name         | answers                                                                        |
|--------------|--------------------------------------------------------------------------------|
| `none`       | anything at all                                                                |
| `boxes`      | free text, in which `<loc>` tokens make whole boxes                            |
| `located`    | such text with at least one box                                                |
| `yes_no`     | `yes`, `no`, `Yes`, `No`                                                       |
| `option`     | one of `A` to `D`                                                              |
| `options`    | one or several of them, in order: `A, C`                                       |
| `names`      | one of `decoding.names`                                                        |
| `findings`   | `none`, or a name and its boxes: `ILD <loc..> <loc..>` (prompt format `detect`) |
| `detections` | `none`, or boxes with a name each: `<loc..> ILD ; <loc..> ILD` (PaliGemma's own) |

Where `<loc..>` stands for four location tokens. Texts are spelled in the tokens that the tokenizer
gives them where they stand, so that the model meets the spelling it was trained on.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence

from cxrjax.decoding.grammar import (
    FREE_TEXT,
    BoxTokens,
    Concat,
    Grammar,
    OneOf,
    Part,
    Repeat,
    Tokens,
    compile_grammar,
)
from cxrjax.errors import UserError
from cxrjax.input_pipeline.tokenizer import LOC_PIECES, Tokenizer

OPTIONS = "ABCD"
NO_FINDING = "none"
_BOX = LOC_PIECES[0]  # one token is enough to see how the text around it is spelled


def _texts(tokenizer: Tokenizer, texts: Iterable[str]) -> Part:
    return OneOf(tuple(Tokens(tuple(tokenizer.encode(text))) for text in texts))


def _around_boxes(tokenizer: Tokenizer, text: str) -> list[Tokens]:
    """The text before, between and after boxes; `_BOX` stands for one."""
    pieces: list[list[int]] = [[]]
    for token in tokenizer.encode(text):
        if token == tokenizer.loc_token_start:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [Tokens(tuple(piece)) for piece in pieces]


def _options(tokenizer: Tokenizer, names: Sequence[str]) -> Part:
    some = (itertools.combinations(OPTIONS, n + 1) for n in range(len(OPTIONS)))
    return _texts(tokenizer, (", ".join(chosen) for n in some for chosen in n))


def _findings(tokenizer: Tokenizer, names: Sequence[str]) -> Part:
    forms: list[Part] = []
    for name in names:
        before, between, after = _around_boxes(tokenizer, f"{name} {_BOX} {_BOX}")
        forms.append(Concat((before, BoxTokens(), Repeat(Concat((between, BoxTokens()))), after)))
    return OneOf((_texts(tokenizer, [NO_FINDING]), *forms))


def _detections(tokenizer: Tokenizer, names: Sequence[str]) -> Part:
    between = [_around_boxes(tokenizer, f"{_BOX} {name} ; {_BOX}")[1] for name in names]
    last = [_around_boxes(tokenizer, f"{_BOX} {name}")[1] for name in names]
    more = Repeat(Concat((OneOf(tuple(between)), BoxTokens())))
    return OneOf((_texts(tokenizer, [NO_FINDING]), Concat((BoxTokens(), more, OneOf(tuple(last))))))


_NAMED = {"names": _texts, "findings": _findings, "detections": _detections}
_UNNAMED: dict[str, Callable[[Tokenizer, Sequence[str]], Part]] = {
    "boxes": lambda tokenizer, names: FREE_TEXT,
    "located": lambda tokenizer, names: Concat((FREE_TEXT, BoxTokens(), FREE_TEXT)),
    "yes_no": lambda tokenizer, names: _texts(tokenizer, ("yes", "no", "Yes", "No")),
    "option": lambda tokenizer, names: _texts(tokenizer, OPTIONS),
    "options": _options,
}
NO_GRAMMAR = "none"
ANSWER_FORMS = (NO_GRAMMAR, *_UNNAMED, *_NAMED)
# Those whose answers must hold boxes in location tokens.
LOC_FORMS = ("located", "findings", "detections")


def answer_grammar(form: str, tokenizer: Tokenizer, names: Sequence[str] = ()) -> Grammar | None:
    """The tables of an answer form; None for `none`, which needs no look-up.

    Args:
        form: one of `ANSWER_FORMS`.
        names: of findings, as the model is to write them; `names`, `findings` and `detections`
            need some.

    Raises:
        UserError: no such form, or no names where the form needs them.
    """
    if form == NO_GRAMMAR:
        return None
    if form in _UNNAMED:
        return compile_grammar(_UNNAMED[form](tokenizer, names))
    if form not in _NAMED:
        raise UserError(f"decoding.grammar={form!r}: expected one of {', '.join(ANSWER_FORMS)}")
    if not names or not all(name.strip() for name in names):
        raise UserError(
            f"decoding.grammar={form!r} needs the findings' names, and decoding.names is "
            f"{tuple(names)}; list them there"
        )
    return compile_grammar(_NAMED[form](tokenizer, names))
