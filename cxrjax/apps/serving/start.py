"""Start of a server for models, in this thread or in the background of a process."""

import contextlib
import dataclasses
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from cxrjax.apps import page_server
from cxrjax.apps.serving.api_guard import ApiGuard
from cxrjax.apps.serving.app import ModelServer
from cxrjax.apps.serving.engine import Engine
from cxrjax.apps.serving.metrics import ServerMetrics
from cxrjax.apps.serving.named_models import ServedModels
from cxrjax.apps.serving.uploads import Uploads
from cxrjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Resource limits of a server: waiting questions, seconds of an answer, bytes.

    `drain_seconds` is the timeout of running answers when the server is to end.
    """

    queue: int = 128
    seconds: float = 60.0
    drain_seconds: int = 30
    body_bytes: int = 50 * page_server.MIB
    image_bytes: int = 512 * page_server.MIB


def answer_until_told(
    served: ServedModels,
    listening: socket.socket,
    bounds: Bounds,
    tokens: Mapping[str, str],
    hosts: Sequence[str] = (),
    when_ready: Callable[[], None] = lambda: None,
) -> Engine:
    """Compiles and answers until Ctrl-C or SIGTERM; what is on its way then is answered still.

    Args:
        tokens: as of `ApiGuard`.
        when_ready: called once, in a thread of its own.

    Returns:
        The engine, ended.

    Raises:
        UserError: the engine has failed, or answers took longer than they may at the end.
    """
    engine, guard, limits = _make(served, bounds, tokens, hosts)
    thread = threading.Thread(target=engine.run, name="engine", daemon=True)

    def tell() -> None:
        if engine.wait_until_warm(None):
            when_ready()

    thread.start()
    threading.Thread(target=tell, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        page_server.serve(
            guard, listening, limits, bounds.drain_seconds, lambda: engine.failure is not None
        )
    engine.drain()
    # The thread itself, not the engine's word: what it frees must be gone before Python ends.
    thread.join(bounds.drain_seconds)
    if thread.is_alive():
        raise UserError(f"answers took longer than --drain_seconds={bounds.drain_seconds}")
    if engine.failure is not None:
        raise UserError(
            "the engine has failed (see its last log line); start the server again, with fewer "
            "--slots if memory was short"
        )
    return engine


@contextlib.contextmanager
def answering_beside(served: ServedModels, bounds: Bounds) -> Iterator[tuple[str, str]]:
    """A server on a free port of this machine alone, in threads of this process.

    Yields:
        Its address and the token that it wants.
    """
    token = secrets.token_hex(16)
    engine, guard, limits = _make(served, bounds, {"page": token}, ())
    with page_server.listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=engine.run, name="engine", daemon=True)
        thread.start()
        threading.Thread(
            target=page_server.serve, args=(guard, listening, limits), name="server", daemon=True
        ).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", token
        finally:
            engine.drain()
            thread.join(bounds.drain_seconds)


def _make(
    served: ServedModels, bounds: Bounds, tokens: Mapping[str, str], hosts: Sequence[str]
) -> tuple[Engine, ApiGuard, page_server.Limits]:
    metrics, slots = ServerMetrics(), served.programs.shapes.slots
    engine = Engine(
        served.programs,
        served.stop_ids,
        bounds.queue,
        bounds.image_bytes,
        metrics.first_token.observe,
    )
    metrics.watch(engine)
    server = ModelServer(
        engine,
        served.by_name,
        Uploads(bounds.image_bytes // 4),
        metrics,
        bounds.seconds,
        4 * bounds.body_bytes,
    )
    limits = page_server.Limits(
        connections=2 * (slots + bounds.queue) + 32,
        requests=slots + bounds.queue + 32,
        body_bytes=bounds.body_bytes,
        answer_seconds=bounds.seconds + 30,
        stream_seconds=bounds.seconds + 30,
    )
    return engine, ApiGuard(server.app(), limits, tokens, hosts), limits
