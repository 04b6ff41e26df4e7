"""Questions in, predictions out: the lines that `predict` writes and `score` reads."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from cxrjax.codecs import get_codec
from cxrjax.codecs.tokens import NUM_BINS
from cxrjax.decoding import confidence
from cxrjax.decoding.generate import Generator
from cxrjax.distributed import hosts
from cxrjax.distributed.meshes import fetch_whole, host_rows, put_batch
from cxrjax.images.geometry import Geometry
from cxrjax.input_pipeline.batch import Batch, BatchProblem
from cxrjax.input_pipeline.examples import ExampleConfig, image_geometry
from cxrjax.input_pipeline.loader import eval_loader
from cxrjax.input_pipeline.prompts import PROMPTS, REASONING
from cxrjax.input_pipeline.sources import QuestionSource
from cxrjax.input_pipeline.tokenizer import Tokenizer
from cxrjax.models.vlm import context_of_two
from cxrjax.progress import waiting
from cxrjax.records import QARecord


class TokenAnswer(NamedTuple):
    """A model's answer to a question, in tokens."""

    record: QARecord
    tokens: Int[np.ndarray, " A"]  # ids, the one that ends the answer included, then zeros, [A]
    logprobs: Float[np.ndarray, " A"]  # natural log-probability of each, zeros after the end, [A]
    # Of the words that the generator watches, in each token's place, [A, W].
    words: Float[np.ndarray, "A W"] | None = None
    # Of each location token's distribution, as of `Generation`, [A, M].
    quantiles: Int[np.ndarray, "A M"] | None = None


def predict_questions(
    generator: Generator,
    source: QuestionSource,
    tokenizer: Tokenizer,
    config: ExampleConfig,
    *,
    images_per_batch: int,
) -> Iterator[dict[str, Any]]:
    """One prediction for every question of the source, also for those that could not be asked.

    Yields dicts with the keys of the contract: `question_id`, `text` (the answer as generated),
    `boxes` (xyxy, fractions of the original image, corners as written), `labels` (the finding a
    question asks about, once for each box; null where it names none), `box_scores` (the IoU that
    the model expects of each, 0..1, see `box_confidences`), `answer_logprob` (sum over the
    answer's tokens), `decision_logprob` and `coordinate_logprob` (its parts, see `confidence`),
    `parse` (`ok`, the first failure's category, `truncated` where the answer does not end, or the
    reason why the question was left out). A prompt format that gives reasons adds `reason`; boxes
    are those of the answer before it. `repaired_boxes` counts those that were not written
    exactly, where there are any. Boxes in location tokens have `box_spreads`: the standard
    deviation of each coordinate, in fractions of the original image. Answers of several sentences
    with boxes have `sentence_scores`, the probability of each one's words.

    Args and errors are those of `answer_questions`.
    """
    for answer in answer_questions(
        generator, source, tokenizer, config, images_per_batch=images_per_batch
    ):
        if isinstance(answer, TokenAnswer):
            yield prediction(answer, tokenizer, config, generator.strategy.stop_ids)
        else:
            yield {
                "question_id": answer.question_id,
                "text": "",
                "boxes": [],
                "labels": [],
                "box_scores": [],
                "answer_logprob": None,
                **confidence.AnswerConfidence().fields(),
                "parse": answer.reason,
            }


def answer_questions(
    generator: Generator,
    source: QuestionSource,
    tokenizer: Tokenizer,
    config: ExampleConfig,
    *,
    images_per_batch: int,
) -> Iterator[TokenAnswer | BatchProblem]:
    """Every question of the source in tokens of its answer, or why it could not be asked.

    Args:
        generator: where its mesh is of several processes, each reads the batch's rows that are on
            its devices, and all of them yield all answers.
        images_per_batch: over all processes and devices.

    Raises:
        UserError: the mesh does not divide the batch.
    """
    # Of one process the generator itself deals a batch out to devices.
    mesh = None if hosts.alone() else generator.mesh
    loader = eval_loader(
        source,
        tokenizer,
        config,
        global_batch_size=images_per_batch,
        rows=None if mesh is None else host_rows(mesh, images_per_batch),
    )
    first = True
    for loaded in loader:
        batch, problems, indices = loaded.batch, loaded.problems, loaded.batch.question_index
        # The first call compiles, if nobody has asked with these shapes before.
        said = waiting("compiling, and answering the first questions") if first else nullcontext()
        with said:
            answers = generator(*batch_inputs(generator, batch))
        first = False
        if mesh is not None:
            indices = fetch_whole(put_batch(indices, mesh), mesh)
            problems = _of_all_processes(problems)
        for row, slot in np.argwhere(indices >= 0):
            record = source.record(int(indices[row, slot]))
            yield TokenAnswer(record, *(np.asarray(part[row, slot]) for part in answers))
        yield from problems


