r"""Characters that a server in between has cut into the halves of a surrogate pair, "\ud83c" and "\udf0a".

Ollama itself writes whole characters; what stands between may not. Half a character can't be written as UTF-8.
"""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPED = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
_FIRST_HALF = re.compile("[\ud800-\udbff]$")
_CHAT_TEXTS, _GENERATE_TEXTS = ("thinking", "content"), ("thinking", "response")


class SurrogateJoiner:
    """Joins the halves over the lines of one reply; one that is left alone becomes a replacement mark."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}  # by key: the first half of a character, whose second one is still to come

    def join(self, line: bytes) -> bytes:
        """The same JSON object, its strings all whole; one that isn't JSON comes back as it is."""
        if not self._held and not _ESCAPED.search(line):
            return line
        try:
            reply = json.loads(line)
            if isinstance(reply, dict):
                self._join_texts(reply)
                return json.dumps(_mended(reply)).encode()
        except (ValueError, RecursionError):
            pass  # whoever reads the line says what is wrong with it
        return line

    def _join_texts(self, reply: dict[str, Any]) -> None:
        """Of the texts that are written piece by piece."""
        message = reply.get("message")
        place, keys = (message, _CHAT_TEXTS) if isinstance(message, dict) else (reply, _GENERATE_TEXTS)
        for key in keys:
            said = place.get(key) or ""
            if not isinstance(said, str) or not (said or key in self._held):
                continue
            text = self._held.pop(key, "") + said
            if not reply.get("done") and (cut := _FIRST_HALF.search(text)):
                self._held[key] = cut.group()
            place[key] = text.removesuffix(self._held.get(key, ""))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {key: _mended(item) for key, item in value.items()}
    return value
