"""The settings of a pair, as the configuration file and the flags give them. They are checked before any request."""

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
"""Where `specollama native` serves, by default."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model and the endpoint that serves it.

    `api`: the API of that server; None: Ollama's, or else the one that the server turns out to have. `replicas`:
    further endpoints with the same model.
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
        """Whether the configuration names an engine other than Ollama for it."""
        return self.api not in (None, ServerApi.OLLAMA)

    def __str__(self) -> str:
        return self.model


@dataclass(frozen=True, slots=True)
class FileRef:
    """A GGUF file that this process opens."""

    path: Path

    @property
    def model(self) -> str:
        """The file's name, in place of a model's name."""
        return self.path.name

    def __str__(self) -> str:
        return self.model


class PromptLookup(Enum):
    """Prompt lookup: drafts are n-grams of the text so far, without a model."""

    LOOKUP = "lookup"

    def __str__(self) -> str:
        return self.value


DraftRef = ModelRef | FileRef | PromptLookup


def ollama_endpoint(model: DraftRef) -> Endpoint | None:
    """Return the Ollama endpoint that serves a model; None for a file and for a model on another engine."""
    return model.endpoint if isinstance(model, ModelRef) and not model.is_scoring_engine else None


class Overrides(TypedDict, total=False):
    """The settings of a pair that flags can override. None: the flag isn't given."""

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
    """The settings of a pair, known before any request."""

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
        """The first draft model on a server; None if there is none."""
        return next((draft for draft in self.drafts if isinstance(draft, ModelRef)), None)

    @property
    def uses_lookup(self) -> bool:
        """Whether prompt lookup drafts: if it is listed, or beside a single drafter."""
        return PromptLookup.LOOKUP in self.drafts or len(self.drafts) == 1

    @property
    def uses_lookup_alone(self) -> bool:
        """Whether prompt lookup is listed and no draft model on a server is."""
        return PromptLookup.LOOKUP in self.drafts and self.draft is None

    def with_overrides(self, **flags: Unpack[Overrides]) -> PairSettings:
        """Return the settings with the given flags in place; options are merged by name.

        Raises UsageError naming the flag.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        return self.with_tuning(validate_table(TuningTable, given, FLAGS)).validated(FLAGS)

    def with_tuning(self, tuning: TuningTable) -> PairSettings:
        """Return the settings with those keys of the table that were set; options are merged by name."""
        given = tuning.given()
        return replace(self, **{**given, "options": {**self.options, **given.get("options", {})}})

    def validated(self, place: ConfigLocation) -> PairSettings:
        """Return itself. Raises ConfigError, for flags UsageError, if the route needs a draft or another target."""
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
