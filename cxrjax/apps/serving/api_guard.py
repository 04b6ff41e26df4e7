"""Authorization of clients of a model server: bearer tokens, compared in constant time."""

import hmac
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Scope

from cxrjax.apps.page_server import Guard, Limits
from cxrjax.apps.serving.refusals import error_body

# Probes have no token, and learn whether the server lives.
_OPEN = ("/health", "/ready")
NOBODY = "local"


class ApiGuard(Guard):
    """The checks of `Guard` with a token in the header `Authorization`.

    Args:
        tokens: name of each who may ask -> their token; none: who reaches the server may ask.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        tokens: Mapping[str, str],
        hosts: Sequence[str] = (),
    ) -> None:
        super().__init__(app, limits, tokens, hosts)

    def _who(self, scope: Scope, headers: Headers) -> str:
        if not self._tokens or scope["path"] in _OPEN:
            return NOBODY
        kind, _, told = headers.get("authorization", "").partition(" ")
        # All are compared, so that the time tells nothing.
        found = [
            name
            for name, token in self._tokens.items()
            if hmac.compare_digest(token.encode(), told.strip().encode(errors="replace"))
        ]
        if kind.lower() != "bearer" or not found:
            raise HTTPException(401, "Authorization: expected Bearer and a token of this server")
        return found[0]

    def _refusal(self, status: int, text: str) -> Response:
        retry = {"Retry-After": "1"} if status in (429, 503) else None
        return JSONResponse(error_body(status, text), status, retry)
