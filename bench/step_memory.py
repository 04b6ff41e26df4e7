"""Temporary memory of the step on a TPU, compared with a plain implementation.

    python -m bench.step_memory [--config=configs/vindr_lora.py] [--topology=v5e:1x1]
        [--only=plain | ours] [--config.key=value ...]

Nothing runs: the TPU's compiler (libtpu) reports the memory. Both are the step of `train` for the
same configuration and remat policy, with the configuration's whole batch on each chip. The plain
one materializes every attention score and every logit of an answer: a dense mask, float32 logits
over the vocabulary for all tokens of a micro-batch, and a cross-entropy by a one-hot product. For a
program that does not fit a chip the compiler reports only its total, arguments included.

Each compilation takes minutes; figures are cached as those of `plan` are, so that a second or an
interrupted run reuses them.
"""

import argparse
import contextlib
import dataclasses
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from cxrjax import cli
from cxrjax.apps.planner.plans import Measured, make_plan
from cxrjax.apps.planner.search import with_batch
from cxrjax.distributed.hardware import GIB, Topology, parse_topology
from cxrjax.models import attention
from cxrjax.training import loss
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.config_file import load_config


def plain_token_sums(sums: Any, items: Any, mask: Any, chunk: int) -> Any:
    """All items at a time; in the place of `sum_in_chunks`."""
    return sums(*items, mask)


def plain_cross_entropy(logits: Any, target: Any, mask: Any) -> tuple[Any, Any]:
    """Replaces `_token_sums`: a cross-entropy by a one-hot product."""
    one_hot = jax.nn.one_hot(target, logits.shape[-1])
    losses = -jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1)
    correct = jnp.argmax(logits, axis=-1) == target
    return jnp.sum(losses * mask), jnp.sum(correct * mask, dtype=float)


@contextlib.contextmanager
def plain_implementation() -> Any:
    """Traces with all scores and all logits materialized at a time."""
    with (
        mock.patch.object(attention, "_SCORES_AT_A_TIME", 2**62),
        mock.patch.object(loss, "sum_in_chunks", plain_token_sums),
        mock.patch.object(loss, "_token_sums", plain_cross_entropy),
    ):
        yield


def compile_step(config: ExperimentConfig, topology: Topology, *, plain: bool) -> Measured:
    if plain:
        model = dataclasses.replace(config.model, attention="dense")
        config = dataclasses.replace(config, model=model)
    with plain_implementation() if plain else contextlib.nullcontext():
        measured = make_plan(config, topology, log_line=print).measured
    assert measured is not None  # a TPU's step is compiled
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/vindr_lora.py")
    parser.add_argument("--topology", default="v5e:1x1")
    parser.add_argument("--only", choices=("plain", "ours"))
    flags, overrides = parser.parse_known_args()
    jax.config.update("jax_platforms", "cpu")
    config, topology = load_config(flags.config, overrides), parse_topology(flags.topology)
    config = with_batch(config, config.batch_images * topology.chips)
    found = {}
    for name in ("plain", "ours"):
        if flags.only not in (None, name):
            continue
        measured = compile_step(config, topology, plain=name == "plain")
        memory = measured.memory
        if memory is None:
            needed, limit = ((n or 0) / GIB for n in (measured.needed, measured.limit))
            print(f"{name}: does not fit, needs {needed:.2f} of {limit:.2f} GiB a chip", flush=True)
            continue
        found[name] = memory.temporaries
        print(
            f"{name}: temporaries {memory.temporaries / GIB:.2f} GiB a chip, arguments "
            f"{memory.arguments / GIB:.2f}, peak {memory.peak / GIB:.2f}; compiled in "
            f"{measured.seconds:.0f} s",
            flush=True,
        )
    if len(found) == 2:
        print(f"ours are {found['ours'] / found['plain']:.0%} of the plain ones")


if __name__ == "__main__":
    cli.run(main)
