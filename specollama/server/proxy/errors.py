"""Failures as answers: in Ollama's shape, and in OpenAI's where the path is one of OpenAI's."""

from __future__ import annotations

from starlette.responses import Response

from specollama.errors import ApiError, EndpointError, Refused, SpecollamaError, UsageError
from specollama.server.http.responses import error_body, json_response


def error_for(error: ApiError | SpecollamaError) -> ApiError:
    """Status and text for the client: the server's own words, where it had any."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, EndpointError):
        return ApiError(400 if isinstance(error, UsageError) else 500, str(error))
    status = error.status if not isinstance(error, Refused) or 400 <= error.status < 600 else 500
    return ApiError(status, error.said or str(error))


def error_response(path: str, error: ApiError | SpecollamaError) -> Response:
    fault = error_for(error)
    return json_response(error_body(path, fault.status, fault.text), fault.status)
