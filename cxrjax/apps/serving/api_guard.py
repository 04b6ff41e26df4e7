"""Authorization of clients of a model server: bearer tokens, compared in constant time."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from cxrjax.apps.page_server import Guard
from cxrjax.apps.serving.refusals import error_body

# Probes have no token, and learn whether the server lives.
_OPEN = ("/health", "/ready")
NOBODY = "local"


class ApiGuard(Guard):
    """The checks of `Guard` with a token in the header `Authorization`.

    Without tokens, who reaches the server may ask.
    """

    def _who(self, scope: Scope, headers: Headers) -> str:
        if not self._tokens or scope["path"] in _OPEN:
            return NOBODY
        kind, _, told = headers.get("authorization", "").partition(" ")
        found = self._holder(told.strip())
        if kind.lower() != "bearer" or found is None:
            raise HTTPException(401, "Authorization: expected Bearer and a token of this server")
        return found

    def _refusal(self, status: int, text: str) -> Response:
        retry = {"Retry-After": "1"} if status in (429, 503) else None
        return JSONResponse(error_body(status, text), status, retry)
