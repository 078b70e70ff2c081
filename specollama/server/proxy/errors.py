"""Failures as answers: in Ollama's shape, and in OpenAI's where the path is one of OpenAI's."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from specollama.errors import ApiError, EndpointError, Refused, SpecollamaError, UsageError
from specollama.server.http.responses import json_response

_KINDS = {400: "invalid_request_error", 404: "not_found_error"}


def error_for(error: ApiError | SpecollamaError) -> ApiError:
    """Status and text for the client: the server's own words, where it had any."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, EndpointError):
        return ApiError(400 if isinstance(error, UsageError) else 500, str(error))
    status = 500 if isinstance(error, Refused) and error.status < 400 else error.status
    return ApiError(status, error.said or str(error))


def error_body(path: str, fault: ApiError) -> dict[str, Any]:
    if not path.startswith("/v1/"):
        return {"error": fault.text}
    kind = _KINDS.get(fault.status, "api_error")
    return {"error": {"message": fault.text, "type": kind, "param": None, "code": None}}


def error_response(path: str, error: ApiError | SpecollamaError) -> Response:
    fault = error_for(error)
    return json_response(error_body(path, fault), fault.status)
