"""What the TPU's compiler says of a program that does not fit, by libtpu 0.0.42.1."""

import jax
import pytest

from cxrjax.planner.program import DoesNotFitError, compile_program

GIB = 2**30


class Lowered:
    def __init__(self, message):
        self.message = message

    def compile(self):
        raise jax.errors.JaxRuntimeError(self.message)


@pytest.mark.parametrize(
    ("message", "sizes"),
    [
        ("Ran out of memory in memory space hbm. Used 18.5G of 15.75G hbm.", (18.5, 15.75)),
        (
            "Ran out of memory on HBM, the total memory required for HLO temporaries (481.87G) "
            "exceeds available HBM (15.75G).",
            (481.87, 15.75),
        ),
    ],
)
def test_sizes_are_read(message, sizes):
    with pytest.raises(DoesNotFitError) as raised:
        compile_program(Lowered(f"RESOURCE_EXHAUSTED: {message}"))
    found = raised.value.needed, raised.value.limit
    assert found == tuple(int(size * GIB) for size in sizes)


def test_other_failures_stay_what_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compile_program(Lowered("INTERNAL: something else"))
