"""The server beside `predict`: the same answers from 1, 8 and 32 clients, questions a second.

    python -m bench.serving [--checkpoint=data/real_base] [--questions=300] [--restarts=2]
    python -m bench.serving --soak=20000
    make bench_serving

Questions about held-out radiographs that ship, four wordings of two questions an image, in random
order. Every answer is compared with the line of `predict`: text and boxes alike, scores to 1e-3.
Then the server is killed (kill -9) and started again with its compiled programs, as often as
--restarts says, and the seconds until it is ready are told; with eight questions an image and with
one, and seconds to the first token with nobody else there.

--beside (serving_beside.py) needs PyTorch: `make bench_serving` runs it where that is.

--soak asks so many questions in place of that, for so many --minutes at most: 5 % malformed, 5 % of
clients leave, some read their stream slowly, some send bombs. None may be lost or wrong, nothing
may compile, and memory after the first tenth is compared with that at the end.
"""

import argparse
import base64
import contextlib
import http.client
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.serving_client import RADIOGRAPHS, ROOT, Served
from cxrjax import cli
from cxrjax.commands import build, predict
from cxrjax.records import QARecord, read_records, write_records

WORDS = ("Where is the {}?", "where is the {}", "Locate the {}.", "Show me the {}.")
EXACT = ("text", "boxes", "labels", "parse")


def make_questions(folder: Path, count: int, checkpoint: Path) -> tuple[list[QARecord], dict]:
    """Questions, and the lines of `predict` by question."""
    build.main(["--dataset=lungs", f"--source={RADIOGRAPHS}", f"--out={folder / 'data'}"])
    sides = ("right lung", "left lung")
    records = [
        record
        for record in read_records(folder / "data" / "records" / "validation.jsonl")
        if record.finding in sides
    ]
    asked = [
        record.model_copy(
            update={
                "question": words.format(record.finding),
                "question_id": f"{record.question_id}/{number}",
                "answers": [],
                "variables": None,
            }
        )
        for record in records
        for number, words in enumerate(WORDS)
    ][:count]
    questions, out = folder / "questions.jsonl", folder / "predicted.jsonl"
    write_records(questions, asked)
    begun = time.monotonic()
    words = [f"--checkpoint={checkpoint}", f"--questions={questions}", f"--out={out}"]
    predict.main([*words, f"--image_root={folder / 'data'}"])
    print(f"predict: {len(asked) / (time.monotonic() - begun):.1f} questions/s, start included")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return asked, {line["question_id"]: line for line in lines}


def body_of(record: QARecord, uris: dict[str, str], **more: Any) -> str:
    content = [
        {"type": "image_url", "image_url": {"url": uris[record.image_path]}},
        {"type": "text", "text": record.question},
    ]
    return json.dumps(
        {"model": "served", "messages": [{"role": "user", "content": content}], **more}
    )


def read_uris(records: Sequence[QARecord], root: Path) -> dict[str, str]:
    return {
        path: "data:image/jpeg;base64," + base64.b64encode((root / path).read_bytes()).decode()
        for path in {record.image_path for record in records}
    }


def is_same(told: dict, line: dict) -> bool:
    scores = np.array(told["box_scores"]), np.array(line["box_scores"])
    exact = all(told[name] == line[name] for name in EXACT)
    return exact and bool(np.allclose(*scores, atol=1e-3))


def ask_all(
    served: Served, records: Sequence[QARecord], uris: dict[str, str], lines: dict, clients: int
) -> tuple[float, int]:
    """Questions a second, and how many answers are not those of `predict`."""
    waiting, wrong, lock = list(records), [], threading.Lock()

    def client() -> None:
        connection = served.connect()
        while True:
            with lock:
                if not waiting:
                    return
                record = waiting.pop()
            status, told = connection.ask("POST", "/v1/chat/completions", body_of(record, uris))
            same = status == 200 and is_same(
                json.loads(told)["choices"][0]["grounding"], lines[record.question_id]
            )
            if not same:
                wrong.append(record.question_id)

    begun = time.monotonic()
    with _threads(client, clients):
        pass
    return len(records) / (time.monotonic() - begun), len(wrong)


@contextlib.contextmanager
def _threads(work: Any, count: int) -> Iterator[None]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def first_token(served: Served, record: QARecord, uris: dict[str, str]) -> float:
    """Seconds from a request to the first piece of its answer."""
    connection = served.connect()
    begun = time.monotonic()
    connection.http.request("POST", "/v1/chat/completions", body_of(record, uris, stream=True))
    answer = connection.http.getresponse()
    while b'"content": "T' not in (line := answer.readline()) and line:
        pass
    seconds = time.monotonic() - begun
    answer.read()
    return seconds


def bench(flags: argparse.Namespace, folder: Path) -> None:
    records, lines = make_questions(folder, flags.questions, flags.checkpoint)
    uris = read_uris(records, folder / "data")
    served = Served(flags.checkpoint, flags.slots, "served")
    print(f"ready after {served.seconds:.1f} s")
    for clients in (1, 8, 32):
        order = random.Random(clients).sample(records, len(records))
        rate, wrong = ask_all(served, order, uris, lines, clients)
        print(f"{clients} clients: {rate:.1f} questions/s, {wrong} of {len(order)} not as predict")
    one_each = list({record.image_path: record for record in records}.values())
    print(f"{len(records) / len(one_each):.1f} questions an image; images were kept")
    alone = [first_token(served, record, uris) for record in one_each[:20]]
    print(f"first token, nobody else there: median {statistics.median(alone) * 1e3:.0f} ms")
    compiled = served.metric("cxrjax_compiled_after_warm_up_total")
    print(f"compiled after warm-up: {compiled:.0f}")
    for _ in range(flags.restarts):
        served.end(signal.SIGKILL)
        served = Served(flags.checkpoint, flags.slots, "served")
        used = served.processor_seconds()
        print(f"killed and started again: ready after {served.seconds:.1f} s ({used:.1f} s used)")
    served.end()


