"""Data for small runs, and how to start them as one process or several."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.records import Answer, QARecord, strip_answers, write_records

_ROOT = Path(__file__).resolve().parents[2]
_SMALL_RUN = Path(__file__).with_name("small_run.py")

_CONFIG = '''
"""A test's experiment."""
from cxrjax.training.config import default_config

def get_config(variant=""):
    config = default_config()
    config.model.init = "random"
    config.model.tokenizer = {tokenizer!r}
    config.data.train = {train!r}
    config.data.validation = {validation!r}
    config.data.questions_per_image = 2
    config.data.prefix_buckets = (64,)
    config.data.answer_buckets = (64,)
    config.trainable = (".*",)
    config.optimizer.learning_rate = 1e-3
    config.training.batch_images = 8
    config.training.steps = 6
    config.training.log_every = 1
    config.training.log_examples = True
    config.training.checkpoint_every = 2
    config.decoding.max_answer_tokens = 16
    config.missing_data_help = "None."
    return config
'''


def _records(folder, split, images):
    """Two questions about each image, the second one longer; the last image does not decode."""
    rng = np.random.default_rng(images)
    records = []
    for index in range(images):
        name = f"{split}{index}"
        path = folder / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (60, 80), np.uint8)).save(path)
        if index == images - 1:
            path.write_bytes(path.read_bytes()[:500])  # its header still reads well
        for number, question in enumerate(
            ("Where is the Nodule/Mass?", "Where is the Nodule, " * 5)
        ):
            x = 2.0 * index + number
            box = [x, 10.0, x + 20.0, 50.0]
            text = "The Nodule/Mass is located at <loc_{:.0f}_{:.0f}_{:.0f}_{:.0f}>.".format(*box)
            records.append(
                QARecord(
                    dataset="custom",
                    split=split,
                    image_id=name,
                    image_path=f"images/{name}.png",
                    image_hw=(60, 80),
                    question_id=f"{name}_{number}",
                    question=question,
                    question_type="Where",
                    answers=[Answer(text=text, boxes_by_image={name: [box]})],
                )
            )
    path = folder / "records" / f"{split}.jsonl"
    write_records(path, records)
    write_records(folder / "questions" / f"{split}.jsonl", map(strip_answers, records))
    return str(path)


def write_experiment(folder):
    """Fills a folder with experiment.py, records/ and questions/.

    There are 13 images to train on, and 11 held out.
    """
    (folder / "experiment.py").write_text(
        _CONFIG.format(
            tokenizer=str(_ROOT / "data/demo_base/tokenizer.model"),
            train=_records(folder, "train", 13),
            validation=_records(folder, "validation", 11),
        )
    )
    return folder


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """What `write_experiment` writes."""
    return write_experiment(tmp_path_factory.mktemp("experiment"))


@pytest.fixture(scope="session")
def start_small():
    """`start_small(processes, entry_point, *arguments, ...) -> Popen`; see small_run.py."""

    def start(processes, entry_point, *arguments, devices=1, stop_before=0, **variables):
        command = [sys.executable, str(_SMALL_RUN), entry_point, *map(str, arguments)]
        # Such runs compile for longer than they compute.
        flags = f"--xla_force_host_platform_device_count={devices}"
        flags += " --xla_backend_optimization_level=0"
        if processes > 1:
            local = [str(_ROOT / "launch/local.py"), f"--processes={processes}"]
            local += [f"--devices_per_process={devices}", "--"]
            command = [sys.executable, *local, *command]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "XLA_FLAGS": flags}
        environment |= {"STOP_BEFORE_STEP": str(stop_before), **variables}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return start


@pytest.fixture(scope="session")
def finish():
    """`finish(process, code=0) -> what it wrote`."""

    def wait(process, code=0):
        output, _ = process.communicate(timeout=540)
        assert process.returncode == code, output
        return output

    return wait


@pytest.fixture(scope="session")
def read_lines():
    """`read_lines(path)`: of JSON."""
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]
