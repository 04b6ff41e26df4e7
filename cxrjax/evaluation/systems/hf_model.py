"""A transformers model in a folder on this machine (`AutoModelForImageTextToText`, a processor).

Nothing is fetched, and no code from the folder is run. Questions are asked in batches, padded on
the left, with the model's chat template where it has one, else with a template of the preset.
Greedy by default: of the folder's generation settings only the end tokens are used.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import PIL.Image

from cxrjax.decoding.confidence import Spelled, spell
from cxrjax.errors import UserError, optional
from cxrjax.evaluation.flags import PredictFlags
from cxrjax.evaluation.systems import other_model, systems
from cxrjax.evaluation.systems.base import Answer, Line, check_seeds
from cxrjax.files import read_json_object, reading
from cxrjax.images.decode import read_image
from cxrjax.images.encode import pad_square
from cxrjax.images.files import AnyFile, ImageError
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.answer import Completion
from cxrjax.models.hf_config import MOST_CONFIG_BYTES
from cxrjax.records import QARecord
from cxrjax.untrusted.foreign_files import read_bytes
from cxrjax.untrusted.weights import read_safetensors_header


class Sampling(NamedTuple):
    """`temperature` 0: the likeliest token; `top_k` 0 and `top_p` 1: from all tokens."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class Written(NamedTuple):
    """An answer, token by token."""

    spelled: Spelled
    logprob: float  # sum over its tokens, end token included
    tokens: int
    ended: bool  # it has one


class FolderModel:
    """The model and processor of a folder.

    Args:
        folder: as `save_pretrained` writes both.

    Raises:
        UserError: PyTorch is missing, or the folder holds no such model.
    """

    def __init__(self, folder: Path) -> None:
        torch = optional("torch", "hf")
        import transformers

        if not (folder / "config.json").is_file():
            raise UserError(
                f"{folder}: no config.json in it; expected a folder as save_pretrained writes it"
            )
        read_json_object(folder / "config.json", MOST_CONFIG_BYTES)
        for path in sorted(folder.glob("*.safetensors")):
            with reading(path, hint="fetch the model again, all of its files"):
                read_safetensors_header(path)
        self._torch = torch
        try:
            self.processor: Any = transformers.AutoProcessor.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            model: Any = transformers.AutoModelForImageTextToText.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,  # the other files are pickles
                dtype="auto",
            )
        except Exception as error:  # each of the library's parts has its own
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{folder}: no image-text-to-text model with its processor ({reason}); a model "
                "that needs code of its own can be asked through a server (--runner=openai)"
            ) from None
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self.processor.tokenizer.padding_side = "left"
        if self.processor.tokenizer.pad_token_id is None:
            self.processor.tokenizer.pad_token = self.processor.tokenizer.eos_token
        self._end_ids = _end_ids(self.model, self.processor.tokenizer)
        self._skipped = {*self._end_ids, *_padding_ids(self.processor.tokenizer)}
        self.fingerprint = _fingerprint(folder)

    def write(
        self,
        conversations: Sequence[Sequence[tuple[str, str]]],
        images: Sequence[PIL.Image.Image],
        template: str,
        max_answer_tokens: int,
        sampling: Sampling = Sampling(),  # noqa: B008 - immutable
    ) -> list[Written]:
        """The model's answers to one batch.

        Args:
            conversations: (question, answer) of each turn; the last answer is "" and to be written.
            images: one for each conversation, shown with its first question.
            template: of a conversation where the model has none; {image} and {question}.
            max_answer_tokens: end token included.
        """
        torch = self._torch
        inputs = self._inputs(conversations, images, template).to(self.model.device)
        start = inputs["input_ids"].shape[1]
        chosen = _ChosenLogprobs(torch)
        torch.manual_seed(sampling.seed)
        with torch.inference_mode():
            output = self.model.generate(
                **inputs,
                generation_config=self._generation(max_answer_tokens, sampling),
                logits_processor=[chosen],
            )
        logprobs = chosen.of(output)
        return [
            self._read(output[row, start:].tolist(), logprobs[row].tolist())
            for row in range(len(conversations))
        ]

    def _inputs(
        self,
        conversations: Sequence[Sequence[tuple[str, str]]],
        images: Sequence[PIL.Image.Image],
        template: str,
    ) -> Any:
        if getattr(self.processor, "chat_template", None):
            chats = [
                _chat(turns, image) for turns, image in zip(conversations, images, strict=True)
            ]
            return self.processor.apply_chat_template(
                chats,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs={"padding": True},
            )
        token = getattr(self.processor, "image_token", None) or "<image>"
        texts = []
        for turns in conversations:
            asked = "\n".join(part for turn in turns for part in turn if part)
            texts.append(template.replace("{image}", token).replace("{question}", asked))
        shown = [[image] for image in images]
        return self.processor(text=texts, images=shown, return_tensors="pt", padding=True)

    def _generation(self, max_answer_tokens: int, sampling: Sampling) -> Any:
        from transformers import GenerationConfig

        drawn: dict[str, Any] = {}
        if sampling.temperature > 0:
            drawn = {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
            }
        return GenerationConfig(
            max_new_tokens=max_answer_tokens,
            do_sample=sampling.temperature > 0,
            num_beams=1,
            eos_token_id=sorted(self._end_ids) or None,
            pad_token_id=self.processor.tokenizer.pad_token_id,
            bos_token_id=self.processor.tokenizer.bos_token_id,
            **drawn,
        )

    def _read(self, tokens: list[int], logprobs: list[float]) -> Written:
        ends = [index for index, token in enumerate(tokens) if token in self._end_ids]
        length = ends[0] + 1 if ends else len(tokens)
        # Not the tokenizer's own skipping: boxes may be written in tokens that count as special.
        kept = [index for index in range(length) if tokens[index] not in self._skipped]
        decode = functools.partial(self.processor.tokenizer.decode, skip_special_tokens=False)
        given = np.array([logprobs[index] for index in [*kept, *ends[:1]]])
        spelled = spell([tokens[index] for index in kept], decode, given)
        return Written(spelled, sum(logprobs[:length]), length, bool(ends))


