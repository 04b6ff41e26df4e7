"""The grammar of figures' lines, by hand."""

import numpy as np
import pytest

from cxrjax.evaluation.figure_lines import FigureLine, direction_of, make_figures
from cxrjax.evaluation.figures import NO_FIGURE

SUMS = {name: np.array([float(n)]) for name, n in zip("abcd", (6, 3, 4, 0), strict=True)}


@pytest.mark.parametrize(
    ("value", "paper", "strict", "n"),
    [
        ("a / b", 2, 2, "b"),
        ("2 a - b / b + c over d", 9 / 7, 9 / 7, "d"),
        ("a / <b|c>", 2, 1.5, "c"),
        ("strict: a / c", None, 1.5, "c"),
        ("<none over c|b / a>", np.nan, 0.5, "a"),
        ("a / c <if d|>", np.nan, 1.5, "c"),
        ("precision({a,b}) over c", 6 / 9, 6 / 9, "c"),
        ("mean(a, b, a, c) over a", 1.75, 1.75, "a"),
        ("harmonic_mean(b, a, b, c) over a", 0.6, 0.6, "a"),
        ("a / d", np.nan, np.nan, "d"),
    ],
)
def test_values(value, paper, strict, n):
    made = make_figures([FigureLine("x", value)])
    found = [named["x"].formula(SUMS)[0] if named else None for named in made.values()]
    np.testing.assert_allclose(
        [np.nan if v is None else v for v in found], [paper or np.nan, strict]
    )
    assert made["strict"]["x"].n == n and bool(made["paper"]) == (paper is not None)


def test_lines_have_names_attributes_directions_and_a_denominator():
    lines = [
        FigureLine("f@{1,2}", "a / b over c", "lower", by="view"),
        FigureLine("g/{part}", "{part}/hit / {part}/all where view=lateral", "none"),
    ]
    names = {"part": ["x + y over z", "w"]}
    made = make_figures(lines, {"view": ["PA", None]}, names)
    assert [*made["paper"]] == ["f@1", "f@2", "g/x + y over z", "g/w"]
    assert made["strict"]["by_view/f@2/PA"].within == ("view", "PA")
    assert made["strict"]["g/w"] == NO_FIGURE  # no unit is lateral
    (figure,) = make_figures(lines[1:], {"view": ["lateral"]}, {"part": names["part"][:1]})[
        "strict"
    ].values()
    assert (figure.n, figure.within) == ("x + y over z/all", ("view", "lateral"))
    assert [direction_of(lines, m) for m in ("f@1", "by_view/f@2/PA", "g/w", "h")] == [-1, -1, 0, 1]
    with pytest.raises(ValueError, match="expected NUMERATOR / DENOMINATOR"):
        make_figures([FigureLine("x", "a")])
