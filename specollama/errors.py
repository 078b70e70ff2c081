"""What can go wrong, split by who must act.

SpecollamaError
├── UsageError                 your mistake: nothing was asked of any server
│   ├── ConfigError            the configuration file
│   └── UnsupportedPair        this pair can't be run as asked
└── RunError                   the run failed
    ├── MissingPackage         an optional package isn't installed
    └── EndpointError          a server failed; carries its URL
        ├── Unreachable        no connection
        ├── ModelMissing       the server has no such model
        ├── AnotherModel       the server has another one of that name than others have
        ├── Refused            the server answered with an error status
        └── BrokenReply        the answer stopped, or wasn't what Ollama sends

Every message may be shown to the user as it is: one line saying what happened, where, and what to do.
"""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text with what isn't printable written as escapes: a message is one line, and steers no terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SpecollamaError(Exception):
    """Base of all; its text is fit for the user."""


class UsageError(SpecollamaError):
    """The command, the options or the configuration can't be carried out as given."""


class ConfigError(UsageError):
    """A configuration file is missing, can't be read, or has a wrong key or value."""


class UnsupportedPair(UsageError):
    """The draft and the target can't be used together in the way that was asked for."""


class RunError(SpecollamaError):
    """The request was sound, but the run failed."""


class MissingPackage(RunError):
    """A part of specollama was asked for whose package isn't installed."""


class EndpointError(RunError):
    """A server failed to do what it was asked.

    `status`: of the answer that a server in front of this one gives its own client. `said`: the server's own words,
    where it had any.
    """

    status = 502

    def __init__(self, message: str, *, url: str, said: str = "") -> None:
        super().__init__(one_line(message))
        self.url = url
        self.said = said


class Unreachable(EndpointError):
    """No connection to the server could be made, or it gave no byte in time.

    `fault` says what happened, `advice` what to do; the message is both.
    """

    def __init__(self, fault: str, *, url: str, advice: str = "") -> None:
        super().__init__(f"{fault}; {advice}" if advice else fault, url=url)
        self.fault = one_line(fault)
        self.advice = one_line(advice)

    def with_advice(self, advice: str) -> Unreachable:
        """The same error with other advice, for a server that isn't the one that its client is made for.

        An error without advice has none afterwards either: the server was reached, and gave nothing in time.
        """
        return Unreachable(self.fault, url=self.url, advice=advice if self.advice else "")


class ModelMissing(EndpointError):
    """The server doesn't have the model."""

    status = 404


class AnotherModel(EndpointError):
    """The server serves another model under that name than the other servers of the pair."""


class Refused(EndpointError):
    """The server answered with an error, before or in the middle of a reply."""

    def __init__(self, message: str, *, url: str, status: int, said: str = "") -> None:
        super().__init__(message, url=url, said=said)
        self.status = status

    @property
    def is_context_full(self) -> bool:
        """Whether the request doesn't fit the model's context. No status tells that apart, only the server's words."""
        return any(word in (self.said or str(self)) for word in ("context", "exceed", "longer than"))


class BrokenReply(EndpointError):
    """The answer ended without its last line, or was not what Ollama sends."""


class ApiError(Exception):
    """The request can't be answered; raised anywhere below a route, answered by it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
