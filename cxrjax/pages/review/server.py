"""The two readers' review over HTTP: each reader a link of their own, each rating saved at once.

    GET  /TOKEN/           the page
    GET  /TOKEN/ratings    what this reader has rated: {reader, handed_in, ratings}
    POST /TOKEN/ratings    one rating, {question_id, field, value}; 204 when it is on disk
    POST /TOKEN/hand_in    closes the reader's sheet
    GET  /TOKEN/agreement  who agreed on what, after both have handed in

Nothing is answered without a token, so neither the other reader nor a page of another site that is
open in the same browser gets at ratings.
"""

import hmac
import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cxrjax.errors import UserError
from cxrjax.pages.review.store import HandedInError, RatingRefusedError, ReviewStore

_LONGEST_BODY = 100_000  # bytes: a comment of 10,000 characters, with room
_TIMEOUT = 60.0  # seconds that a connection may say nothing
_HEADERS = {
    "Cache-Control": "no-store",
    # The address holds the reader's token.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
}
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class ReviewServer(ThreadingHTTPServer):
    """Serves one review.

    Args:
        address: host and port; port 0 takes a free one (`server_port`).
        page: HTML of the sheet, the same for both readers.
        agreed: called at most once, when both have handed in: writes the files and gives the HTML
            that shows the agreement.

    Raises:
        UserError: the address is in use or not this machine's.
    """

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], store: ReviewStore, page: str, agreed: Callable[[], str]
    ):
        self.store = store
        self.page = page
        self._agreed = agreed
        self._agreement: str | None = None
        self._lock = threading.Lock()
        try:
            super().__init__(address, _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"{address[0]}:{address[1]}: cannot serve there: {error}; choose another --port or "
                "--host"
            ) from None

    def agreement(self) -> str:
        """HTML of the agreement; only where `store.complete()`."""
        with self._lock:
            if self._agreement is None:
                self._agreement = self._agreed()
            return self._agreement

    def reader_of(self, token: str) -> str | None:
        """Whose link it is."""
        for name, own in self.store.tokens().items():
            if hmac.compare_digest(own.encode(), token.encode()):
                return name
        return None


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        found = self._find()
        if found is None:
            return
        reader, place = found
        store = self.server.store
        if place == "":
            self._answer(HTTPStatus.OK, self.server.page, _HTML)
        elif place == "ratings":
            state = {
                "reader": reader,
                "handed_in": store.handed_in(reader),
                "ratings": store.ratings(reader),
            }
            self._answer(HTTPStatus.OK, json.dumps(state), _JSON)
        elif place == "agreement" and store.complete():
            self._answer(HTTPStatus.OK, self.server.agreement(), _HTML)
        elif place == "agreement":
            waits = "the other reader" if store.handed_in(reader) else "your own sheet"
            self._answer(HTTPStatus.CONFLICT, f"Shown when both have handed in; {waits} has not.")
        else:
            self._answer(HTTPStatus.NOT_FOUND, f"no page {place!r}")

    def do_POST(self) -> None:
        # Read in any case: on a kept connection the next request would begin with it.
        body = self._body()
        found = self._find() if body is not None else None
        if body is None or found is None:
            return
        reader, place = found
        try:
            if place == "ratings":
                self._rate(reader, body)
            elif place == "hand_in":
                self.server.store.hand_in(reader)
                if self.server.store.complete():
                    self.server.agreement()
            else:
                self._answer(HTTPStatus.NOT_FOUND, f"no page {place!r}")
                return
        except RatingRefusedError as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error))
        except HandedInError as error:
            self._answer(HTTPStatus.CONFLICT, str(error))
        else:
            self._answer(HTTPStatus.NO_CONTENT, "")

    def _rate(self, reader: str, body: bytes) -> None:
        try:
            told: Any = json.loads(body)
        except ValueError:
            raise RatingRefusedError("the body is no JSON") from None
        names = ("question_id", "field", "value")
        if not (
            isinstance(told, dict)
            and set(told) == set(names)
            and all(isinstance(value, str) for value in told.values())
        ):
            raise RatingRefusedError(f"expected an object with the texts {', '.join(names)}")
        self.server.store.rate(reader, *(told[name] for name in names))

    def _find(self) -> tuple[str, str] | None:
        """The reader and what is asked for; answers itself where nobody has the token."""
        token, slash, place = self.path.partition("?")[0].lstrip("/").partition("/")
        reader = self.server.reader_of(token)
        if reader is None or not slash:
            self._answer(
                HTTPStatus.NOT_FOUND, "Open the link that the program printed for you, as a whole."
            )
            return None
        return reader, place

    def _body(self) -> bytes | None:
        """The body; answers itself where it has no length or is too long."""
        told = self.headers.get("Content-Length", "")
        if told.isascii() and told.isdigit() and int(told) <= _LONGEST_BODY:
            return self.rfile.read(int(told))
        self.close_connection = True  # what follows is not read
        if told.isascii() and told.isdigit():
            text = f"a body of {told} bytes, expected at most {_LONGEST_BODY}"
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        else:
            self._answer(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing or no number")
        return None

    def _answer(self, status: HTTPStatus, text: str, kind: str = _TEXT) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: lines of access would hold the readers' tokens."""
