"""Cost of training on millions of questions: before the first step, and of reading.

    python -m bench.sharded_start --out=DIR --questions=5000000

Writes synthetic questions, one data set of --questions and smaller ones of a hundredth and a tenth,
unless DIR has them, and measures each in a fresh process: seconds to the first element,
the first time (when the choice is computed) and the second; anonymous memory above that of the same
process before, after random reads; questions/s read at random and parsed.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

from cxrjax.cli import run
from cxrjax.files import write_json, writing
from cxrjax.input_pipeline.sharded_source import ShardedSource
from cxrjax.records import Answer, QARecord, format_record
from cxrjax.records_io.shards import RecordShard, describe_shard, describe_split, shard_name

SHARD_QUESTIONS = 100_000
QUESTIONS_OF_AN_IMAGE = 130  # some 31 million on the release's 240 thousand frontal images
SELECT = ("grade=A++|A+|A", "view=PA")
_GRADES = ("A++", "A+", "A", "B", "B", "B")
_FINDINGS = ("cardiomegaly", "pleural effusion", "pneumothorax", "consolidation")


def write_synthetic(out: Path, questions: int) -> None:
    """Questions without meaning, the length of CXR-QBA's, in shards."""
    shards = -(-questions // SHARD_QUESTIONS)
    described = []
    with writing(out), tqdm(total=questions, unit=" questions") as bar:
        for number in range(shards):
            shard = RecordShard(out, shard_name("train", number, shards))
            with shard:
                rng = random.Random(f"0/{number}/synthetic questions")
                for index in range(
                    number * SHARD_QUESTIONS, min(questions, (number + 1) * SHARD_QUESTIONS)
                ):
                    _write(shard, index, rng)
                bar.update(shard.questions)
            described.append(describe_shard(out, shard))
        splits = {"train": describe_split(described)}
        write_json(out / "manifest.json", {"dataset": "synthetic", "splits": splits})


def _line() -> str:
    parts = [
        Answer(
            answer_id=f"a{number}",
            text="There is a small FINDING in the lower zone of the left lung, of moderate extent.",
            labels=["FINDING"],
            regions=["left lower lung zone"],
            polarity="pos",
            boxes_by_image={"IMAGE": [[100.0, 200.0, 300.0, 400.0]]},
        )
        for number in range(4)
    ]
    record = QARecord(
        dataset="synthetic",
        split="train",
        patient_id="PATIENT",
        study_id="STUDY",
        image_id="IMAGE",
        image_path="files/IMAGE.jpg",
        image_hw=(3056, 2544),
        view="PA",
        question_id="QUESTION",
        question="Is there any sign of FINDING, and where is it?",
        question_type="D02_has_finding",
        question_strategy="finding",
        variables={"finding": "FINDING"},
        answers=parts,
        grade="A",
    )
    return format_record(record)


_TEMPLATE = _line()


def _write(shard: RecordShard, index: int, rng: random.Random) -> None:
    image = f"image{index // QUESTIONS_OF_AN_IMAGE:08d}"
    finding, grade = rng.choice(_FINDINGS), rng.choice(_GRADES)
    line = _TEMPLATE.replace("IMAGE", image).replace("FINDING", finding)
    line = line.replace("QUESTION", f"{image}/{index}").replace('"A"', f'"{grade}"')
    row = {"height": 3056, "width": 2544, "view": ("PA", "AP")[index // QUESTIONS_OF_AN_IMAGE % 2]}
    row |= {"question_type": "D02_has_finding", "question_strategy": "finding"}
    row |= {"finding": finding, "grade": grade}
    shard.write(line.encode(), (image, image), row)


def measure(directory: Path, reads: int, select: tuple[str, ...]) -> dict[str, float]:
    """Opens a data set in this process, and reads elements of one question at random."""
    before, start = _anonymous_megabytes(), time.perf_counter()
    source = ShardedSource(directory, "train", questions_per_image=1, select=select)
    source[0]
    opened = time.perf_counter() - start
    rng = random.Random("0/random reads")
    start = time.perf_counter()
    for _ in range(reads):
        source[rng.randrange(len(source))]
    seconds = time.perf_counter() - start
    return {
        "questions": source.num_records,
        "chosen": source.num_questions,
        "start_seconds": round(opened, 2),
        "megabytes": round(_anonymous_megabytes() - before, 1),
        "reads_per_second": round(reads / seconds),
    }


def _anonymous_megabytes() -> float:
    """Anonymous memory of this process: without files that the system may drop from memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["RssAnon"].split()[0]) / 1000


def main() -> None:
    """Makes what is missing and prints a line of JSON for each measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to write to")
    parser.add_argument("--questions", type=int, default=5_000_000, help="default 5,000,000")
    parser.add_argument("--reads", type=int, default=20_000, help="random reads, default 20,000")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--select", nargs="*", default=(), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.measure:
        print(json.dumps(measure(flags.measure, flags.reads, tuple(flags.select))))
        return
    for questions in (flags.questions // 100, flags.questions // 10, flags.questions):
        directory = flags.out / str(questions)
        if not (directory / "manifest.json").is_file():
            write_synthetic(directory, questions)
        shutil.rmtree(directory / "selections", ignore_errors=True)
        for select in ((), SELECT):
            for when in ("first", "again"):
                command = [sys.executable, "-m", "bench.sharded_start"]
                command += [f"--out={flags.out}", f"--reads={flags.reads}"]
                command += [f"--measure={directory}", "--select", *select]
                found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                print(json.dumps({"start": when, "select": select, **json.loads(found)}))


if __name__ == "__main__":
    run(main)
