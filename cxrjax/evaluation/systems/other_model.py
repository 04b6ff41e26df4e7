"""Other people's models: flags on how one is asked and read, and the images that it sees."""

import dataclasses
from typing import Any

from cxrjax.codecs import get_codec
from cxrjax.errors import UserError
from cxrjax.evaluation.flags import PredictFlags
from cxrjax.evaluation.systems import systems
from cxrjax.evaluation.systems.stand_in_images import StandInImages
from cxrjax.images.files import AnyFile
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.records import QARecord

MAX_ANSWER_TOKENS = 1000
_STAND_IN_SIZE = (448, 448)  # (height, width) in pixels, of blind and noise images
# Of a question without an answer, beside what the service calls its failures.
UNREADABLE_IMAGE, NOT_ASKED = "unreadable_image", "not_asked"
# Flags of models of ours that say nothing to others.
_OURS = ("prompt", "source", "step", "grammar", "names", "beams", "length_penalty", "best_of")
_THEIRS = ("system", "wording", "codec", "reading", "folder", "base_url", "model")
ANY = "any"  # the system that nothing is known of


@dataclasses.dataclass(frozen=True)
class Setup:
    """Settings of asking and reading a model."""

    system: systems.System
    wording: str
    codec: str | None  # of boxes in its text; None: it writes none
    # 0: the likeliest token at each step; None: the server's default, which may sample.
    temperature: float | None
    max_answer_tokens: int  # thinking included

    @property
    def samples(self) -> bool:
        """Returns whether a second run may answer otherwise."""
        return self.temperature != 0


def read_setup(flags: PredictFlags, runner: str) -> Setup:
    """Reads the setup from flags.

    Raises:
        UserError: an unknown name, a wording that the system lacks, a --runner that cannot run it,
            a number out of range, or flags that are of no use here.
    """
    for name in _OURS:
        if getattr(flags, name, None) is not None:
            raise UserError(f"--{name} is about models of ours, and --runner={runner} runs others")
    name = flags.system or ANY
    system = systems.get_system(name)
    if runner not in system.runners:
        raise UserError(
            f"--system={name}: {system.title} cannot be run by --runner={runner} "
            f"({system.unknown}); use {' or '.join(system.runners)}"
        )
    if flags.reading:
        system = dataclasses.replace(system, reading=flags.reading)
    if flags.codec:
        get_codec(flags.codec)
    wording = flags.wording or systems.default_wording(system)
    systems.check_wording(wording, system)
    temperature = flags.temperature or 0.0
    if temperature < 0:
        raise UserError(f"--temperature={temperature:g}: expected 0 or more")
    if flags.top_k is not None and flags.top_k < 0:
        raise UserError(f"--top_k={flags.top_k}: expected 0 or more")
    if flags.top_p is not None and not 0 < flags.top_p <= 1:
        raise UserError(f"--top_p={flags.top_p:g}: expected above 0 and at most 1")
    narrowed = flags.top_k is not None or flags.top_p is not None
    if narrowed and (runner != "hf" or not temperature):
        raise UserError("--top_k and --top_p are about sampling by --runner=hf; leave them out")
    if flags.no_temperature and flags.temperature is not None:
        raise UserError("--no_temperature and --temperature exclude each other; give one")
    tokens = MAX_ANSWER_TOKENS if flags.max_answer_tokens is None else flags.max_answer_tokens
    if tokens < 1:
        raise UserError(f"--max_answer_tokens={tokens}: expected 1 or more")
    return Setup(
        system,
        wording,
        flags.codec or system.codec,
        None if flags.no_temperature else temperature,
        tokens,
    )


def refuse_flags(flags: PredictFlags) -> None:
    """Refuses flags of other people's models where none is run.

    Raises:
        UserError: one is given.
    """
    for name in _THEIRS:
        if getattr(flags, name, None) is not None:
            raise UserError(f"--{name} is about other people's models; give --runner=openai or hf")


class ShownImages:
    """Images in the place of each question's, by `--image`."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self._seed = seed
        self._stand_ins: StandInImages | None = None

    def of(self, questions: RecordSource, record: QARecord) -> AnyFile:
        """Returns the image of a question.

        Args:
            questions: of the current turn; at first, all of the file or their first turns.

        Raises:
            UserError: only one image, and --image=shuffled.
        """
        if self.kind == "shown":
            return questions.image_of(record)
        if self._stand_ins is None:
            everything = RecordSource(questions.path, questions.image_root)
            self._stand_ins = StandInImages(self.kind, everything, [_STAND_IN_SIZE], self._seed)
        return self._stand_ins.of(record)


def decoding_of(setup: Setup) -> dict[str, Any]:
    """Returns the settings that shape answers, for the note beside the predictions."""
    return {
        "system": setup.system.title,
        "wording": setup.wording,
        "codec": setup.codec,
        "reading": setup.system.reading,
        "temperature": setup.temperature,
        "max_answer_tokens": setup.max_answer_tokens,
    }
