"""Data for small runs, and how to start them as one process or several."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cxrjax.records import strip_answers, write_records
from tests.training.small_data import make_record, write_experiment_file, write_noise

_ROOT = Path(__file__).resolve().parents[2]
_SMALL_RUN = Path(__file__).with_name("small_run.py")

_KEYS = {
    **{"model.init": "random", "model.tokenizer": str(_ROOT / "data/demo_base/tokenizer.model")},
    **{"data.questions_per_image": 2, "data.prefix_buckets": (64,), "data.answer_buckets": (64,)},
    **{"trainable": (".*",), "optimizer.learning_rate": 1e-3, "decoding.max_answer_tokens": 16},
    **{"training.batch_images": 8, "training.steps": 6, "training.log_every": 1},
    **{"training.log_examples": True, "training.checkpoint_every": 2},
}


def _records(folder, split, images):
    """Two questions about each image, the second one longer; the last image does not decode."""
    rng = np.random.default_rng(images)
    records = []
    for index in range(images):
        name = f"{split}{index}"
        path = folder / "images" / f"{name}.png"
        write_noise(path, rng)
        if index == images - 1:
            path.write_bytes(path.read_bytes()[:500])  # its header still reads well
        for number, question in enumerate(
            ("Where is the Nodule/Mass?", "Where is the Nodule, " * 5)
        ):
            x = 2 * index + number
            asked = {"box": (x, 10, x + 20, 50), "split": split, "question": question}
            records.append(make_record(f"{name}_{number}", name, **asked))
    path = folder / "records" / f"{split}.jsonl"
    write_records(path, records)
    write_records(folder / "questions" / f"{split}.jsonl", map(strip_answers, records))
    return str(path)


def write_experiment(folder):
    """Fills a folder with experiment.py, records/ and questions/.

    There are 13 images to train on, and 11 held out.
    """
    data = {f"data.{split}": _records(folder, split, n) for split, n in _IMAGES.items()}
    write_experiment_file(folder / "experiment.py", _KEYS | data)
    return folder


_IMAGES = {"train": 13, "validation": 11}


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
        flags += " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
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
