"""The configuration file, and the settings of a pair as the rest of the program gets them.

Everything is checked before any request; the file may be missing altogether.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from specollama.config.endpoints import Endpoint
from specollama.config.schema import TuningTable
from specollama.config.validation import ConfigLocation, validate_table
from specollama.spec_decode.types import AcceptanceMethod, Route, ServerApi

FLAGS = ConfigLocation()
EMBEDDED = "embedded"
"""The pair that needs no configuration and no server; a pair of that name in the file comes before it."""

NATIVE = Endpoint(url="http://127.0.0.1:11436", source="default")
"""Where `specollama native` serves, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model and the endpoint that serves it.

    `api`: what is spoken there; None: Ollama's, or what is found there where that isn't. `replicas`: further
    endpoints with the same model.
    """

    model: str
    endpoint: Endpoint
    api: ServerApi | None = None
    replicas: tuple[Endpoint, ...] = ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (self.endpoint, *self.replicas)

    @property
    def is_scoring_engine(self) -> bool:
        """Whether it is served by an engine that isn't Ollama, as far as the configuration says."""
        return self.api not in (None, ServerApi.OLLAMA)

    def __str__(self) -> str:
        return self.model


@dataclass(frozen=True, slots=True)
class FileRef:
    """A GGUF file, which is opened in process."""

    path: Path

    @property
    def model(self) -> str:
        """What it is called where a model's name is wanted."""
        return self.path.name

    def __str__(self) -> str:
        return self.model


class PromptLookup(Enum):
    """Drafting without a model: what followed the same words before."""

    LOOKUP = "lookup"

    def __str__(self) -> str:
        return self.value


DraftRef = ModelRef | FileRef | PromptLookup


def ollama_endpoint(model: DraftRef) -> Endpoint | None:
    """The Ollama that serves a model, as far as the configuration says; None for a file and for another engine's."""
    return model.endpoint if isinstance(model, ModelRef) and not model.is_scoring_engine else None


class Overrides(TypedDict, total=False):
    """What flags may set of a pair. None: not given."""

    lookahead: int | Sequence[int] | str | None
    route: Route | str | None
    rule: AcceptanceMethod | str | None
    lanes: int | None
    keep_alive: float | str | None
    kv_type: str | None
    batch_threads: int | None
    draft_ahead: bool | None
    requantize: bool | None
    options: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PairSettings:
    """All that is known about a pair before a request is made."""

    name: str | None  # as in the file; None: given by flags
    target: ModelRef | FileRef
    drafts: tuple[DraftRef, ...] = ()  # empty only with the route plain
    lookahead: int | tuple[int, ...] | Literal["auto"] = "auto"  # tokens drafted in a round; several: round by round
    route: Route = Route.AUTO
    rule: AcceptanceMethod = AcceptanceMethod.AUTO
    lanes: int | None = None  # concurrent requests the target works on at once; None: not known
    keep_alive: float | str | None = None  # a number: seconds; None: the server's own
    kv_type: str | None = None  # of the cache of models opened in process; None: 16 bits
    batch_threads: int | None = None  # for reading with models opened in process; None: as num_thread
    draft_ahead: bool | None = None  # draft while the target verifies; None: if their servers are different machines
    requantize: bool = True  # a draft model that is opened in process may be one's quicker copy
    native: Endpoint = NATIVE  # a server whose engine drafts by itself, for the route of that name
    options: Mapping[str, Any] = field(default_factory=dict)  # Ollama's, sent with every request

    @property
    def draft(self) -> ModelRef | None:
        """The draft model that a server has, where there is one."""
        return next((draft for draft in self.drafts if isinstance(draft, ModelRef)), None)

    @property
    def uses_lookup(self) -> bool:
        """Whether what was written before is proposed again: as it is set, else beside the only drafter."""
        return PromptLookup.LOOKUP in self.drafts or len(self.drafts) == 1

    @property
    def uses_lookup_alone(self) -> bool:
        """Whether that is asked for, and no draft model that a server has."""
        return PromptLookup.LOOKUP in self.drafts and self.draft is None

    def with_overrides(self, **flags: Unpack[Overrides]) -> PairSettings:
        """The settings with what the flags give in place; options are merged by name.

        Raises UsageError naming the flag.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        return self.with_tuning(validate_table(TuningTable, given, FLAGS)).validated(FLAGS)

    def with_tuning(self, tuning: TuningTable) -> PairSettings:
        given = tuning.given()
        return replace(self, **{**given, "options": {**self.options, **given.get("options", {})}})

    def validated(self, place: ConfigLocation) -> PairSettings:
        """Itself; raises ConfigError or UsageError when there is no draft but the route wants one."""
        if not self.drafts and self.route is not Route.PLAIN:
            flags = place.file is None
            form = "--draft MODEL" if flags else 'draft = { model = "qwen2.5-coder:0.5b" }'
            plain = "--route plain" if flags else 'route = "plain"'
            place.with_keys("draft").fail(f"missing; give it as {form}, or {plain}, which drafts nothing")
        if isinstance(self.target, ModelRef) and self.target.is_scoring_engine:
            if self.route not in (Route.AUTO, Route.SCORING, Route.PLAIN):
                words = f"a target of {self.target.api} is verified there: auto, scoring or plain"
                place.with_keys("route").fail(words, str(self.route))
        elif self.route is Route.SCORING and isinstance(self.target, ModelRef) and self.target.api is ServerApi.OLLAMA:
            place.with_keys("route").fail(
                "Ollama's API can't score given tokens: auto, local or lanes", str(self.route)
            )
        if isinstance(self.target, FileRef) and self.route not in (Route.AUTO, Route.LOCAL, Route.PLAIN):
            place.with_keys("route").fail("a file is opened in process: auto, local or plain", str(self.route))
        return self
