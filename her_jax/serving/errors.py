"""Errors in the shape that OpenAI's clients read."""

from typing import Any

_TYPES = {
  401: "authentication_error",
  404: "invalid_request_error",
  429: "rate_limit_error",
  500: "server_error",
  503: "server_error",
  504: "timeout_error",
}


class ApiError(Exception):
  """An answer that is an error.

  Attributes:
    status: of HTTP.
    code: a word for programs.
    param: field of the body that is at fault.
    headers: of the answer.
  """

  def __init__(
    self,
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: dict[str, str] | None = None,
  ):
    """`message` says what is wrong and how it is mended."""
    super().__init__(message)
    self.status, self.code, self.param = status, code, param
    self.headers = headers or {}

  def body(self) -> dict[str, Any]:
    """The answer's JSON."""
    return {
      "error": {
        "message": str(self),
        "type": _TYPES.get(self.status, "invalid_request_error"),
        "param": self.param,
        "code": self.code,
      }
    }
