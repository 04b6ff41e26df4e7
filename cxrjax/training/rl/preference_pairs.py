"""Pairs of answers, of which the first is preferred: the file that `rl.pairs` names.

JSON Lines, `{"question_id", "better", "worse"}`, the two as the model writes answers, boxes in its
codec. `python -m cxrjax.tools.preferences` makes them of predictions and records.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from cxrjax.errors import UserError
from cxrjax.files import read_json_lines
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.paths import to_path

_HINT = 'expected lines of {"question_id", "better", "worse"}'


class AnswerPair(NamedTuple):
    """Tokens of two answers to a question, with the token that ends each."""

    better: Int[np.ndarray, " n"]
    worse: Int[np.ndarray, " m"]


def read_pair_ids(path: str | Path) -> set[str]:
    """The questions that have a pair.

    Raises:
        UserError: unreadable, or a line that is none; it names the line.
    """
    return {fields["question_id"] for _, fields in _lines(to_path(path))}


def read_pairs(
    path: str | Path, tokenizer: Tokenizer, prompt: str, slots: int
) -> dict[str, AnswerPair]:
    """Question -> its pair, in tokens.

    Args:
        prompt: a key of `PROMPTS`, which says what ends an answer.
        slots: that an answer may take, its end included.

    Raises:
        UserError: as `read_pair_ids`, two pairs of one question, or an answer that is too long.
    """
    ending = PROMPTS[prompt].end
    end = tokenizer.eos_id if ending is None else tokenizer.piece_id(ending)
    found: dict[str, AnswerPair] = {}
    for where, fields in _lines(to_path(path)):
        tokens = [
            np.array([*tokenizer.encode(fields[name]), end], np.int32)
            for name in ("better", "worse")
        ]
        if max(map(len, tokens)) > slots:
            raise UserError(
                f"{where}: an answer of {max(map(len, tokens))} tokens, and "
                f"decoding.max_answer_tokens={slots}; raise it or leave the pair out"
            )
        if fields["question_id"] in found:
            raise UserError(f"{where}: question {fields['question_id']} has a pair already")
        found[fields["question_id"]] = AnswerPair(*tokens)
    return found


def _lines(path: Path) -> list[tuple[str, dict[str, str]]]:
    found = []
    for where, fields in read_json_lines(path, "pairs of answers", _HINT):
        for name in ("question_id", "better", "worse"):
            if not isinstance(fields.get(name), str):
                raise UserError(f"{where}: {name} is {fields.get(name)!r}, expected a text")
        if fields["better"] == fields["worse"]:
            raise UserError(f"{where}: the two answers are the same; leave the pair out")
        found.append((where, fields))
    if not found:
        raise UserError(f"{path}: no pair in it")
    return found
