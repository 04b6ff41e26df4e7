"""What the step's temporaries take on a TPU, beside those of a plain implementation.

    python tests/bench/step_memory.py [--config=configs/vindr_lora.py] [--topology=v5p:2x2x1]
        [--only=plain | ours] [--config.key=value ...]

Nothing runs: the TPU's compiler (libtpu) tells. Both are the step of `train` for the same
configuration, remat included, with so many rows a chip that the configuration's whole batch is on
each. The plain one has every score of an attention and every logit of an answer at a time: a dense
mask, float32 logits over the vocabulary for all tokens, and a cross-entropy by a one-hot product.
The default slice has chips large enough for both; on a small one the compiler would recompute what
does not fit, and the two could not be compared.
"""

import argparse
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from cxrjax import cli
from cxrjax.hardware import GIB, parse_topology
from cxrjax.models import attention
from cxrjax.planning import program
from cxrjax.training import loss
from cxrjax.training.config import batch_images
from cxrjax.training.config_file import load_config


def plain_token_sums(sums: Any, items: Any, mask: Any, chunk: int) -> Any:
    """All items at a time; in the place of `_sum_in_chunks`."""
    return sums(*items, mask)


def plain_cross_entropy(logits: Any, target: Any, mask: Any) -> tuple[Any, Any]:
    """In the place of `_token_sums`."""
    one_hot = jax.nn.one_hot(target, logits.shape[-1])
    losses = -jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1)
    correct = jnp.argmax(logits, axis=-1) == target
    return jnp.sum(losses * mask), jnp.sum(correct * mask, dtype=float)


def compile_step(config: ConfigDict, topology: Any, *, plain: bool) -> program.Memory:
    devices = program.tpu_devices(topology)
    if not plain:
        return program.memory_of(program.compile_program(program.lower_step(config, devices)))
    config = config.copy_and_resolve_references()
    config.model.attention = "dense"
    with (
        mock.patch.object(attention, "_SCORES_AT_A_TIME", 2**62),
        mock.patch.object(loss, "_sum_in_chunks", plain_token_sums),
        mock.patch.object(loss, "_token_sums", plain_cross_entropy),
    ):
        lowered = program.lower_step(config, devices)
    return program.memory_of(program.compile_program(lowered))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/vindr_lora.py")
    parser.add_argument("--topology", default="v5p:2x2x1")
    parser.add_argument("--only", choices=("plain", "ours"))
    flags, overrides = parser.parse_known_args()
    config, topology = load_config(flags.config, overrides), parse_topology(flags.topology)
    images = batch_images(config) * topology.chips
    config.training.batch_questions = None
    config.training.batch_images = images
    found = {}
    for name in ("plain", "ours"):
        if flags.only not in (None, name):
            continue
        start = time.process_time()
        memory = found[name] = compile_step(config, topology, plain=name == "plain")
        print(
            f"{name}: temporaries {memory.temporaries / GIB:.2f} GiB a chip, arguments "
            f"{memory.arguments / GIB:.2f}, peak {memory.peak / GIB:.2f}; compiled in "
            f"{time.process_time() - start:.0f} s of CPU",
            flush=True,
        )
    if len(found) == 2:
        ratio = found["ours"].temporaries / found["plain"].temporaries
        print(f"ours are {ratio:.0%} of the plain ones")


if __name__ == "__main__":
    cli.run(main)
