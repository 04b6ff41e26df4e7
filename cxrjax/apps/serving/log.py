"""Lines of log as JSON objects on standard error: what happened, never what was said or shown."""

import datetime
import json
import logging
import sys
from typing import Any

_LOG = logging.getLogger("cxrjax.apps.serving")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        # Ours are objects already; what libraries say becomes one.
        told = message[1:-1] if message.startswith("{") else f'"message": {json.dumps(message)}'
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        return f'{{"time": "{now}", "level": "{record.levelname.lower()}", {told}}}'


def log_lines() -> None:
    """Configures logging of this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]  # JAX's libraries bring their own
    root.setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)


def log_event(event: str, **about: Any) -> None:
    """One line."""
    _LOG.info("%s", json.dumps({"event": event, **about}))
