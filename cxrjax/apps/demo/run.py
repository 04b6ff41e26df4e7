"""The work of `demo_app`: a page, the models behind it, and the servers that answer for them."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cxrjax.apps import page_server
from cxrjax.apps.demo import answers
from cxrjax.apps.demo.flags import DemoFlags
from cxrjax.lock import LOCK_FILE, try_flock

_PREFIX = "cxrjax-demo-"
# Few programs: somebody waits for the page.
_SHAPES = {"slots": 2, "longest_prompt": 128, "least_bucket": 64}


def serve(flags: DemoFlags) -> None:
    """Serves the page until Ctrl-C.

    Raises:
        UserError: Gradio is not installed, or no such server or models.
    """
    from cxrjax.apps.demo.page import import_gradio

    # Uploads are removed however the process is asked to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), uploads_folder() as folder:
        import_gradio(folder / "uploads")
        from cxrjax.apps.demo import page

        with page_server.listen(flags.host, flags.port) as listening, open_models(flags) as models:
            hosts = [*flags.allowed_host] or [flags.host]
            page.serve(models, listening, folder, flags.max_megabytes, hosts)


@contextlib.contextmanager
def uploads_folder() -> Iterator[Path]:
    """A folder for uploads, removed at the end; those that killed pages left are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), open(left / LOCK_FILE, "ab") as lock:
            # A page that runs holds its lock; another user's folder cannot be opened.
            if try_flock(lock.fileno()):
                shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as name,
        open(Path(name) / LOCK_FILE, "ab") as own,
    ):
        try_flock(own.fileno())
        yield Path(name)


@contextlib.contextmanager
def open_models(flags: DemoFlags) -> Iterator[answers.Models]:
    """Opens the models, and servers of this process where --server names no other.

    Raises:
        UserError: no such server or models.
    """
    if flags.server:
        token = os.environ.get("CXRJAX_LM_API_KEY", "")
        server = answers.ServerAddress(flags.server, token, flags.allow_sending)
        yield answers.models_of(server, [name for name in flags.models.split(",") if name])
        return
    from cxrjax.apps.serving.pair import open_pair
    from cxrjax.apps.serving.start import Bounds, answering_beside
    from cxrjax.cli import keep_compiled_programs

    keep_compiled_programs()
    # An image is a third longer in a request than on disk.
    bounds = Bounds(seconds=600, body_bytes=(flags.max_megabytes * 4 // 3 + 1) * page_server.MIB)
    with contextlib.ExitStack() as running:
        asked: dict[str, answers.AskedModel] = {}
        for served in open_pair(flags.base, flags.tuned, **_SHAPES):
            server = answers.ServerAddress(*running.enter_context(answering_beside(served, bounds)))
            asked |= {name: answers.AskedModel(server, name) for name in served.by_name}
        yield answers.Models(asked)
