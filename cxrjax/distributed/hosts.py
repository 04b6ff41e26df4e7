"""Several processes as one program: how they find each other, and what they tell each other.

On a pod or a cluster every host runs the same command (launch/), and `jax.devices()` are those of
all. The first process writes files and talks; the others work. Without several processes all of
this does nothing.
"""

import argparse
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.distributed.roll_call import roll_call
from cxrjax.errors import UserError

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
# Variables of launchers that say how many tasks they have started.
_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_SLURM_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
_TPU_HOSTS = "TPU_WORKER_HOSTNAMES"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares what `initialize` reads."""
    group = parser.add_argument_group(
        "several processes",
        "One command on every host (launch/local.py starts several here). By default one process, "
        f"or what {ADDRESS}, {COUNT} and {INDEX} say.",
    )
    add = group.add_argument
    add(
        "--distributed",
        choices=("auto", "off"),
        help="auto: as Cloud TPU, GKE, Slurm or MPI have started the processes; off: this one",
    )
    add("--coordinator", metavar="HOST:PORT", help="of process 0, with a free port")
    add("--num_processes", type=int, metavar="N")
    add("--process_id", type=int, metavar="I", help="0 to N - 1")
    add(
        "--start_timeout",
        type=int,
        default=300,
        metavar="SECONDS",
        help="wait so long for all processes (default 300)",
    )
    add(
        "--host_timeout",
        type=int,
        default=100,
        metavar="SECONDS",
        help="a process that is not heard of for so long ends the run (default 100)",
    )


def initialize(flags: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes, where there are any. Before anything else is asked of JAX.

    Raises:
        UserError: a process did not come in time (named), or flags and environment do not say
            who is who.
    """
    if flags.distributed == "off":
        return
    local_devices = None
    if flags.distributed == "auto":
        address, count, index, local_devices = _detect(flags.start_timeout, environment)
    else:
        address = flags.coordinator or environment.get(ADDRESS)
        count = _number(flags.num_processes, COUNT, environment)
        index = _number(flags.process_id, INDEX, environment)
        if address is None and count is None and index is None:
            _refuse_unknown_tasks(environment)
            return
    if address is None or count is None or index is None:
        raise UserError(
            f"several processes: coordinator is {address}, num_processes {count}, process_id "
            f"{index}; give all three (flags, or {ADDRESS}, {COUNT} and {INDEX})"
        )
    if not 0 <= index < count:
        raise UserError(f"process_id {index} of {count} processes: expected 0 to {count - 1}")
    roll_call(address, index, count, flags.start_timeout)
    import jax  # not at the top: --help stays quick

    # Of CPUs alone: how they exchange arrays.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address,
        count,
        index,
        local_device_ids=local_devices,
        cluster_detection_method="deactivate",
        initialization_timeout=flags.start_timeout,
        heartbeat_timeout_seconds=flags.host_timeout,
    )


def alone() -> bool:
    """Whether there is one process."""
    import jax  # not at the top: --help stays quick

    return jax.process_count() == 1


def is_first() -> bool:
    """Whether this process is the one that writes and talks."""
    import jax  # not at the top: --help stays quick

    return jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """What each process gives, in their order, in all of them. Called by all at the same time.

    Args:
        value: fit for JSON.
    """
    if alone():
        return [value]
    from jax.experimental import multihost_utils

    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(content)))
    # Powers of two, so that few shapes are compiled.
    padded = np.zeros(1 << max(8, int(lengths.max() - 1).bit_length()), np.uint8)
    padded[: len(content)] = content
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]


def from_first(value: Any) -> Any:
    """What the first process gives, in all of them; fit for JSON. Called by all."""
    return gather(value if is_first() else None)[0]


def wait_for_all(name: str) -> None:
    """Returns when all processes have come here."""
    if not alone():
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def check_same(values: Mapping[str, Any]) -> None:
    """Whether all processes have read the same.

    Args:
        values: by what they are, such as hashes; fit for JSON.

    Raises:
        UserError: in all of them; names the first difference and its process.
    """
    found = gather(dict(values))
    for process, theirs in enumerate(found):
        for name, value in found[0].items():
            if theirs[name] != value:
                raise UserError(
                    f"process {process} has another {name} than process 0: {theirs[name]!r} and "
                    f"{value!r}; give all hosts the same files and arguments"
                )


def check_shared(directory: Path) -> None:
    """Whether a directory is the same one for all processes.

    Raises:
        UserError: in all of them; names those that do not see what the first has written.
    """
    if alone():
        return
    name = from_first(f".shared.{os.getpid()}")
    if is_first():
        (directory / name).touch()
    wait_for_all("shared directory written")
    seen = gather((directory / name).exists())
    if is_first():
        (directory / name).unlink()
    blind = [str(process) for process, sees in enumerate(seen) if not sees]
    if blind:
        raise UserError(
            f"{directory}: process {', '.join(blind)} of {len(seen)} does not see what process 0 "
            "writes there; name a directory on storage that all hosts share"
        )


def _detect(
    timeout: int, environment: Mapping[str, str]
) -> tuple[str | None, int | None, int | None, Any]:
    """Coordinator, count, index and local devices (None: all) as JAX finds them."""
    # JAX detects them nowhere that is public but inside of its start, which is too late to tell
    # who is missing.
    from jax._src.clusters import ClusterEnv

    found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, timeout)
    if found[0] is None:
        raise UserError(
            "--distributed=auto: neither Cloud TPU nor GKE, Slurm or MPI has started this process; "
            "give --coordinator, --num_processes and --process_id, or leave the flag out"
        )
    if re.fullmatch(r"1(\(x\d+\))?", environment.get(_SLURM_TASKS_PER_NODE, "")):
        # JAX gives a task of Slurm one device, also where it has the node for itself.
        return *found[:3], None
    return found


def _number(flag: int | None, variable: str, environment: Mapping[str, str]) -> int | None:
    if flag is not None or variable not in environment:
        return flag
    try:
        return int(environment[variable])
    except ValueError:
        raise UserError(f"{variable}={environment[variable]!r}: expected a number") from None


def _refuse_unknown_tasks(environment: Mapping[str, str]) -> None:
    """Several processes that know nothing of each other would each do all of the work."""
    for name in (*_TASK_COUNTS, _TPU_HOSTS):
        value = environment.get(name, "")
        tasks = len(value.split(",")) if name == _TPU_HOSTS else int(value or 1)
        if tasks > 1:
            raise UserError(
                f"{name}={value}: one of {tasks} processes; add --distributed=auto to make them "
                "one run, or --distributed=off to run each alone"
            )