def batch_inputs(generator: Generator, batch: Batch) -> tuple[Any, ...]:
    """Returns the arguments that a generator takes for a batch."""
    contexts: tuple[Any, Any] = (None, None)
    if batch.has_earlier is not None:
        sizes = generator.config.of_batch(batch.images)
        contexts = context_of_two(sizes, jnp.asarray(batch.has_earlier))
    asked = (batch.images, batch.prefix_tokens, batch.prefix_mask, batch.question_index)
    return (*asked, *contexts)


def _of_all_processes(problems: list[BatchProblem]) -> list[BatchProblem]:
    """Each question once, also where several processes have read the same rows."""
    found = (BatchProblem(*each) for part in hosts.gather(problems) for each in part)
    return list({problem.question_index: problem for problem in found}.values())


def prediction(
    answer: TokenAnswer, tokenizer: Tokenizer, config: ExampleConfig, stop_ids: Sequence[int]
) -> dict[str, Any]:
    """One line of predictions from an answer in tokens.

    Args:
        answer: from a generator that watches `answer_word_tokens`, or none (None or W = 0).
        stop_ids: the tokens that end an answer.
    """
    record, tokens, logprobs, words, quantiles = answer
    ended = np.flatnonzero(np.isin(tokens, stop_ids))
    length = int(ended[0]) if len(ended) else len(tokens)
    written = tokenizer.decode([int(token) for token in tokens[:length]])
    gives_reason = PROMPTS[config.prompt].gives_reason
    text, _, reason = written.partition(REASONING) if gives_reason else (written, "", "")
    # Without a size the fractions are those of the stretched input, which is the whole image.
    height, width = record.image_hw or config.image_hw
    geometry = image_geometry(height, width, config)
    codec = get_codec(config.codec)
    # As the model says it: `score` counts what must be mended before it mends it.
    read = codec.read_as_written(text, height, width, geometry)
    upto = min(length + 1, len(tokens))
    spelled = confidence.spell(
        tokens[:length].tolist(),
        tokenizer.decode,
        logprobs[:upto],
        words[:upto] if words is not None and words.shape[1] else None,
        None if quantiles is None else quantiles[:upto],
    ).within(0, len(text))
    places = [(span.start, span.end) for span in read.spans]
    sure = confidence.answer_confidence(spelled, places)
    parse = "truncated" if read.parse == "ok" and not len(ended) else read.parse
    found = confidence.box_confidences(spelled, places)
    spreads = [_spread(one, geometry) for one in found]
    sentences = confidence.sentence_probabilities(spelled, places) if places else []
    return {
        "question_id": record.question_id,
        "text": text,
        **({"reason": reason} if gives_reason else {}),
        "boxes": [[round(float(value), 6) for value in one.as_written] for one in read.spans],
        "labels": [record.finding] * len(read.spans),
        "box_scores": [round(one.score, 6) for one in found],
        **({"box_spreads": spreads} if any(spreads) else {}),
        **({"sentence_scores": sentences} if len(sentences) > 1 else {}),
        "answer_logprob": round(float(np.sum(logprobs)), 6),
        **sure.fields(),
        "parse": parse,
        **({"repaired_boxes": read.repaired} if read.repaired else {}),
    }


def _spread(found: confidence.BoxConfidence, geometry: Geometry) -> list[float] | None:
    """A box's spread as xyxy, fractions of the original image."""
    if found.spread is None:
        return None
    y0, x0, y1, x1 = found.spread / NUM_BINS
    # Sizes of the model's frame, which has no place.
    size = geometry.invert(np.array([x0, y0, x1, y1])) - geometry.invert(np.zeros(4))
    return [round(float(value), 6) for value in size]
