"""Every step is in metrics.jsonl once, also after a kill and a resume."""

import json
import subprocess
import sys

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.training.metric_log import MetricLog


def _lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def test_values_of_a_step_share_a_line_and_undefined_ones_are_null(tmp_path):
    log = MetricLog(tmp_path)
    log.write(2, {"train/loss": 1.5, "train/giou_loss": float("nan")})
    log.write(2, {"validation/vqa/f1": None}, {"overlay": np.zeros((4, 4, 3), np.uint8)})
    log.write(4, {"train/loss": np.float32(0.25)})
    log.close()
    assert _lines(tmp_path) == [
        {"step": 2, "train/loss": 1.5, "train/giou_loss": None, "validation/vqa/f1": None},
        {"step": 4, "train/loss": 0.25},
    ]
    assert list(tmp_path.glob("events.out.tfevents*"))


def test_resume_cuts_later_and_torn_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a": 3}\n{"step": 4, ')
    log = MetricLog(tmp_path, start_step=2)
    log.write(3, {"a": 30.0})
    log.close()
    assert _lines(tmp_path) == [{"step": 1, "a": 1}, {"step": 2, "a": 2}, {"step": 3, "a": 30.0}]


def test_a_torn_line_at_the_resumed_step_is_cut(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1}\n{"step": 2')
    MetricLog(tmp_path, start_step=2).close()
    assert _lines(tmp_path) == [{"step": 1, "a": 1}]


def test_a_step_cannot_be_written_again_after_a_flush(tmp_path):
    log = MetricLog(tmp_path)
    log.write(5, {"a": 1.0})
    log.flush()
    with pytest.raises(ValueError, match="written already"):
        log.write(5, {"a": 1.0})
    with pytest.raises(ValueError, match="written already"):
        log.write(4, {"a": 1.0})
    log.close()


def test_a_foreign_file_is_not_cut(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("something else\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: not a line of metrics"):
        MetricLog(tmp_path, start_step=1)
    assert (tmp_path / "metrics.jsonl").read_text() == "something else\n"


_LATE = """
import sys
from pathlib import Path
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.metric_log import MetricLog
log = MetricLog(Path(sys.argv[1]))
log.write_hparams(ExperimentConfig())
assert "tensorflow" not in sys.modules
log.write(1, {"loss": 2.0})
log.close()
assert "tensorflow" in sys.modules
"""


def test_tensorflow_is_imported_with_the_first_figures(tmp_path):
    """It takes seconds, which the first step is not to wait for."""
    subprocess.run([sys.executable, "-c", _LATE, str(tmp_path)], check=True)
    (events,) = tmp_path.glob("events.out.tfevents*")
    content = events.read_bytes()
    assert b"_hparams_" in content and b"loss" in content


def test_what_goes_wrong_with_event_files_is_told(tmp_path, monkeypatch):
    from clu import metric_writers

    class Full:
        def __init__(self, folder):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(metric_writers, "SummaryWriter", Full)
    log = MetricLog(tmp_path)
    log.write(1, {"loss": 2.0})
    with pytest.raises(UserError, match="No space left"):
        log.flush()
    assert _lines(tmp_path) == [{"step": 1, "loss": 2.0}]
