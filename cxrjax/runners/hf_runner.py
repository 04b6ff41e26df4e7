"""Other people's models in a folder on this machine, as a runner (`cxrjax.runners.hf_model`).

Answers are kept in a cache file before they are used, so that an interrupted run goes on where it
was. A question that cannot be asked gets a line all the same: `parse` says why.
"""

import argparse
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence

import PIL.Image

from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.images.encode import pad_square
from cxrjax.images.files import AnyFile, ImageError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.language_model import AnswerCache, Completion
from cxrjax.records import QARecord
from cxrjax.runners.base import Answer, Line
from cxrjax.runners.hf_model import FolderModel, Sampling
from cxrjax.runners.other_model import NOT_ASKED, UNREADABLE_IMAGE, Setup, ShownImages, read_setup
from cxrjax.runners.readings import earlier_turns, no_answer, question_text, read_answer
from cxrjax.runners.seeds import check_seeds


class FolderRunner:
    """A folder's model as a runner, with its cache of answers."""

    def __init__(
        self,
        model: FolderModel,
        setup: Setup,
        images: ShownImages,
        cache: AnswerCache,
        batch: int,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> None:
        self._model = model
        self._setup = setup
        self._images = images
        self._cache = cache
        self._batch = batch
        self._top = (top_k, top_p)

    def answer(self, questions: RecordSource, seed: int | None = None) -> Iterator[Line]:
        """A line for every question, in order."""
        sampling = Sampling(self._setup.temperature or 0.0, *self._top, seed or 0)
        records = (record for _, record in questions.records())
        while batch := list(itertools.islice(records, self._batch)):
            yield from self._answer_batch(questions, batch, sampling)

    def _answer_batch(
        self, questions: RecordSource, records: list[QARecord], sampling: Sampling
    ) -> Iterator[Line]:
        setup = self._setup
        lines: dict[str, Line] = {}
        asked: list[tuple[QARecord, str, list[tuple[str, str]], PIL.Image.Image]] = []
        for record in records:
            text = question_text(record, setup.wording, setup.system)
            if text is None:
                lines[record.question_id] = no_answer(record, NOT_ASKED)
                continue
            turns = [*earlier_turns(record), (text, "")]
            try:
                picture = _read_picture(self._images.of(questions, record), setup.system.pad_square)
            except ImageError:
                lines[record.question_id] = no_answer(record, UNREADABLE_IMAGE)
                continue
            key = self._key(turns, picture, sampling)
            kept = self._cache.get(key)
            if kept is None:
                asked.append((record, key, turns, picture))
            else:
                lines[record.question_id] = self._line(record, kept)
        if asked:
            written = self._model.write(
                [turns for _, _, turns, _ in asked],
                [picture for *_, picture in asked],
                setup.system.template,
                setup.max_answer_tokens,
                # Another for each batch, and the same when the run is repeated.
                sampling._replace(seed=_batch_seed(sampling.seed, asked[0][1])),
            )
            for (record, key, _, _), answer in zip(asked, written, strict=True):
                completion = Completion(
                    answer.text,
                    "stop" if answer.ended else "length",
                    None,
                    self._model.fingerprint,
                    None,
                    answer.tokens,
                    answer.logprob,
                )
                self._cache.put(key, completion)
                lines[record.question_id] = self._line(record, completion)
        for record in records:
            yield lines[record.question_id]

    def _line(self, record: QARecord, written: Completion) -> Line:
        logprob, tokens = written.logprob or 0.0, written.output_tokens or 1
        return read_answer(
            record,
            written.text,
            self._setup.system.reading,
            self._setup.codec,
            failure="truncated" if written.finish_reason == "length" else None,
            logprob=written.logprob,
            # The mean probability of a token, geometric: which of them are a box's is not known.
            box_score=math.exp(logprob / tokens),
        )

    def _key(
        self, turns: Sequence[tuple[str, str]], picture: PIL.Image.Image, sampling: Sampling
    ) -> str:
        content = [
            self._model.fingerprint,
            turns,
            self._setup.system.template,
            hashlib.sha256(picture.tobytes()).hexdigest(),
            picture.size,
            self._setup.max_answer_tokens,
            # A greedy answer is the same for all seeds.
            sampling if sampling.temperature > 0 else None,
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _batch_seed(seed: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}/sampling".encode()).digest()[:4])


def _read_picture(path: AnyFile, square: bool) -> PIL.Image.Image:
    pixels = read_image(path)
    return PIL.Image.fromarray(pad_square(pixels) if square else pixels)


def start_hf(flags: argparse.Namespace) -> Callable[[int | None], Answer]:
    """The model of `--folder`: seed -> what answers.

    Raises:
        UserError: flags that do not go together, or no such model.
    """
    setup = read_setup(flags, "hf")
    if flags.no_temperature:
        raise UserError("--no_temperature is about servers; give --temperature")
    if flags.images_per_batch < 1:
        raise UserError(f"--images_per_batch={flags.images_per_batch}: expected at least 1")
    check_seeds(flags.seeds, setup.samples)
    cache = AnswerCache(flags.cache or flags.out.with_suffix(".answers.jsonl"))
    runner = FolderRunner(
        FolderModel(flags.folder),
        setup,
        ShownImages(flags.image, flags.seed or 0),
        cache,
        flags.images_per_batch,
        flags.top_k or 0,
        1.0 if flags.top_p is None else flags.top_p,
    )
    return lambda seed: functools.partial(runner.answer, seed=seed)