class _ChosenLogprobs:
    """Notes the log-probability of each chosen token while `generate` runs, in little memory.

    Called with what was chosen so far and the next token's scores, before temperature and the like.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._last: Any = None
        self._found: list[Any] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self._settle(input_ids)
        self._last = self._torch.log_softmax(scores.float(), dim=-1)
        return scores

    def of(self, output: Any) -> Any:
        """[rows, tokens written], once `generate` has returned its output."""
        self._settle(output)
        return self._torch.stack(self._found, dim=1)

    def _settle(self, ids: Any) -> None:
        if self._last is not None:
            self._found.append(self._last.gather(1, ids[:, -1:])[:, 0])


def _chat(turns: Sequence[tuple[str, str]], image: PIL.Image.Image) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for asked, answered in turns:
        messages.append({"role": "user", "content": [{"type": "text", "text": asked}]})
        if answered:
            said = [{"type": "text", "text": answered}]
            messages.append({"role": "assistant", "content": said})
    messages[0]["content"].insert(0, {"type": "image", "image": image})
    return messages


def _end_ids(model: Any, tokenizer: Any) -> set[int]:
    """Tokens that end an answer: the folder's generation settings', else the tokenizer's."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        ids = tokenizer.eos_token_id
    return set() if ids is None else {ids} if isinstance(ids, int) else set(ids)


def _padding_ids(tokenizer: Any) -> set[int]:
    ids = (tokenizer.pad_token_id, tokenizer.bos_token_id)
    return {token for token in ids if token is not None}


