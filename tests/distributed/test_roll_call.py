"""Processes, here threads, that come, stay away or are not who they should be."""

import contextlib
import socket
import threading
import time

import pytest

from cxrjax.distributed.hosts import roll_call
from cxrjax.errors import UserError


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _call_all(port, calls, timeout=10.0):
    """Errors of roll_call(process, count) for each of the calls, all at once."""
    found = [None] * len(calls)

    def one(place, process, count):
        try:
            roll_call(f"127.0.0.1:{port}", process, count, timeout)
        except UserError as error:
            found[place] = str(error)

    threads = [
        threading.Thread(target=one, args=(place, *call)) for place, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_all_come_in_any_order_and_the_port_is_free_again(port):
    assert _call_all(port, [(3, 4), (1, 4), (0, 4), (2, 4)]) == [None] * 4
    assert _call_all(port, [(0, 2), (1, 2)]) == [None] * 2
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_one_process_waits_for_nobody():
    roll_call("localhost:1", 0, 1, 0.0)


def test_the_missing_are_named_to_all_who_came(port):
    start = time.monotonic()
    errors = _call_all(port, [(0, 4), (2, 4)], timeout=1.0)
    assert errors[0] == errors[1]
    assert errors[0].startswith("processes 1, 3 of 4 did not start within 1 s")
    assert time.monotonic() - start < 10
    (error, other) = _call_all(port, [(0, 3), (1, 3)], timeout=1.0)
    assert error == other and error.startswith("process 2 of 3 did not start")
    assert "8 and 91 more of 100" in _call_all(port, [(0, 100)], timeout=0.1)[0]


def test_without_process_0_its_address_is_told(port):
    (error,) = _call_all(port, [(1, 2)], timeout=0.5)
    assert error.startswith(f"process 0 of 2 did not answer at 127.0.0.1:{port} within 0.5 s")


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([(0, 3), (1, 3), (1, 3)], "process 1 came twice"),
        ([(0, 2), (1, 3)], "a process came as 1 of 3 to a run of 2"),
        ([(0, 2), (5, 2)], "a process came as 5 of 2 to a run of 2"),
    ],
)
def test_processes_that_do_not_belong_together_are_refused(port, calls, message):
    errors = _call_all(port, calls, timeout=1.0)
    assert message in errors[0]


def test_strangers_on_the_port_are_passed_over(port):
    def stranger():
        for word in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b""):
            for _ in range(100):
                with contextlib.suppress(OSError):
                    with socket.create_connection(("127.0.0.1", port), 1.0) as call:
                        call.sendall(word)
                    break
                time.sleep(0.02)

    knocking = threading.Thread(target=stranger)
    knocking.start()
    late = threading.Timer(0.5, roll_call, (f"127.0.0.1:{port}", 1, 2, 10.0))
    late.start()
    assert _call_all(port, [(0, 2)]) == [None]
    knocking.join()
    late.join()


def test_unusable_addresses_are_refused(port):
    with pytest.raises(UserError, match="'localhost': expected HOST:PORT"):
        roll_call("localhost", 0, 2, 1.0)
    with socket.create_server(("", port)), pytest.raises(UserError, match="choose another"):
        roll_call(f"localhost:{port}", 0, 2, 1.0)
