"""Waits until all processes of a run have joined, and names those that are missing.

Where a process is missing, JAX's own start ends all others with a stack trace that names nobody. So
process 0 first listens on the coordinator's port, the others report there, and all of them hear the
same: go on, or who did not come. Then the port is JAX's.
"""

import contextlib
import json
import socket
import time

from cxrjax.errors import UserError

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
                    f"a process came as {process} of {their_count} to a run of {count}; give all "
                    "of them the same number of processes, and each run a port of its own"
                )
            elif process in present:
                problem = f"process {process} came twice; give every process its own number"
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
            content = json.loads(stream.readline(1000))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _processes(numbers: list[int]) -> str:
    """`process 3`, or `processes 1, 3 and 300 more`."""
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"processes {', '.join(map(str, numbers[:8]))}{more}"
