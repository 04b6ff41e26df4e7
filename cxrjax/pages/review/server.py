"""The review as pages, and over HTTP: each reader a link of their own, ratings saved at once.

    GET  /TOKEN/           the page
    GET  /TOKEN/ratings    what this reader has rated: {reader, handed_in, ratings}
    POST /TOKEN/ratings    one rating, {question_id, field, value}; 204 when it is on disk
    POST /TOKEN/hand_in    closes the reader's sheet
    GET  /TOKEN/agreement  who agreed on what, after both have handed in

Nothing is answered without a token, so neither the other reader nor a page of another site that is
open in the same browser gets at ratings.
"""

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from markupsafe import Markup
from tqdm import tqdm

from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.pages import STYLE_SHEET
from cxrjax.pages.results.cases import script_json
from cxrjax.pages.results.tables import sections
from cxrjax.pages.review.sheet import COLUMNS, DIMENSIONS, LEVELS, NOT_APPLICABLE, sheet_rows
from cxrjax.pages.review.store import HandedInError, RatingRefusedError, ReviewStore
from cxrjax.records import QARecord
from cxrjax.scoring.overlays import COLOURS, TRUTH, jpeg_data_uri
from cxrjax.scoring.text_tables import template

# Longer side of a picture on the page: a hundred of them make some 10 MB.
_LONG_SIDE = 1000


def render_review_page(
    sample: Sequence[QARecord], image_root: Path, served: bool = False
) -> tuple[str, int]:
    """The page, and how many of its questions have no picture.

    Args:
        sample: the questions, in the order of the sheet.
        image_root: what `image_path` is relative to. A picture that is not there or cannot be read
            is replaced by a line that says so.
        served: the page belongs to a review server, which keeps the ratings; else the browser does,
            and saves a CSV.
    """
    rows = sheet_rows(sample)
    pictures: dict[str, dict[str, Any]] = {}
    for record in tqdm(sample, desc="pictures", unit="image"):
        if record.image_id not in pictures:
            pictures[record.image_id] = _picture(image_root / record.image_path)
    items = [
        {
            "row": row,
            "picture": pictures[record.image_id],
            "boxes": [
                {"x": x0, "y": y0, "width": x1 - x0, "height": y1 - y0}
                for x0, y0, x1, y1 in record.boxes
            ],
        }
        for record, row in zip(sample, rows, strict=True)
    ]
    # The page keeps ratings under the sheet's own hash: another sample does not find them.
    key = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    data = {
        "key": key,
        "columns": COLUMNS,
        "dimensions": list(DIMENSIONS),
        "rows": rows,
        "served": served,
    }
    without = sum(not pictures[record.image_id]["uri"] for record in sample)
    html = template(str(__package__), "review.html.j2").render(
        items=items,
        served=served,
        script=Markup(_beside("review_page.js")),
        dimensions=DIMENSIONS,
        levels=LEVELS,
        not_applicable=NOT_APPLICABLE,
        colour=COLOURS[TRUTH],
        data=Markup(script_json(data)),
    )
    return html, without


def render_agreement(result: dict[str, Any], text: str, written: Sequence[str]) -> str:
    """The agreement of two sheets as a page.

    Args:
        result, text: agreement.json and agreement.md.
        written: names of the files that hold the review.
    """
    return template(str(__package__), "review_agreement.html.j2").render(
        style=Markup(STYLE_SHEET.read_text(encoding="utf-8")),
        sections=sections(text, "agreement"),
        readers=result["readers"],
        disagreements=result["disagreements"],
        written=written,
    )


def _beside(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _picture(path: Path) -> dict[str, Any]:
    """A picture's address and size, or why there is none."""
    try:
        pixels = read_image(path)
    except (ImageError, OSError):
        found = "cannot be read" if path.is_file() else "is not there"
        return {"uri": "", "why": f"{path.name} {found}", "width": 0, "height": 0}
    height, width = pixels.shape[:2]
    return {
        "uri": jpeg_data_uri(pixels, _LONG_SIDE),
        "why": "",
        "width": width,
        "height": height,
    }


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
        """The reader whom the link was made for."""
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
