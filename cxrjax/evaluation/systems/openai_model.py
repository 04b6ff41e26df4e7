"""Any model behind an OpenAI-compatible server, asked about images that go along in the request.

Answers are kept in a cache file before they are used, so that nothing is asked twice, whatever
happens to the process. A question whose asking fails gets a line all the same: `parse` says why.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.evaluation.flags import PredictFlags
from cxrjax.evaluation.systems import other_model, systems
from cxrjax.evaluation.systems.base import Answer, Line, check_seeds, run_file
from cxrjax.files import write_json
from cxrjax.images.encode import encode_jpeg
from cxrjax.images.files import AnyFile, ImageError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.language_model.client import Client
from cxrjax.language_model.flags import client_from_flags
from cxrjax.language_model.request import EncodedImage, Message, NoAnswer, Request
from cxrjax.records import QARecord

CONTENT = "questions about them"
_USUAL_OUTPUT_TOKENS = 100
_TWO_IMAGES = "The first image is the one asked about, the second is of an earlier study."
# The chat protocol's words for an answer that is not whole.
_CUT, _FILTERED = "length", "content_filter"


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A model behind a server."""

    client: Client  # of the server, with its cache; with `text_only` no images are sent
    setup: other_model.Setup
    images: other_model.ShownImages
    long_side: int = 1024  # pixels of the longer side of images, at most
    logprobs: bool = False

    def requests(
        self, questions: RecordSource, seed: int | None = None
    ) -> Iterator[tuple[QARecord, Request | None]]:
        """Each question with what is sent for it; None where the wording does not fit it."""
        image_path, image = None, None
        own = self.images.kind == "shown"
        for _, record in questions.records():
            path = self.images.of(questions, record)
            if path != image_path:
                image_path, image = path, self._encoded(path)
            text = systems.question_text(record, self.setup.wording, self.setup.system)
            shown: tuple[EncodedImage, ...]
            shown = () if self.client.settings.text_only or image is None else (image,)
            earlier = questions.earlier_of(record)
            if shown and earlier is not None and text is not None:
                shown = (*shown, self._encoded(earlier if own else path))
                text = f"{_TWO_IMAGES} {text}"
            yield record, None if text is None else self._request(record, text, shown, seed)

    def _encoded(self, path: AnyFile) -> EncodedImage:
        load = functools.partial(encode_jpeg, path, self.long_side, self.setup.system.pad_square)
        return EncodedImage(load, "image/jpeg")

    def _request(
        self, record: QARecord, text: str, images: tuple[EncodedImage, ...], seed: int | None
    ) -> Request:
        turns: list[Message] = []
        for asked, answered in systems.earlier_turns(record):
            turns += [Message("user", (asked,)), Message("assistant", (answered,))]
        turns.append(Message("user", (text,)))
        turns[0] = Message("user", (*images, *turns[0].parts))
        return Request(
            tuple(turns),
            None,
            self.setup.max_answer_tokens,
            min(_USUAL_OUTPUT_TOKENS, self.setup.max_answer_tokens),
            seed,
            self.logprobs,
        )

    def answer(self, questions: RecordSource, seed: int | None = None) -> Iterator[Line]:
        """A line for every question, in order; several are asked at once.

        Raises:
            UserError: sending is not allowed, the cost limit is reached, or the server is unusable;
                answers so far are in the cache.
        """
        self.client.datasets = tuple(sorted({r.dataset for _, r in questions.records()}))
        self.client.require_permission(
            CONTENT, (request for _, request in self.requests(questions, seed) if request)
        )
        for _, line in self.client.map(self._ask, self.requests(questions, seed)):
            yield line

    def _ask(self, item: tuple[QARecord, Request | None]) -> Line:
        """Asks one question; runs in a thread."""
        record, request = item
        if request is None:
            return systems.no_answer(record, other_model.NOT_ASKED)
        try:
            completion = self.client.complete(request)
        except NoAnswer as failure:
            return systems.no_answer(record, failure.category)
        except ImageError:
            return systems.no_answer(record, other_model.UNREADABLE_IMAGE)
        failure_of = {_CUT: "truncated", _FILTERED: "refusal"}
        return systems.read_answer(
            record,
            completion.refusal or completion.text,
            self.setup.system.reading,
            self.setup.codec,
            failure="refusal" if completion.refusal else failure_of.get(completion.finish_reason),
            logprob=completion.logprob,
            spelled=systems.spelled_completion(completion),
        )


def start_openai(flags: PredictFlags) -> Callable[[int | None], Answer]:
    """The model that `--base_url` and `--model` name: seed -> what answers.

    What was asked, spent and failed is left beside the predictions, as `.asked.json`.

    Raises:
        UserError: flags that do not go together, or no server, model or cache.
    """
    model = _served_model(flags)

    def sampler(seed: int | None) -> Answer:
        note = run_file(flags.out, seed).with_suffix(".asked.json")
        return functools.partial(_answer_and_note, model, seed, note, collections.Counter())

    return sampler


def _served_model(flags: PredictFlags) -> ServedModel:
    setup = other_model.read_setup(flags, "openai")
    check_seeds(flags.seeds, setup.samples)
    if flags.long_side < 1:
        raise UserError(f"--long_side={flags.long_side}: expected at least 1 pixel")
    # The seeds of a run share one cache, and one account.
    cache = flags.out.with_suffix(".answers.jsonl")
    client = client_from_flags(flags, cache, (), temperature=setup.temperature)
    images = other_model.ShownImages(flags.image, flags.seed or 0)
    return ServedModel(client, setup, images, flags.long_side, flags.logprobs)


def _answer_and_note(
    model: ServedModel,
    seed: int | None,
    note: Path,
    found: collections.Counter[str],
    questions: RecordSource,
) -> Iterable[Line]:
    """The lines; when they end, or the run does, the note. Turns of a dialogue add up."""
    try:
        for line in model.answer(questions, seed):
            found[line["parse"]] += 1
            yield line
    finally:
        settings = model.client.settings
        content: dict[str, Any] = other_model.decoding_of(model.setup) | {
            "model": settings.model,
            "host": settings.host,
            "seed": seed,
            "image": "none" if settings.text_only else model.images.kind,
            "parse": dict(found),
            "account": model.client.account.to_json(),
        }
        write_json(note, content)


def estimate(flags: PredictFlags, questions: RecordSource) -> str:
    """The dry run: what would be sent and cost. Later turns count without their earlier answers."""
    model = _served_model(flags)
    requests = (
        request
        for seed in flags.seeds or (None,)
        for _, request in model.requests(questions, seed)
        if request
    )
    return str(model.client.estimate(requests))
