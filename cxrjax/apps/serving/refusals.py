"""Errors of the server, in the form that OpenAI's clients read."""

from typing import Any


class RefusedError(Exception):
    """A request that is not answered: HTTP status, a code for programs, the field it is about."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def body(self) -> dict[str, Any]:
        """Returns the body of the response."""
        return error_body(self.status, str(self), self.code, self.param)

    @property
    def headers(self) -> dict[str, str]:
        """When to come again, where that may help."""
        return {"Retry-After": "1"} if self.status in (429, 503) else {}


def invalid(param: str, message: str, code: str = "invalid_value") -> RefusedError:
    """A refusal of the value of a field."""
    return RefusedError(400, message, code, param)


def error_body(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