def _fingerprint(folder: Path) -> str:
    """Hashes a folder: its small files, and size and time of the others."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            stat = path.stat()
            small = path.suffix in (".json", ".jinja", ".txt", ".model")
            digest.update(f"{path.name} {stat.st_size} ".encode())
            digest.update(read_bytes(path) if small else str(stat.st_mtime_ns).encode())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class FolderSystem:
    """A folder's model as a system, with its cache of answers."""

    model: FolderModel
    setup: other_model.Setup
    images: other_model.ShownImages
    cache: AnswerCache
    batch: int
    top_k: int = 0
    top_p: float = 1.0

    def answer(self, questions: RecordSource, seed: int | None = None) -> Iterator[Line]:
        """A line for every question, in order."""
        sampling = Sampling(self.setup.temperature or 0.0, self.top_k, self.top_p, seed or 0)
        records = (record for _, record in questions.records())
        while batch := list(itertools.islice(records, self.batch)):
            yield from self._answer_batch(questions, batch, sampling)

    def _answer_batch(
        self, questions: RecordSource, records: list[QARecord], sampling: Sampling
    ) -> Iterator[Line]:
        setup = self.setup
        lines: dict[str, Line] = {}
        asked: list[tuple[QARecord, str, list[tuple[str, str]], PIL.Image.Image]] = []
        for record in records:
            text = systems.question_text(record, setup.wording, setup.system)
            if text is None or record.earlier is not None:  # one image a question here
                lines[record.question_id] = systems.no_answer(record, other_model.NOT_ASKED)
                continue
            turns = [*systems.earlier_turns(record), (text, "")]
            try:
                picture = _read_picture(self.images.of(questions, record), setup.system.pad_square)
            except ImageError:
                lines[record.question_id] = systems.no_answer(record, other_model.UNREADABLE_IMAGE)
                continue
            key = self._key(turns, picture, sampling)
            kept = self.cache.get(key)
            if kept is None:
                asked.append((record, key, turns, picture))
            else:
                lines[record.question_id] = self._line(record, kept)
        if asked:
            written = self.model.write(
                [turns for _, _, turns, _ in asked],
                [picture for *_, picture in asked],
                setup.system.template,
                setup.max_answer_tokens,
                # Another for each batch, and the same when the run is repeated.
                sampling._replace(seed=_batch_seed(sampling.seed, asked[0][1])),
            )
            for (record, key, _, _), answer in zip(asked, written, strict=True):
                completion = Completion(
                    answer.spelled.text,
                    "stop" if answer.ended else "length",
                    None,
                    self.model.fingerprint,
                    None,
                    answer.tokens,
                    answer.logprob,
                    list(answer.spelled.texts),
                    answer.spelled.logprobs.tolist(),
                )
                self.cache.put(key, completion)
                lines[record.question_id] = self._line(record, completion)
        for record in records:
            yield lines[record.question_id]

    def _line(self, record: QARecord, written: Completion) -> Line:
        logprob, tokens = written.logprob or 0.0, written.output_tokens or 1
        return systems.read_answer(
            record,
            written.text,
            self.setup.system.reading,
            self.setup.codec,
            failure="truncated" if written.finish_reason == "length" else None,
            logprob=written.logprob,
            spelled=systems.spelled_completion(written),
            # The mean probability of a token, geometric: which of them are a box's is not known.
            box_score=math.exp(logprob / tokens),
        )

    def _key(
        self, turns: Sequence[tuple[str, str]], picture: PIL.Image.Image, sampling: Sampling
    ) -> str:
        content = [
            self.model.fingerprint,
            turns,
            self.setup.system.template,
            hashlib.sha256(picture.tobytes()).hexdigest(),
            picture.size,
            self.setup.max_answer_tokens,
            # A greedy answer is the same for all seeds.
            sampling if sampling.temperature > 0 else None,
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _batch_seed(seed: int, key: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}/sampling".encode()).digest()[:4])


def _read_picture(path: AnyFile, square: bool) -> PIL.Image.Image:
    pixels = read_image(path)
    return PIL.Image.fromarray(pad_square(pixels) if square else pixels)


def start_hf(flags: PredictFlags) -> Callable[[int | None], Answer]:
    """The model of `--folder`: seed -> what answers.

    Raises:
        UserError: flags that do not go together, or no such model.
    """
    setup = other_model.read_setup(flags, "hf")
    if flags.no_temperature:
        raise UserError("--no_temperature is about servers; give --temperature")
    if flags.images_per_batch < 1:
        raise UserError(f"--images_per_batch={flags.images_per_batch}: expected at least 1")
    check_seeds(flags.seeds, setup.samples)
    cache = AnswerCache(flags.cache or flags.out.with_suffix(".answers.jsonl"))
    system = FolderSystem(
        FolderModel(cast(Path, flags.folder)),
        setup,
        other_model.ShownImages(flags.image, flags.seed or 0),
        cache,
        flags.images_per_batch,
        flags.top_k or 0,
        1.0 if flags.top_p is None else flags.top_p,
    )
    return lambda seed: functools.partial(system.answer, seed=seed)
