"""What the step's temporaries take on a TPU, beside those of a plain implementation.

    python -m bench.step_memory [--config=configs/vindr_lora.py] [--topology=v5e:1x1]
        [--only=plain | ours] [--config.key=value ...]

Nothing runs: the TPU's compiler (libtpu) tells. Both are the step of `train` for the same
configuration, the same remat of layers, with so many rows a chip that the configuration's whole
batch is on each. The plain one has every score of an attention and every logit of an answer at a
time: a dense mask, float32 logits over the vocabulary for all tokens of a micro-batch, and a
cross-entropy by a one-hot product. What does not fit a chip has no temporaries to tell: then the
compiler says what the program needs, which has the arguments in it as well.

Compiling takes minutes each; figures are kept as those of `plan` are, so that a second look or an
interrupted run takes up what is there.
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
    """In the place of `_token_sums`."""
    one_hot = jax.nn.one_hot(target, logits.shape[-1])
    losses = -jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1)
    correct = jnp.argmax(logits, axis=-1) == target
    return jnp.sum(losses * mask), jnp.sum(correct * mask, dtype=float)


@contextlib.contextmanager
def plain_implementation() -> Any:
    """Has whatever is traced meanwhile make all scores and all logits at a time."""
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
