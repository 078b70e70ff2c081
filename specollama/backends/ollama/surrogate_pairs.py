r"""Characters that a server in between has cut into the halves of a surrogate pair, "\ud83c" and "\udf0a".

Ollama itself writes whole characters; what stands between may not. Half a character can't be written as UTF-8.
"""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPED = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
_FIRST_HALF = re.compile("[\ud800-\udbff]$")


class SurrogateJoiner:
    """Joins the halves over the lines of one reply; one that is left alone becomes a replacement mark."""

    def __init__(self) -> None:
        self._held = ""  # the first half of a character, whose second one is still to come

    def join(self, line: bytes) -> bytes:
        """The same JSON object, its strings all whole; one that isn't JSON comes back as it is."""
        if not self._held and not _ESCAPED.search(line):
            return line
        try:
            reply = json.loads(line)
        except ValueError:
            return line
        if not isinstance(reply, dict):
            return line
        holder, key = ("message", "content") if isinstance(reply.get("message"), dict) else (None, "response")
        place = reply[holder] if holder else reply
        text = self._held + str(place.get(key) or "")
        cut = None if reply.get("done") else _FIRST_HALF.search(text)
        self._held = cut.group() if cut else ""
        place[key] = text.removesuffix(self._held)
        return json.dumps(_mended(reply)).encode()


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {key: _mended(item) for key, item in value.items()}
    return value
