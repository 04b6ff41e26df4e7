"""Gemini's boxes: JSON as MedGemma 1.5 writes it, in thousandths of the image itself.

    ```json[{"box_2d":[457,337,610,807],"label":"Cardiomegaly"}]```    y_min x_min y_max x_max

Grammar as in `medgemma_json`; the frame is the image as it is, without padding (Gemini API's
documentation of bounding boxes). `geometry` changes nothing.
"""

from typing import ClassVar

from cxrjax.codecs.frames import Frame, ImageSteps
from cxrjax.codecs.medgemma_json import LARGEST, MedGemmaJson


class GeminiJson(MedGemmaJson):
    """The `gemini_json` codec. The grid is thousandths of the image, its far edges included."""

    name: ClassVar[str] = "gemini_json"
    frame: ClassVar[Frame] = ImageSteps(LARGEST)
