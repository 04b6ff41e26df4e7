"""The step of a server, planned for a chip that is not there."""

import importlib.util

import jax
import pytest
from jax.sharding import SingleDeviceSharding

from cxrjax.apps.planner.plans import Measured
from cxrjax.apps.planner.program import Memory
from cxrjax.apps.planner.serving_plan import (
    SlotsPlan,
    describe_serving,
    lower_serving,
    plan_serving,
)
from cxrjax.distributed.hardware import parse_topology
from cxrjax.errors import UserError
from cxrjax.training.config_file import load_config


def _config():
    return load_config("configs/vindr_lora.py:demo")


def test_the_step_is_that_of_the_slots():
    here = SingleDeviceSharding(jax.local_devices()[0])
    text = lower_serving(_config(), 3, here).as_text()
    assert "3x1x1x48x32" in text  # the answers' keys: 3 slots, 1 head, 48 tokens of 32


@pytest.mark.parametrize("name", ["v5e-8", "h100-1"])
def test_a_slice_of_several_chips_is_refused(name):
    with pytest.raises(UserError, match="one device"):
        plan_serving(_config(), parse_topology(name))


def test_what_fits_and_what_does_not_is_told():
    topology = parse_topology("v5e-1")
    fits = SlotsPlan(4, Measured(Memory(1, 1, 0, 1, 2**30), None, None, None, 1.0), 0.002)
    not_so = SlotsPlan(16, Measured(None, 2**34, 2**35, None, 1.0), None)
    told = describe_serving([fits, not_so], topology)
    assert "| 4 | 1.00 GiB | 2.00 ms | 2,000 |" in told
    assert "| 16 | needs 32.00 GiB: does not fit | | |" in told
    assert fits.to_json()["tokens_per_second_estimate"] == 2000
    assert not_so.to_json() == {
        "slots": 16,
        "fits": False,
        "hbm_bytes": 2**35,
        "step_seconds_estimate": None,
        "tokens_per_second_estimate": None,
    }


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the TPU's compiler, is not installed (pip install cxrjax[plan])",
)
def test_more_slots_take_more_memory_and_write_more(tmp_path):
    few, many = plan_serving(_config(), parse_topology("v5e-1"), (2, 64), tmp_path)
    assert few.measured.memory.peak < many.measured.memory.peak
    assert few.tokens_per_second < many.tokens_per_second
