"""Data wait of a run that reads records and images from a bucket which answers late.

    python -m bench.bucket_input [--latency=0.03] [--step=0.3] [--steps=20] [--shards=4]

Starts a server of S3 on this machine (pip install 'cxrjax[test-buckets]') behind a proxy that
answers each request `--latency` seconds late, puts a made-up data set there, and takes batches as
training does, with a sleep of `--step` seconds in the place of the step. With `--shards` records
are in ArrayRecord files with their tables. Prints the time before the first batch, and the share of
the time after it in which a step waited for its batch.
"""

import argparse
import asyncio
import contextlib
import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

_TOKENIZER = Path(__file__).parents[1] / "data/demo_base/tokenizer.model"
_SERVER = """
import sys, threading
from moto.server import ThreadedMotoServer
ThreadedMotoServer(ip_address="127.0.0.1", port=int(sys.argv[1]), verbose=False).start()
print("up", flush=True)
threading.Event().wait()
"""


class Proxy:
    """A server on this machine that passes requests on to another one, late, or refuses them.

    Args:
        port: of the other server.
        latency: seconds before each answer.
        refuses: takes the first line of a request; True: it gets status 503.
    """

    def __init__(
        self,
        port: int,
        latency: float = 0.0,
        refuses: Callable[[bytes], bool] = lambda line: False,
    ) -> None:
        self._port, self.latency, self.refuses = port, latency, refuses
        self.requests = 0
        self._loop = asyncio.new_event_loop()
        started = threading.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
            self.port: int = server.sockets[0].getsockname()[1]
            started.set()
            await asyncio.Event().wait()

        threading.Thread(target=lambda: self._loop.run_until_complete(serve()), daemon=True).start()
        started.wait()

    async def _connected(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far, forward = await asyncio.open_connection("127.0.0.1", self._port)
            asked = [False]
            await asyncio.gather(
                self._ask(near, forward, back, asked), self._answer(far, back, asked)
            )
            forward.close()
        back.close()

    async def _ask(
        self,
        near: asyncio.StreamReader,
        forward: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        asked: list[bool],
    ) -> None:
        while content := await near.read(2**16):
            line = content.partition(b"\r\n")[0]
            if line.endswith(b" HTTP/1.1"):
                self.requests += 1
                if self.refuses(line):
                    back.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
                    await back.drain()
                    break
            asked[0] = True
            forward.write(content)
        forward.close()
        back.close()

    async def _answer(
        self, far: asyncio.StreamReader, back: asyncio.StreamWriter, asked: list[bool]
    ) -> None:
        while content := await far.read(2**16):
            if asked[0]:
                asked[0] = False
                await asyncio.sleep(self.latency)
            back.write(content)
            await back.drain()


@contextlib.contextmanager
def late_bucket(latency: float) -> Iterator[Proxy]:
    """A bucket `bucket` of S3 that answers late; sets the environment that leads there."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-c", _SERVER, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "up\n"
        proxy = Proxy(port, latency)
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        try:
            import s3fs

            s3fs.S3FileSystem().mkdir("bucket")
            yield proxy
        finally:
            server.kill()


def fill(folder: Path, images: int, size: int, shards: int = 0) -> Path:
    """Writes records of images with a question each; returns the records file, or their folder."""
    from cxrjax.records import Answer, QARecord

    rng = np.random.default_rng(0)
    box, lines = [10.0, 20.0, 200.0, 220.0], []
    answer = "There is a nodule at <loc_10_20_200_220>."
    for number in range(images):
        content = io.BytesIO()
        grey = rng.integers(0, 256, (size // 8, size // 8), np.uint8).repeat(8, 0).repeat(8, 1)
        Image.fromarray(grey).save(content, "png")
        (folder / "images" / f"{number}.png").write_bytes(content.getvalue())
        record = QARecord(
            dataset="custom",
            split="train",
            patient_id=str(number),
            image_id=str(number),
            image_path=f"images/{number}.png",
            image_hw=(size, size),
            question_id=str(number),
            question="Where is the nodule?",
            question_type="where",
            answers=[Answer(text=answer, labels=["Nodule"], boxes_by_image={str(number): [box]})],
        )
        lines.append(record.model_dump_json())
    content = "\n".join(lines) + "\n"
    if shards:
        return _write_shards(folder, content, shards)
    records = folder / "records" / "train.jsonl"
    records.write_text(content)
    return records


def _write_shards(folder: Path, records: str, shards: int) -> Path:
    """Writes the records in shards, which are built on this machine; returns the folder."""
    from cxrjax.commands import build
    from cxrjax.paths import copy_file

    with tempfile.TemporaryDirectory() as made:
        source, out = Path(made) / "source", Path(made) / "out"
        (source / "records").mkdir(parents=True)
        (source / "records" / "train.jsonl").write_text(records)
        (source / "manifest.json").write_text("{}")
        flags = [f"--source={source}", f"--out={out}", f"--num_shards={shards}"]
        build.main(["--dataset=shards", *flags])
        for file in out.rglob("*"):
            if file.is_file():
                copy_file(file, folder / file.relative_to(out).as_posix())
    return folder


def measure(records: Path, step: float, steps: int, workers: int, batch: int) -> dict[str, float]:
    """Seconds to the first batch, a step's wait for the later ones, and requests of an image."""
    from cxrjax.input_pipeline.examples import ExampleConfig
    from cxrjax.input_pipeline.loader import single_source, train_loader
    from cxrjax.input_pipeline.sharded_source import ShardedSource
    from cxrjax.input_pipeline.sources import RecordSource
    from cxrjax.input_pipeline.tokenizer import load_tokenizer

    in_shards = records.suffix != ".jsonl"
    source = (
        ShardedSource(records, "train", None, 1) if in_shards else RecordSource(records, None, 1)
    )
    config = ExampleConfig(224, prefix_buckets=(32,), answer_buckets=(64,))
    tokenizer = load_tokenizer(_TOKENIZER)
    mixture = single_source(source, config)
    waits = []
    loader = train_loader(mixture, tokenizer, global_batch_size=batch, seed=0, workers=workers)
    with loader:
        for _ in range(steps):
            begun = time.monotonic()
            loaded = next(loader)
            waits.append(time.monotonic() - begun)
            assert not loaded.problems, loaded.problems[0]
            time.sleep(step)
    later = waits[1:]
    return {"first": waits[0], "wait": sum(later) / len(later), "most": max(later)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--latency", type=float, default=0.03, help="seconds a request (0.03)")
    add("--step", type=float, default=0.3, help="seconds a step (0.3)")
    add("--steps", type=int, default=20)
    add("--batch", type=int, default=16, help="images of a step (16)")
    add("--workers", type=int, default=1, help="processes that decode (1)")
    add("--shards", type=int, default=0, help="shards of the records; 0: a file of JSON lines (0)")
    add("--size", type=int, default=512, help="pixels on each side of an image (512)")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache, late_bucket(0.0) as proxy:
        os.environ["CXRJAX_BUCKET_CACHE"] = f"{cache},1GB"
        from cxrjax.paths import out_path

        images = flags.steps * flags.batch
        records = fill(out_path("s3://bucket/data"), images, flags.size, flags.shards)
        proxy.latency, proxy.requests = flags.latency, 0
        found = measure(records, flags.step, flags.steps, flags.workers, flags.batch)
        share = found["wait"] / (found["wait"] + flags.step)
        print(
            f"{flags.latency * 1000:.0f} ms a request, {flags.batch} images of {flags.size} pixels "
            f"a step of {flags.step} s, {flags.workers} workers: first batch after "
            f"{found['first']:.2f} s, then {found['wait'] * 1000:.1f} ms of waiting a step "
            f"({share:.1%}; at most {found['most'] * 1000:.0f} ms), "
            f"{proxy.requests / images:.1f} requests an image"
        )


if __name__ == "__main__":
    main()
