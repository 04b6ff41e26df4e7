"""States how often the readers err, beside every table that rests on them."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cxrjax.files import read_packaged

DATA = Path(__file__).with_name("reference") / "error_rates.toml"


class ReadingErrors(NamedTuple):
    """Errors on a file of sentences that nobody tuned the reader on.

    Attributes:
        file: its name, without `_held_out`.
        wrong: what is read (`read`: all of the sentence; `status`; `side`; `certainty`;
            `turned_round`) -> wrong ones, of how many, and the ends of the 95 % interval.
    """

    file: str
    sentences: int
    wrong: Mapping[str, tuple[int, int, float, float]]


@functools.cache
def load_error_rates() -> Mapping[str, ReadingErrors]:
    """The figures in the package by file; `python -m bench.readers --write` keeps them."""
    found = read_packaged(str(__package__), "reference/error_rates.toml").get("files", {})
    return {
        name: ReadingErrors(name, fields.pop("sentences"), {k: tuple(v) for k, v in fields.items()})
        for name, fields in ((name, dict(fields)) for name, fields in found.items())
    }


def about_reading(file: str) -> str:
    """Returns a sentence on how often answers or reports are misread.

    Args:
        file: `answers_en`, `answers_vi`, `openi_en`, `hard_en` or `sentences_vi`.
    """
    what = "answers" if file.startswith("answers") else "report sentences"
    opening = f"{what[0].upper()}{what[1:]} are read by rules; "
    measured = load_error_rates().get(file)
    if measured is None:
        return f"{opening}how often wrongly has not been measured."
    of_answers = what == "answers"
    wrong, total, low, high = measured.wrong["read" if of_answers else "status"]
    rate = f"{100 * wrong / total:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    share = f"{rate} are" if of_answers else f"the status of {rate} of {total:,} findings is"
    return (
        f"{opening}on {measured.sentences:,} that nobody tuned them on, {share} read wrongly, "
        f"{measured.wrong['turned_round'][0] or 'none'} turned round."
    )
