"""A review over HTTP: each reader a link of their own, ratings saved at once.

    GET  /TOKEN/           the page
    GET  /TOKEN/picture/N  its N-th image at full resolution, PNG
    GET  /TOKEN/ratings    what this reader has rated: {reader, handed_in, ratings}
    POST /TOKEN/ratings    one rating, comment or correction, {question_id, field, value}; 204 when
                           it is on disk
    POST /TOKEN/hand_in    closes the reader's sheet
    GET  /TOKEN/agreement  who agreed on what, after all have handed in

Every request needs a token (`cxrjax.apps.page_server`), so neither another reader nor a page of
another site that is open in the same browser reads the ratings.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cxrjax.apps.page_server import Guard, Limits
from cxrjax.apps.review.review_pages import full_picture
from cxrjax.apps.review.store import BusyError, HandedInError, RatingRefusedError, ReviewStore
from cxrjax.errors import ForeignError, UserError
from cxrjax.images.files import ImageError
from cxrjax.untrusted.json_text import parse_object

# A hundred boxes and an answer of 10,000 characters, with room.
LIMITS = Limits(body_bytes=100_000)
_POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
_RATING = ("question_id", "field", "value")
_LOG = logging.getLogger(__name__)


class Review:
    """Requests to one review.

    Args:
        page: HTML of the sheet, the same for all readers.
        pictures: image files, by their number.
        agreed: called once all have submitted, until it succeeds: writes the files and returns
            the HTML that shows the agreement.
    """

    def __init__(
        self, store: ReviewStore, page: str, pictures: Sequence[Path], agreed: Callable[[], str]
    ) -> None:
        self._store, self._page, self._pictures, self._agreed = store, page, pictures, agreed
        self._agreement: str | None = None
        self._lock = threading.Lock()
        # One at a time: a large radiograph takes some 100 MB while it is decoded.
        self._decoding = threading.Lock()

    def guarded(self, hosts: Sequence[str]) -> Guard:
        """The review as an app to serve.

        Args:
            hosts: names by which the server is known.
        """
        routes = [
            Route("/", self._show),
            Route("/picture/{number:int}", self._show_picture),
            Route("/ratings", self._tell),
            Route("/ratings", self._rate, methods=["POST"]),
            Route("/hand_in", self._hand_in, methods=["POST"]),
            Route("/agreement", self._show_agreement),
        ]
        faults = {
            error: _answering(status)
            for error, status in (
                (ForeignError, 400),
                (RatingRefusedError, 400),
                (HandedInError, 409),
                (BusyError, 503),
                (UserError, 500),
            )
        }
        app = Starlette(routes=routes, exception_handlers=faults)
        app.router.redirect_slashes = False
        return Guard(app, LIMITS, self._store.tokens(), hosts, _POLICY)

    def agreement(self) -> str:
        """HTML of the agreement; only where `store.complete()`.

        Raises:
            UserError: its files cannot be written.
        """
        with self._lock:
            if self._agreement is None:
                self._agreement = self._agreed()
            return self._agreement

    def _show(self, request: Request) -> Response:
        return HTMLResponse(self._page)

    def _show_picture(self, request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(self._pictures):
            return PlainTextResponse("No such image.", 404)
        with self._decoding:
            try:
                content = full_picture(self._pictures[number])
            except (ImageError, OSError):
                return PlainTextResponse("The image cannot be read.", 404)
        return Response(content, media_type="image/png")

    def _tell(self, request: Request) -> Response:
        reader = request.state.who
        state = {
            "reader": reader,
            "handed_in": self._store.handed_in(reader),
            "ratings": self._store.ratings(reader),
        }
        return JSONResponse(state)

    async def _rate(self, request: Request) -> Response:
        told = parse_object(await request.body())
        if set(told) != set(_RATING) or not all(isinstance(told[name], str) for name in _RATING):
            raise RatingRefusedError(f"expected an object with the texts {', '.join(_RATING)}")
        rating = (told[name] for name in _RATING)
        await run_in_threadpool(self._store.rate, request.state.who, *rating)
        return Response(status_code=204)

    def _hand_in(self, request: Request) -> Response:
        self._store.hand_in(request.state.who)
        if self._store.complete():
            self.agreement()
        return Response(status_code=204)

    def _show_agreement(self, request: Request) -> Response:
        if self._store.complete():
            return HTMLResponse(self.agreement())
        waits = [name for name in self._store.readers if not self._store.handed_in(name)]
        own = request.state.who in waits
        told = "your own sheet has" if own else "others have"
        return PlainTextResponse(f"Shown when all have submitted; {told} not.", 409)


def _answering(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        if status == 500:
            _LOG.error("%s", " ".join(str(error).split()))
        return PlainTextResponse(str(error), status)

    return answer