def soak(flags: argparse.Namespace, folder: Path) -> None:
    records, lines = make_questions(folder, flags.questions, flags.checkpoint)
    uris = read_uris(records, folder / "data")
    served = Served(flags.checkpoint, flags.slots, "served")
    lock, left, counts = threading.Lock(), [flags.soak], dict.fromkeys(_OUTCOMES, 0)
    memory: list[float] = []
    begun, used = time.monotonic(), (served.processor_seconds(), time.process_time())

    def client() -> None:
        draw = random.Random(threading.get_ident())
        while True:
            with lock:
                late = time.monotonic() - begun > 60 * flags.minutes
                if not left[0] or late:
                    return
                left[0] -= 1
                tenth = time.monotonic() - begun > 6 * flags.minutes
                if not memory and (tenth or left[0] <= flags.soak * 9 // 10):
                    memory.append(served.megabytes())
            outcome = _one_of_the_soak(served, draw, records, uris, lines)
            with lock:
                counts[outcome] += 1

    with _threads(client, flags.clients):
        pass
    seconds = served.processor_seconds() - used[0], time.process_time() - used[1]
    deadline = time.monotonic() + 30
    while served.metric("cxrjax_batch") and time.monotonic() < deadline:
        time.sleep(0.1)
    memory.append(served.megabytes())
    rise = memory[-1] / memory[0] - 1
    minutes = (time.monotonic() - begun) / 60
    asked = flags.soak - left[0]
    print(f"{asked:,} requests in {minutes:.1f} minutes: {counts}")
    server, clients = (1e3 * each / max(asked, 1) for each in seconds)
    print(f"processor time of a request: {server:.1f} ms, of its client {clients:.1f} ms")
    print(f"memory after a tenth {memory[0]:.0f} MB, at the end {memory[-1]:.0f} MB: {rise:+.1%}")
    print(f"compiled after warm-up: {served.metric('cxrjax_compiled_after_warm_up_total'):.0f}")
    print(f"still in slots: {served.metric('cxrjax_batch'):.0f}")
    served.end()


_OUTCOMES = ("right", "wrong", "refused", "refused wrongly", "left", "lost")
_BOMB = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\0\xff\xff" * 2 + b"\x08\0\0\0\0"


def _one_of_the_soak(
    served: Served, draw: random.Random, records: Sequence[QARecord], uris: dict, lines: dict
) -> str:
    record, kind = draw.choice(records), draw.random()
    connection = served.connect()
    path = "/v1/chat/completions"
    try:
        if kind < 0.05:
            broken = [
                "{" * draw.randrange(1, 1000),
                body_of(record, uris, nonsense=draw.random()),
                body_of(record, uris)[: draw.randrange(10_000)],
                body_of(record, {record.image_path: _bomb()}),
            ]
            status, _ = connection.ask("POST", path, draw.choice(broken))
            return "refused" if status == 400 else "refused wrongly"
        stream = draw.random() < 0.3
        connection.http.request("POST", path, body_of(record, uris, stream=stream))
        if kind < 0.1:
            time.sleep(draw.random() / 10)
            return "left"
        answer = connection.http.getresponse()
        if stream:
            events = [e for e in _read(answer, draw).split("\n\n") if "grounding" in e]
            choice = json.loads(events[0].removeprefix("data: "))["choices"][0]
        else:
            choice = json.loads(answer.read())["choices"][0]
        return "right" if is_same(choice["grounding"], lines[record.question_id]) else "wrong"
    except (OSError, KeyError, IndexError, http.client.HTTPException):
        return "lost"
    finally:
        connection.http.close()


def _read(answer: http.client.HTTPResponse, draw: random.Random) -> str:
    """A stream; a few are read slowly, by a client that sleeps before or takes small pieces."""
    slow, read = draw.random(), b""
    if slow < 0.02:
        time.sleep(2)
    while slow > 0.98 and (piece := answer.read(300)):
        read += piece
        time.sleep(0.1)
    return (read + answer.read()).decode()


def _bomb() -> str:
    return "data:image/png;base64," + base64.b64encode(_BOMB).decode()


def main() -> None:
    """Prints the figures that the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "data" / "real_base")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--beside", action="store_true", help="beside transformers")
    parser.add_argument("--rounds", type=int, default=3, help="of --beside")
    parser.add_argument("--cores", type=int, help="that all of it may use; default: all")
    parser.add_argument("--soak", type=int, default=0, metavar="REQUESTS")
    parser.add_argument("--clients", type=int, default=16, help="of --soak")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of --soak, at most")
    flags = parser.parse_args()
    if flags.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-flags.cores :])
    if flags.beside:
        from bench.serving_beside import beside

        beside(("tower", "image"), flags.slots, flags.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        (soak if flags.soak else bench)(flags, Path(folder))


if __name__ == "__main__":
    cli.run(main)
