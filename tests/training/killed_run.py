"""A run for a test to end: `killed_run.py WORKDIR`; XLA is at work on its step for seconds."""

import sys
from pathlib import Path

import jax.numpy as jnp

from cxrjax import cli
from cxrjax.training.preemption import Preemption
from cxrjax.training.run import print_at_once
from tests.training import conftest as small


class SlowToCompile(small.TinyModel):
    """A long chain of small products."""

    def __call__(self, *arguments, **options):
        x = super().__call__(*arguments, **options)
        for _ in range(120):
            x = jnp.tanh(x @ jnp.eye(x.shape[-1])[::-1])
        return x


def main() -> None:
    workdir = Path(sys.argv[1])
    run = small.trainer(workdir.parent, small.settings())
    run.config.lora.dropout = 0.3
    with Preemption() as preemption:
        options = {"preemption": preemption, "log_line": print_at_once}
        run(workdir=workdir.name, steps=4, model=SlowToCompile(), **options)


cli.run(main)
