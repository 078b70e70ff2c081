"""One escaping for all text of a model or a server that a terminal shows: it can neither steer nor reorder the screen.

Joiners (U+200C, U+200D) and direction marks (U+200E, U+200F) stay as they are: emoji, Persian and Hebrew need them.
"""

from __future__ import annotations

_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x2070))  # bidirectional embeddings, overrides and isolates
_LINE_ENDS = (0x2028, 0x2029)  # some terminals break a line at them, and what counts lines doesn't
_ANNOTATIONS = range(0xFFF9, 0xFFFC)

_CODES = {code: f"\\u{code:04x}" for code in (*_REORDERING, *_LINE_ENDS, *_ANNOTATIONS)}
_SYMBOLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {0x7F: "\u2421"}
_TERMINAL = _SYMBOLS | dict.fromkeys(range(0x80, 0xA0), "\ufffd") | _CODES
_JSON = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)} | _CODES  # the others are JSON's own


def escape_controls(text: str) -> str:
    """The text with control characters as visible symbols or escapes; line ends and tabs stay."""
    return text.translate(_TERMINAL)


def escape_json(text: str) -> str:
    """JSON with control characters inside its strings as JSON escapes: what it means stays the same."""
    return text.translate(_JSON)
