"""Findings about servers and pairs, as plain values: times in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from specollama.spec_decode.expected_speedup import AcceptanceProfile
from specollama.spec_decode.types import Route


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in a server's memory. `on_gpu`: the share of it that is on a GPU; None where the server doesn't say."""

    name: str
    context_length: int | None
    on_gpu: float | None


@dataclass(frozen=True, slots=True)
class ServerFinding:
    """A server. `source`: where its address was set. `fault`: why it doesn't answer; "" when it answers."""

    url: str
    source: str
    local: bool
    fault: str = ""
    version: str = ""
    engine: str = ""
    round_trip: float | None = None
    models: tuple[str, ...] = ()
    loaded: tuple[Loaded, ...] = ()
    known_faults: tuple[str, ...] = ()

    @property
    def reachable(self) -> bool:
        return not self.fault


@dataclass(frozen=True, slots=True)
class LanesFinding:
    """Measurements of a target's server, with both models loaded.

    `rows` are seconds by requests for one token each, sent at once, of as many lengths. `unified`: rows of unequal
    lengths share passes; None where no two requests run at once. `keeps`: a prompt asked for again isn't read again.
    `itself`: tokens come without log-probabilities, though the version has them: the server drafts by itself.
    """

    step: float
    reading: float
    rows: Mapping[int, float]
    slots: int
    unified: bool | None
    keeps: bool
    resident: bool
    logprobs: bool
    itself: bool
    draft_step: float
    draft_overhead: float


@dataclass(frozen=True, slots=True)
class LocalFinding:
    """Costs of the models in process. `passes`: seconds of a pass of the target, by its number of tokens.

    `draft_step`: a token of the draft model as it is opened, which may be a quicker copy; `file_step`: of the file
    itself, which an engine of its own would take.
    """

    target: str
    passes: Mapping[int, float]
    draft_step: float | None
    file_step: float | None


@dataclass(frozen=True, slots=True)
class NativeFinding:
    """Whether the target's engine speculates at the pair's native server, or can be made to.

    `running`: requests have shown that it does. `obstacle`: why it can't; "" where nothing speaks against it.
    """

    url: str
    running: bool = False
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class RouteFinding:
    """Forecast of a route. `speedup` over plain; None where it isn't known, and then `why` says the reason.

    `lookahead`: tokens in a round at most; `threshold`: how sure the drafter has to be of each.
    """

    route: Route
    speedup: float | None
    why: str = ""
    lookahead: int = 0
    threshold: float = 0.0


class Misfit(str):
    """What of two models doesn't fit each other. Any other text says that it fits, or that it isn't known."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PairFindings:
    """All findings about a pair. A text in the place of a finding says why there is none.

    `faults`: why it can't be speculated at all. `tokenizers`, `templates`, `delimiters` and `thinking` are "same" or
    "fits", or say what differs (for tokenizers and delimiters as a `Misfit`).
    """

    name: str
    target: str
    draft: str
    target_server: ServerFinding | None = None
    draft_server: ServerFinding | None = None
    faults: tuple[str, ...] = ()
    elsewhere: str = ""  # what serves the target in Ollama's place
    missing: tuple[str, ...] = ()  # models that would have to be pulled
    tokenizers: str = "not known"
    templates: str = "not known"
    delimiters: str = "not known"
    thinking: str = "not known"
    context_lengths: tuple[int | None, int | None] = (None, None)
    lanes: LanesFinding | str = "not measured"
    local: LocalFinding | str = "not measured"
    native: NativeFinding | None = None
    acceptance: AcceptanceProfile | None = None
    unasked: str = ""  # why real prompts, which were to be asked, told nothing of the acceptance
    routes: tuple[RouteFinding, ...] = ()
    asked_lanes: int = 8  # rows that the pair may ask at once
    route: Route = Route.AUTO  # that the configuration names

    @property
    def best(self) -> RouteFinding:
        """The route that is expected to be fastest; plain where none gains."""
        plain = RouteFinding(Route.PLAIN, 1.0, "nothing gains")
        return max((plain, *self.routes), key=lambda found: found.speedup or 0.0)


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to change. `prevents`: as it is, nothing can be speculated.

    `what` is wrong, `where` (a URL, a file and key), and what to `do`, each on one line. `environment`: variables of
    the service at `where`. `lines`: commands or lines of the configuration.
    """

    what: str
    where: str
    do: str
    prevents: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def as_object(self) -> dict[str, Any]:
        return {**asdict(self), "lines": list(self.lines)}
