"""LLaVA-1.5's boxes: a list of four fractions of the padded square, with two decimals.

    [0.12, 0.30, 0.55, 0.71]    x_min y_min x_max y_max

Written as RadVLM's are, and of another frame: LLaVA-1.5 pads images to a square, centred, before
it looks, and was tuned on boxes of that square (its public training data and its issue tracker; the
paper gives the form alone, arXiv 2310.03744). The padding belongs to the convention, so `geometry`
changes nothing.
"""

from typing import ClassVar

from cxrjax.codecs.frames import Frame, PaddedSquareSteps
from cxrjax.codecs.radvlm import STEPS, RadVlm


class Llava(RadVlm):
    """The `llava` codec. The grid is hundredths of the padded square."""

    name: ClassVar[str] = "llava"
    frame: ClassVar[Frame] = PaddedSquareSteps(STEPS)
