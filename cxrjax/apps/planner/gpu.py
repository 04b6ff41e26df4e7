"""GPUs that are not there, for XLA's compiler of CUDA programs alone (extra `plan-gpu`)."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any
from unittest import mock

from cxrjax.distributed.hardware import Topology
from cxrjax.files import read_packaged

# GPUs of a machine; more are several machines.
_OF_A_HOST = 8
# Of every GPU since 2020, and a cuDNN that has attention with its gradients.
_COMMON = {
    **{"threads_per_block_limit": 1024, "threads_per_warp": 32, "shared_memory_per_block": 49152},
    **{"block_dim_limit_x": 2**31 - 1, "block_dim_limit_y": 65535, "block_dim_limit_z": 65535},
    **{"registers_per_core_limit": 65536, "registers_per_block_limit": 65536},
}
_CUDNN = (9, 10, 0)


def is_installed() -> bool:
    """Returns whether the compiler is there; it needs no GPU and no driver."""
    return importlib.util.find_spec("jax_plugins") is not None and (
        importlib.util.find_spec("jax_plugins.xla_cuda12") is not None
    )


def described(name: str) -> dict[str, Any] | None:
    """The numbers of a chip's description; None where there is none."""
    rows = read_packaged("cxrjax.distributed", "gpu_targets.toml")
    if name not in rows:
        return None
    row = rows[name]
    return {**rows[row["like"]], **row} if "like" in row else row


def can_compile(topology: Topology) -> bool:
    """Returns whether programs for a slice of GPUs can be compiled here."""
    return topology.chip.kind == "gpu" and described(topology.chip.name) is not None


def target_config(topology: Topology) -> str:
    """XLA's description of a chip (`GpuTargetConfigProto` as text)."""
    row = dict(described(topology.chip.name) or {})
    row.pop("like", None)
    major, minor = row.pop("major"), row.pop("minor")
    numbers = " ".join(f"{name}: {value}" for name, value in {**_COMMON, **row}.items())
    parts = zip(("major", "minor", "patch"), _CUDNN, strict=True)
    version = " ".join(f"{name}: {value}" for name, value in parts)
    return (
        f"gpu_device_info {{ {numbers} "
        f"cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
        f'platform_name: "CUDA" dnn_version_info {{ {version} }} '
        f'device_description_str: "{topology.chip.device_kinds[0]}"'
    )


def description(topology: Topology) -> dict[str, str]:
    """Arguments that describe a slice of GPUs that is not there to JAX."""
    machines, rest = divmod(topology.chips, _OF_A_HOST)
    shape = f"1x{machines}x{_OF_A_HOST}" if machines and not rest else f"1x1x{topology.chips}"
    return {
        "platform": "cuda",
        "topology_name": topology.chip.name,
        "target_config": target_config(topology),
        "topology": shape,
    }


@contextlib.contextmanager
def cudnn_of(devices: Any) -> Iterator[None]:
    """Answers from the description what JAX would ask a GPU before it writes cuDNN's attention."""
    from jax._src.cudnn import fused_attention_stablehlo as attention

    def capability(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    own = capability(str(devices[0].compute_capability))
    major, minor, patch = _CUDNN
    answers = {
        "check_cudnn_version": lambda: major * 10_000 + minor * 100 + patch,
        "check_compute_capability": lambda least: own >= capability(least),
        "is_cuda_compute_capability_equal": lambda one: own == capability(one),
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(attention, name, answer))
        yield
