"""What a stranger may make this program hold or wait for, in one place. docs/proxy.md lists them for users.

Each is far above what a client or a server sends in earnest. What the configuration may set (`[serve]`: `max_body`,
`max_requests`, `max_queue`) is in `config.schema`.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Of the requests that a server of ours takes. Sizes in bytes, times in seconds."""

    headers: int = 64 * 1024  # request line and headers, as far as they don't come in one read (256 KiB); nginx: 32 KiB
    headers_time: float = 30.0  # from the first byte (of a new connection: from its start) to the end of the headers
    body: int = 32 * MIB  # of one body; uploads of models aside
    bodies: int = 256 * MIB  # of all bodies that are held at the same time
    body_grace: float = 30.0  # that a client may keep us waiting for its body
    body_rate: int = 1024  # bytes a second: each one sent buys a client that much more patience


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Of what servers behind us answer, in bytes. The vocabulary of 260,000 tokens in /api/show is 12 MiB."""

    whole: int = 32 * MIB  # an answer that is read as a whole
    line: int = 32 * MIB  # one line of a stream
    scores: int = 64 * MIB  # the log-probabilities that an engine gives for each token of a prompt


REQUESTS = RequestLimits()
ANSWERS = AnswerLimits()
