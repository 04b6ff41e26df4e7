"""MFU, memory, the warning of a slow input pipeline, and the step line that tells of them."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from cxrjax.distributed import meshes
from cxrjax.models.flops import BatchShape, step_flops, total
from cxrjax.training import progress
from cxrjax.training.config_file import typed_config
from cxrjax.training.observers import InputLimit
from cxrjax.training.progress import (
    Load,
    Progress,
    StepFlops,
    StepTimes,
    load_of,
    memory_figures,
    peak_flops,
)

TIMES = StepTimes(device=1.5, data_wait=0.4, host=0.1)


def test_operations_of_a_batch_are_those_of_the_formula(run_config, small_vlm, random_batch):
    model, batch = small_vlm(), random_batch(images=4)
    known = StepFlops(model, typed_config(run_config), processes=2)
    for tokens in (0, 17, 40):
        shape = BatchShape(8, 3, 4, 12, boxes=3, answer_tokens=2 * tokens)
        parts = step_flops(
            model, typed_config(run_config).trainable, shape, remat=False, loc_loss=True
        )
        np.testing.assert_allclose(known.of(batch, tokens), total(parts).model, rtol=1e-12)


def test_nothing_is_known_of_other_models(run_config, tiny_model, random_batch):
    assert StepFlops(tiny_model(), typed_config(run_config)).of(random_batch(), 10) is None


def test_the_peak_is_the_chips_or_what_the_configuration_says(run_config, monkeypatch):
    mesh = meshes.make_mesh(typed_config(run_config).mesh)
    assert peak_flops(typed_config(run_config), mesh) is None  # a CPU
    run_config.training.peak_flops = 2e12
    assert peak_flops(typed_config(run_config), mesh) == 2e12 * len(jax.devices())
    run_config.training.peak_flops = None
    tpus = np.array([SimpleNamespace(device_kind="TPU v5 lite")] * 4)
    assert peak_flops(typed_config(run_config), SimpleNamespace(devices=tpus, size=4)) == 4 * 197e12


def test_memory_of_devices_that_tell(monkeypatch):
    def device(used, peak):
        return SimpleNamespace(
            memory_stats=lambda: {"bytes_in_use": used, "peak_bytes_in_use": peak}
        )

    devices = [device(2e9, 3e9), device(1e9, 4e9)]
    monkeypatch.setattr(progress.jax, "local_devices", lambda: devices)
    assert memory_figures() == {"hbm_gb": 2.0, "hbm_peak_gb": 4.0}


def test_memory_of_a_cpu_is_the_process(monkeypatch):
    figures = memory_figures()
    assert set(figures) == {"host_peak_memory_gb"}
    assert 0.05 < figures["host_peak_memory_gb"] < 100


def test_rates():
    progress = Progress(total_steps=10, peak_flops=100.0)
    for _ in range(2):
        progress.count(Load(images=8, questions=20, tokens=300, answer_tokens=90), TIMES, 50.0)
    rates = progress.rates(4)
    assert rates == {
        "images_per_second": 4.0,
        "questions_per_second": 10.0,
        "tokens_per_second": 150.0,
        "step_seconds": 2.0,
        "device_seconds": 1.5,
        "data_wait_seconds": 0.4,
        "host_seconds": pytest.approx(0.1),
        "seconds_left": 12.0,
        "mfu": 0.25,
    }
    assert progress.rates(4) == {}
    values = dict.fromkeys(("loss", "ce", "box_loss", "token_accuracy"), 0.5)
    line = progress.line(4, values, rates | {"hbm_peak_gb": 12.34})
    assert "2 s a step  data wait 20%  host 5%  MFU 25.0%  HBM 12.3 GB  0:12 left" in line


def test_no_mfu_without_a_peak_or_operations():
    for peak, flops in ((None, 50.0), (100.0, None)):
        progress = Progress(10, peak)
        progress.count(Load(questions=1), TIMES, flops)
        assert "mfu" not in progress.rates(1)


def test_load_counts_what_is_there(random_batch):
    batch = random_batch()
    batch.question_index[3] = -1
    load = load_of(batch)
    assert load.images == 7
    assert load.questions == (batch.question_index >= 0).sum()
    assert load.answer_tokens == batch.answer_mask.sum()
    assert load.tokens == batch.answer_mask.sum() + batch.prefix_mask.sum()


def test_a_slow_input_pipeline_is_told_once(run_config):
    limit = InputLimit(typed_config(run_config), print, steps=5)
    fast = StepTimes(device=1.0, data_wait=0.02, host=0.01)
    assert [limit.check(fast) for _ in range(10)] == [None] * 10
    told = [limit.check(TIMES) for _ in range(20)]
    (line,) = [line for line in told if line]
    # Some slow steps among fast ones are not the limit yet.
    assert told[0] is None
    assert "over the last 5 steps" in line and "data.workers (now 0" in line
    assert "data.feature_cache" in line and "\n" not in line


def test_nothing_is_told_before_enough_steps(run_config):
    limit = InputLimit(typed_config(run_config), print, steps=5)
    assert [limit.check(TIMES) for _ in range(4)] == [None] * 4
    assert limit.check(TIMES).startswith("the input pipeline is the limit: devices waited for data")
