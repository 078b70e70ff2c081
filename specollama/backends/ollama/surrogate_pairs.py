r"""Joins characters that a proxy has split into the halves of a surrogate pair, "\ud83c" and "\udf0a".

Ollama itself writes whole characters; a proxy in front of it may not. Half a pair can't be encoded as UTF-8.
"""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPED = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
_FIRST_HALF = re.compile("[\ud800-\udbff]$")
_CHAT_TEXTS, _GENERATE_TEXTS = ("thinking", "content"), ("thinking", "response")


class SurrogateJoiner:
    """Joins halves across the lines of one reply. A half without a partner becomes U+FFFD."""

    def __init__(self) -> None:
        self._first_halves: dict[str, str] = {}  # by key: the half that waits for its second one

    def join(self, line: bytes) -> bytes:
        """The same JSON object with whole characters in all strings. A line that isn't JSON is returned unchanged."""
        if not self._first_halves and not _ESCAPED.search(line):
            return line
        try:
            reply = json.loads(line)
            if isinstance(reply, dict):
                self._join_texts(reply)
                return json.dumps(_mended(reply)).encode()
        except (ValueError, RecursionError):
            pass  # the parser of the line reports the error
        return line

    def _join_texts(self, reply: dict[str, Any]) -> None:
        """Join halves in the strings that a reply streams piece by piece."""
        message = reply.get("message")
        place, keys = (message, _CHAT_TEXTS) if isinstance(message, dict) else (reply, _GENERATE_TEXTS)
        for key in keys:
            piece = place.get(key) or ""
            if not isinstance(piece, str) or not (piece or key in self._first_halves):
                continue
            text = self._first_halves.pop(key, "") + piece
            if not reply.get("done") and (half := _FIRST_HALF.search(text)):
                self._first_halves[key] = half.group()
            place[key] = text.removesuffix(self._first_halves.get(key, ""))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {key: _mended(item) for key, item in value.items()}
    return value
