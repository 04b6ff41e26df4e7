"""The server beside a loop of transformers over batches, on a random PaliGemma of 45 M parameters.

Both answer the same questions about the same files, never seen before, greedily and in float32, up
to 32 tokens each; theirs has all of them at once and takes batches of 8 or 16, whichever is faster;
ours gets them over HTTP from clients on the same cores. Who goes first changes with each round, and
a ratio is the median of the rounds'; that of processor time, a server's own, is bent less by what
else a machine does. `first` is the time until an answer of one token is there. With `tower` shared
our answers are theirs; `image` shares the image's tokens too, which for PaliGemma is a variant and
is to be trained so.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.process import ENVIRONMENT, HERE, Worker
from bench.serving_client import RADIOGRAPHS, Served
from cxrjax.apps.serving.answering import AskedQuestion
from cxrjax.apps.serving.uploads import UploadedImage
from cxrjax.commands import convert
from cxrjax.input_pipeline.examples import QuestionEncoder
from cxrjax.training.base_model import MODEL_FILE, base_config, tokenizer_path
from cxrjax.training.data import example_config, open_tokenizer

TOKENS = 32
BATCHES = (8, 16)
WORDS = ("right lung", "left lung", "heart", "ILD", "nodule", "mass", "pleural effusion", "Edema")
WANTED = {"8 an image": "at least 3", "1 an image": "at least 1.3", "first": "at most 1.2"}


class Times(NamedTuple):
    """Seconds on the wall and of processors, and the share of answers that are alike."""

    ours: Sequence[float]
    theirs: Sequence[float]
    alike: float


class Both:
    """The two sides on one model, and files that neither has seen.

    Args:
        share: of our side.
    """

    def __init__(self, share: str, slots: int, folder: Path) -> None:
        published, self._base = folder / "published", folder / "base"
        if not published.exists():
            made = [sys.executable, str(HERE / "serving_theirs.py"), "make", str(published)]
            subprocess.run(made, check=True, capture_output=True, env=os.environ | ENVIRONMENT)
            convert.main([f"--checkpoint={published}", f"--out={self._base}"])
        model = self._base / MODEL_FILE
        model.write_text(json.dumps(json.loads(model.read_text()) | {"share": share}))
        config = base_config(self._base)
        tokenizer = open_tokenizer(tokenizer_path(config), config)
        self._encoder = QuestionEncoder(tokenizer, example_config(config))
        self._decode = tokenizer.decode
        flags = ["--grammar=none", "--boxes=greedy", f"--max_answer_tokens={TOKENS}"]
        self._served = Served(self._base, slots, "served", *flags)
        self._theirs = Worker("serving_theirs.py", published)
        self._files = iter(sorted((RADIOGRAPHS / "images").glob("*.jpeg")))

    def end(self) -> None:
        self._served.end()
        self._theirs.close()

    def answer(self, images: int, questions: int, ours_first: bool) -> Times:
        """Sends the same questions to both sides; to theirs in batches of each size."""
        files = [next(self._files) for _ in range(images)]
        asked = [f"Where is the {word}?" for word in WORDS[:questions]]
        ours, said = self._ours(files, asked, TOKENS) if ours_first else ((), [])
        sizes = [batch for batch in BATCHES if batch <= max(BATCHES[0], images * questions)]
        looped = [self._loop(files, asked, batch, TOKENS) for batch in sizes]
        if not ours_first:
            ours, said = self._ours(files, asked, TOKENS)
        theirs, texts = min(looped)
        alike = sum(a == b for a, b in zip(said, texts, strict=True)) / len(texts)
        return Times(ours, theirs, alike)

    def first_token(self) -> Times:
        """Until an answer of one token is there, with nobody else there."""
        file, asked = next(self._files), "Where is the right lung?"
        ours, _ = self._ours([file], [asked], 1)
        theirs, _ = self._loop([file], [asked], 1, 1)
        return Times(ours, theirs, 1.0)

    def _loop(
        self, files: Sequence[Path], asked: Sequence[str], batch: int, limit: int
    ) -> tuple[Sequence[float], list[str]]:
        prompts = [self._prompt(question) for question in asked]
        pairs = [(str(file), prompt) for file in files for prompt in prompts]
        told = self._theirs.ask(json.dumps({"asked": pairs, "batch": batch, "limit": limit}))
        return told["seconds"], [self._decode(ids) for ids in told["ids"]]

    def _ours(
        self, files: Sequence[Path], asked: Sequence[str], limit: int
    ) -> tuple[Sequence[float], list[str]]:
        begun, processor = time.perf_counter(), self._served.processor_seconds()
        said = self._ask(files, asked, limit)
        seconds = time.perf_counter() - begun, self._served.processor_seconds() - processor
        return seconds, said

    def _prompt(self, question: str) -> list[int]:
        picture: Any = UploadedImage(b"", (224, 224), None)  # type: ignore[arg-type]
        record = AskedQuestion(question).record([picture])
        return self._encoder.encode(record, with_answer=False).prefix.tolist()

    def _ask(self, files: Sequence[Path], asked: Sequence[str], limit: int) -> list[str]:
        answers: dict[Path, list[str]] = {}
        waiting, lock = list(files), threading.Lock()

        def client() -> None:
            while True:
                with lock:
                    if not waiting:
                        return
                    file = waiting.pop(0)
                if len(asked) == 1:
                    answers[file] = [self._chat(file, asked[0], limit)]
                    continue
                body = json.dumps({"image": _uri(file), "questions": asked})
                told = json.loads(self._served.connect().ask("POST", "/v1/ground", body)[1])
                answers[file] = [line["text"] for line in told["predictions"]]

        threads = [threading.Thread(target=client) for _ in range(4 if len(asked) > 1 else 24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [text for file in files for text in answers[file]]

    def _chat(self, file: Path, question: str, limit: int) -> str:
        content = [
            {"type": "image_url", "image_url": {"url": _uri(file)}},
            {"type": "text", "text": question},
        ]
        message = {"role": "user", "content": content}
        body = json.dumps({"model": "served", "messages": [message], "max_tokens": limit})
        told = self._served.connect().ask("POST", "/v1/chat/completions", body)[1]
        return json.loads(told)["choices"][0]["message"]["content"]


def _uri(file: Path) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(file.read_bytes()).decode()


def beside(shares: Sequence[str], slots: int, rounds: int) -> None:
    """Prints a table of ratios."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        for share in shares:
            both = Both(share, slots, Path(name))
            for questions, images in ((8, 2), (1, 8)):
                both.answer(1, questions, True)  # warms both
                found = [both.answer(images, questions, n % 2 == 0) for n in range(rounds)]
                lines.append(_line(share, f"{questions} an image", found, images * questions))
                print(lines[-1], flush=True)
            both.first_token()
            lines.append(_line(share, "first", [both.first_token() for _ in range(3 * rounds)]))
            print(lines[-1], flush=True)
            both.end()
    print(f"\nA PaliGemma of 45 M parameters, answers of {TOKENS} tokens, {rounds} rounds:\n")
    print("| shared | questions | ours | theirs | ratio | in processor time | wanted | alike |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))


def _line(share: str, case: str, found: Sequence[Times], count: int = 0) -> str:
    """A row; of answers a second, or of seconds where there is no count."""
    walls = [median(one[side][0] for one in found) for side in (0, 1)]
    ratios = [median(one.theirs[i] / one.ours[i] for one in found) for i in (0, 1)]
    if not count:
        ratios = [1 / ratio for ratio in ratios]
    shown = [f"{count / wall:.2f}/s" if count else f"{wall:.3f} s" for wall in walls]
    alike = f"{median(one.alike for one in found):.0%}" if count else ""
    cells = [share, case, *shown, *(f"{ratio:.2f}" for ratio in ratios), WANTED[case], alike]
    return f"| {' | '.join(cells)} |"
