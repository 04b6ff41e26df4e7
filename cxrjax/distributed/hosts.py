"""Several processes as one program: how they find each other, and what they tell each other.

On a pod or a cluster every host runs the same command (launch/), and `jax.devices()` are those of
all. The first process writes files and talks; the others work. Without several processes all of
this does nothing.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from cxrjax.errors import UserError
from cxrjax.flags import Flag
from cxrjax.untrusted.json_text import parse_json, parse_object

# How long a connection may take to say who it is, and how often a process knocks.
_SECONDS_TO_REPORT = 5.0
_SECONDS_BETWEEN_TRIES = 0.2


def roll_call(address: str, process: int, count: int, timeout: float) -> None:
    """Returns in every process when all have come.

    Args:
        address: HOST:PORT of process 0; the port is free.
        process: this one, 0 to count - 1.
        timeout: seconds that process 0 waits for the others, and each of them for process 0.

    Raises:
        UserError: in every process that has come: which ones have not. Or an address that is none,
            or whose port is taken.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(
            f"coordinator address {address!r}: expected HOST:PORT, the port from 1 to {2**16 - 1}"
        )
    if count == 1:
        return
    if process == 0:
        _call(int(port), count, timeout)
    else:
        _report(host.strip("[]"), int(port), process, count, timeout)


def _call(port: int, count: int, timeout: float) -> None:
    """Process 0: waits for the others and tells them how it went."""
    deadline = time.monotonic() + timeout
    present: dict[int, socket.socket] = {}
    problem = None
    with contextlib.ExitStack() as connections, _listen(port) as server:
        while len(present) < count - 1 and problem is None:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection = connections.enter_context(server.accept()[0])
            except TimeoutError:
                missing = sorted(set(range(1, count)) - present.keys())
                problem = (
                    f"{_processes(missing)} of {count} did not start within {timeout:g} s; see "
                    "what they have written, or wait longer (--start_timeout)"
                )
                break
            report = _read(connection, _SECONDS_TO_REPORT)
            if report is None:  # a stranger
                continue
            process, their_count = report.get("process"), report.get("count")
            if their_count != count or not isinstance(process, int) or not 0 < process < count:
                problem = (
                    f"a process came as {process} of {their_count} to a run of {count}; start all "
                    "of them the same number of processes, and each run on its own port"
                )
            elif process in present:
                problem = f"process {process} came twice; start every process with its own number"
            else:
                present[process] = connection
        for connection in present.values():
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"problem": problem}).encode() + b"\n")
    if problem is not None:
        raise UserError(problem)


def _report(host: str, port: int, process: int, count: int, timeout: float) -> None:
    """Any other process: tells process 0 that it is there and waits to hear of the rest."""
    message = json.dumps({"process": process, "count": count}).encode() + b"\n"
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 5.0) as call:
            call.sendall(message)
            # Process 0 may have started just now, and waits its whole time for the others.
            answer = _read(call, timeout + _SECONDS_TO_REPORT)
            if answer is not None and "problem" in answer:
                if answer["problem"] is not None:
                    raise UserError(str(answer["problem"]))
                return
        if time.monotonic() > deadline:
            raise UserError(
                f"process 0 of {count} did not answer at {host}:{port} within {timeout:g} s; see "
                "what it has written, and whether the address can be reached from here"
            )
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
            )
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise UserError(f"coordinator port {port}: {error.strerror}; choose another") from None


def _read(connection: socket.socket, timeout: float) -> dict[str, object] | None:
    """A line of JSON; None where no such line comes."""
    connection.settimeout(timeout)
    try:
        with connection.makefile("rb") as stream:
            return parse_object(stream.readline(1000))
    except (OSError, ValueError):
        return None


def _processes(numbers: list[int]) -> str:
    """`process 3`, or `processes 1, 3 and 300 more`."""
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"processes {', '.join(map(str, numbers[:8]))}{more}"


ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
# Variables of launchers that say how many tasks they have started.
_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_SLURM_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
_TPU_HOSTS = "TPU_WORKER_HOSTNAMES"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFlags:
    """One command on every host (launch/local.py starts several here).

    By default one process, or what JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID
    say.

    Attributes:
        distributed: auto: as Cloud TPU, GKE, Slurm or MPI have started the processes; off: this one
        coordinator: of process 0, with a free port
        num_processes: on all hosts
        process_id: 0 to N - 1
        start_timeout: timeout for all processes to start
        host_timeout: the run ends if a process stays silent for longer
    """

    distributed: Literal["auto", "off"] | None = None
    coordinator: Annotated[str | None, Flag("HOST:PORT")] = None
    num_processes: Annotated[int | None, Flag("N")] = None
    process_id: Annotated[int | None, Flag("I")] = None
    start_timeout: Annotated[int, Flag("SECONDS")] = 300
    host_timeout: Annotated[int, Flag("SECONDS")] = 100
    group: ClassVar[str] = "several processes"


def initialize(
    flags: HostFlags | argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> None:
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
            f"{index}; set all three (flags, or {ADDRESS}, {COUNT} and {INDEX})"
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
    """Returns whether there is only one process."""
    import jax  # not at the top: --help stays quick

    return jax.process_count() == 1


def is_first() -> bool:
    """Returns whether this is process 0, which writes files and logs."""
    import jax  # not at the top: --help stays quick

    return jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """Returns each process's value, in their order, in all of them. Called by all at the same time.

    Args:
        value: fit for JSON.
    """
    if alone():
        return [value]
    import numpy as np
    from jax.experimental import multihost_utils

    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(content)))
    # Powers of two, so that few shapes are compiled.
    padded = np.zeros(1 << max(8, int(lengths.max() - 1).bit_length()), np.uint8)
    padded[: len(content)] = content
    rows = multihost_utils.process_allgather(padded)
    return [parse_json(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]


def from_first(value: Any) -> Any:
    """Returns the first process's value, fit for JSON, in all of them. Called by all."""
    return gather(value if is_first() else None)[0]


def wait_for_all(name: str) -> None:
    """Returns when all processes have come here."""
    if not alone():
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def check_same(values: Mapping[str, Any]) -> None:
    """Refuses processes that have not all read the same.

    Raises:
        UserError: in all of them; names the first difference of `values`, and its process.
    """
    found = gather(dict(values))
    for process, theirs in enumerate(found):
        for name, value in found[0].items():
            if theirs[name] != value:
                raise UserError(
                    f"process {process} has another {name} than process 0: {theirs[name]!r} and "
                    f"{value!r}; use the same files and arguments on all hosts"
                )


def refuse_in_all(problem: str | None) -> None:
    """Refuses in all processes what the first one has found; the others' is not looked at.

    Raises:
        UserError: in all of them, where there is a problem.
    """
    problem = from_first(problem)
    if problem is not None:
        raise UserError(problem)


@contextlib.contextmanager
def held_by_first(lock: AbstractContextManager[None]) -> Iterator[None]:
    """Holds a lock (lock.py) in the first process, on behalf of all.

    Raises:
        UserError: in all of them: it cannot have it.
    """
    problem = None
    with contextlib.ExitStack() as stack:
        if is_first():
            try:
                stack.enter_context(lock)
            except UserError as error:
                problem = str(error)
        refuse_in_all(problem)
        yield


_SHARE = "name a directory on storage that all hosts share"


def check_shared(directory: Path, remedy: str = _SHARE) -> None:
    """Refuses a directory that is not the same one for all processes.

    Args:
        remedy: what to do.

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
            f"writes there; {remedy}"
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
                "one run, or --distributed=off to run each separately"
            )
