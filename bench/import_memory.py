"""Shows how much memory an import takes, on a synthetic checkpoint of several shards.

    python -m bench.import_memory [--gigabytes=2] [--dtype=bfloat16]

Writes the checkpoint to a temporary folder, reads it in a process of its own, and compares that
process's peak memory with the weights plus one shard (and what the process took before).
"""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.models.hf_export import LazyTensor, write_shards
from cxrjax.models.hf_import import abstract_vlm, open_checkpoint, read_parameters
from cxrjax.models.hf_layout import published_prefixes, tensor_rules, with_prefix
from cxrjax.models.partition import parameter_shapes
from cxrjax.models.presets import DecoderConfig, VisionConfig, VLMConfig

_SHARDS = 6
_LAYER = DecoderConfig(
    vocab_size=32_768, width=1024, depth=1, num_heads=8, num_kv_heads=2, head_dim=128, mlp_dim=6144
)
_VISION = VisionConfig(image_size=224, patch_size=14, width=512, depth=8, num_heads=8, mlp_dim=2048)


def synthetic_sizes(num_bytes: int, dtype: str) -> VLMConfig:
    """A PaliGemma-like model of at least so many bytes."""

    def sized(depth: int) -> VLMConfig:
        return VLMConfig(_VISION, dataclasses.replace(_LAYER, depth=depth), loc_token_start=4)

    itemsize = jax.numpy.dtype(dtype).itemsize
    counts = [
        sum(int(np.prod(shape)) for shape in parameter_shapes(abstract_vlm(sized(depth))).values())
        for depth in (1, 2)
    ]
    layer = counts[1] - counts[0]
    return sized(1 + max(0, -(-(num_bytes // itemsize - counts[0]) // layer)))


def write_synthetic(directory: Path, sizes: VLMConfig, dtype: str) -> None:
    """A checkpoint of these sizes in `_SHARDS` files or one more."""
    shapes, prefixes = parameter_shapes(abstract_vlm(sizes)), published_prefixes(sizes)
    assert sizes.vision is not None
    values = np.random.default_rng(0).normal(size=1_000_003).astype(jax.numpy.dtype(dtype))
    tensors = []
    for rule in tensor_rules(sizes):
        shape = rule.their_shape(shapes[rule.path], sizes.vision.patch_size)
        for name in rule.names(sizes):

            def make(shape: tuple[int, ...] = shape) -> np.ndarray:
                return np.resize(values, shape)

            tensors.append(LazyTensor(with_prefix(name, prefixes), shape, dtype, make))
    total = sum(tensor.nbytes for tensor in tensors)
    write_shards(directory, tensors, max_shard_bytes=-(-total // _SHARDS))


def peak_bytes() -> int:
    """Largest resident memory of this process so far; its parent's does not count."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    if found is None:
        raise UserError("/proc/self/status has no VmHWM; this benchmark needs Linux")
    return int(found[1]) * 1024


def measure(directory: Path, sizes: VLMConfig) -> dict[str, float]:
    """Reads a checkpoint in this process: seconds, and bytes before and at the peak."""
    jax.block_until_ready(jax.numpy.zeros(1))  # starts the backend
    before, begun = peak_bytes(), time.perf_counter()
    arrays = read_parameters(open_checkpoint(directory), sizes)
    seconds = time.perf_counter() - begun
    weights = sum(array.nbytes for array in arrays.values())
    return {"before": before, "peak": peak_bytes(), "weights": weights, "seconds": seconds}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.import_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of weights, at least")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    sizes = synthetic_sizes(int(flags.gigabytes * 1e9), flags.dtype)
    if flags.read is not None:
        print(json.dumps(measure(flags.read, sizes)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_synthetic(Path(folder), sizes, flags.dtype)
        shards = [path.stat().st_size for path in Path(folder).glob("*.safetensors")]
        again = [f"--gigabytes={flags.gigabytes}", f"--dtype={flags.dtype}", f"--read={folder}"]
        command = [sys.executable, "-m", "bench.import_memory", *again]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(lines.splitlines()[-1])
    taken, allowed = found["peak"] - found["before"], found["weights"] + max(shards)
    print(
        f"{found['weights'] / 1e9:.2f} GB of {flags.dtype} weights in {len(shards)} shards of up "
        f"to {max(shards) / 1e9:.2f} GB, read in {found['seconds']:.1f} s\n"
        f"peak memory {found['peak'] / 1e9:.2f} GB, {found['before'] / 1e9:.2f} GB of it before; "
        f"reading took {taken / 1e9:.2f} GB, weights plus one shard are {allowed / 1e9:.2f} GB"
    )
    if taken > allowed:
        raise UserError("reading took more memory than the weights plus one shard")


if __name__ == "__main__":
    run(main)
