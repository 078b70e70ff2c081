"""The configuration file, and the settings of a pair as the rest of the program gets them.

Everything is checked before any request; the file may be missing altogether.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NoReturn, TypedDict, Unpack

import platformdirs

from specollama.config.endpoints import Endpoint, parse_model_at, resolve_host, server_url
from specollama.config.schema import ConfigTable, ModelTable, PairTable, Place, TuningTable, listed, nearest, validated
from specollama.errors import ConfigError, one_line
from specollama.pairs import toml
from specollama.spec_decode.types import Api, Route, Rule

LOCAL_NAME = "specollama.pairs.toml"
FLAGS = Place()
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
    api: Api | None = None
    replicas: tuple[Endpoint, ...] = ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (self.endpoint, *self.replicas)

    @property
    def scored(self) -> bool:
        """Whether it is served by an engine that isn't Ollama, as far as the configuration says."""
        return self.api not in (None, Api.OLLAMA)

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


class Lookup(Enum):
    """Drafting without a model: what followed the same words before."""

    LOOKUP = "lookup"

    def __str__(self) -> str:
        return self.value


DraftRef = ModelRef | FileRef | Lookup


def ollama_of(model: DraftRef) -> Endpoint | None:
    """The Ollama that serves a model, as far as the configuration says; None for a file and for another engine's."""
    return model.endpoint if isinstance(model, ModelRef) and not model.scored else None


class Overrides(TypedDict, total=False):
    """What flags may set of a pair. None: not given."""

    lookahead: int | Sequence[int] | str | None
    route: Route | str | None
    rule: Rule | str | None
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
    rule: Rule = Rule.AUTO
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
    def looks_up(self) -> bool:
        """Whether what was written before is proposed again: as it is set, else beside the only drafter."""
        return Lookup.LOOKUP in self.drafts or len(self.drafts) == 1

    @property
    def looks_up_alone(self) -> bool:
        """Whether that is asked for, and no draft model that a server has."""
        return Lookup.LOOKUP in self.drafts and self.draft is None

    def override(self, **flags: Unpack[Overrides]) -> PairSettings:
        """The settings with what the flags give in place; options are merged by name.

        Raises UsageError naming the flag.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        return self.tuned(validated(TuningTable, given, FLAGS)).checked(FLAGS)

    def tuned(self, tuning: TuningTable) -> PairSettings:
        given = tuning.given()
        return replace(self, **{**given, "options": {**self.options, **given.get("options", {})}})

    def checked(self, place: Place) -> PairSettings:
        """Itself; raises ConfigError or UsageError when there is no draft but the route wants one."""
        if not self.drafts and self.route is not Route.PLAIN:
            flags = place.file is None
            form = "--draft MODEL" if flags else 'draft = { model = "qwen2.5-coder:0.5b" }'
            plain = "--route plain" if flags else 'route = "plain"'
            place.at("draft").refuse(f"missing; give it as {form}, or {plain}, which drafts nothing")
        if isinstance(self.target, ModelRef) and self.target.scored:
            if self.route not in (Route.AUTO, Route.SCORING, Route.PLAIN):
                words = f"a target of {self.target.api} is verified there: auto, scoring or plain"
                place.at("route").refuse(words, str(self.route))
        elif self.route is Route.SCORING and isinstance(self.target, ModelRef) and self.target.api is Api.OLLAMA:
            place.at("route").refuse("Ollama's API can't score given tokens: auto, local or lanes", str(self.route))
        if isinstance(self.target, FileRef) and self.route not in (Route.AUTO, Route.LOCAL, Route.PLAIN):
            place.at("route").refuse("a file is opened in process: auto, local or plain", str(self.route))
        return self


@dataclass(frozen=True, slots=True)
class Config:
    """A checked configuration; empty when there is no file.

    `named`: the file was named, or is the user's own; else it was found in the working directory.
    """

    file: Path | None = None
    table: ConfigTable = field(default_factory=ConfigTable)
    named: bool = True

    def pair(self, name: str | None, environ: Mapping[str, str]) -> PairSettings:
        """The pair of that name, the default one for None.

        Raises ConfigError when there is no such pair, no default, or a variable that holds a token isn't set.
        """
        name = self._default() if name is None else name
        if name not in self.table.pairs:
            self._unknown_pair(name)
        return _with_tokens(self._settings(name, environ), environ)

    def model_at(self, text: str, flag: str, environ: Mapping[str, str]) -> DraftRef:
        """The model that a flag ("target", "draft") gives as `MODEL`, `MODEL@SERVER`, `FILE.gguf` or `lookup`.

        The server: a URL, `host`, `host:port` or the name of an endpoint. Raises UsageError naming the flag.
        """
        return self._written(text, FLAGS.at(flag), environ)

    def check(self) -> None:
        """Raises ConfigError at the first name that stands for nothing and at a pair that can't be run."""
        default = self.table.default_pair
        if default is not None and default not in self.table.pairs:
            words = f"no such pair{nearest(default, self.table.pairs)}"
            Place(self.file, ("default_pair",)).refuse(words, default)
        self.default_endpoint({})
        for name in self.table.pairs:
            self._settings(name, {})

    def default_endpoint(self, environ: Mapping[str, str]) -> Endpoint:
        """Where `specollama serve` passes on what isn't a pair's: `serve.endpoint`, else OLLAMA_HOST."""
        name = self.table.serve.endpoint
        if name is None:
            return resolve_host(environ)
        return self._endpoint(name, Place(self.file, ("serve", "endpoint")), name)

    def endpoints(self) -> list[Endpoint]:
        """Those that have a name in the file."""
        return [self._endpoint(name, Place(self.file), name) for name in self.table.endpoints]

    def _settings(self, name: str, environ: Mapping[str, str]) -> PairSettings:
        table: PairTable = self.table.pairs[name]
        place = Place(self.file, ("pairs", name))
        target = self._model(table.target, place.at("target"), environ)
        if isinstance(target, Lookup):
            place.at("target").refuse("lookup is a drafter, not a model", str(target))
        drafts = tuple(self._draft(draft, place.at("draft"), environ) for draft in table.draft)
        native = self._server(table.native, place.at("native")) if table.native else NATIVE
        return PairSettings(name=name, target=target, drafts=drafts, native=native).tuned(table).checked(place)

    def _draft(self, table: ModelTable, place: Place, environ: Mapping[str, str]) -> DraftRef:
        if table.api not in (None, Api.OLLAMA):
            place.at("api").refuse("a draft model is Ollama's, or a file, or lookup", str(table.api))
        if isinstance(table.endpoint, list):
            place.at("endpoint").refuse("a draft model has one endpoint", str(table.endpoint))
        return self._model(table, place, environ)

    def _model(self, table: ModelTable, place: Place, environ: Mapping[str, str]) -> DraftRef:
        if table.path is not None:
            return FileRef(self._beside(table.path))
        if table.endpoint is None:
            return self._written(table.model, place.at("model"), environ)
        if "@" in table.model:
            words = "the model names a server already; leave one of the two out"
            place.at("endpoint").refuse(words, str(table.endpoint))
        names = table.endpoint if isinstance(table.endpoint, list) else [table.endpoint]
        endpoint, *replicas = [self._endpoint(name, place.at("endpoint"), name) for name in names]
        if table.api is not None:
            return ModelRef(table.model, endpoint, table.api, tuple(replicas))
        if replicas:
            place.at("endpoint").refuse("several endpoints are for engines that score: give api, too", str(names))
        return self._written(table.model, place.at("model"), environ, endpoint)

    def _beside(self, path: str) -> Path:
        """A path that isn't absolute is meant from the file's own directory."""
        start = self.file.absolute().parent if self.file else Path.cwd()
        return start / os.path.expanduser(path)

    def _written(
        self, text: str, place: Place, environ: Mapping[str, str], endpoint: Endpoint | None = None
    ) -> DraftRef:
        if text == Lookup.LOOKUP.value and endpoint is None:
            return Lookup.LOOKUP
        if text.lower().endswith(".gguf") and endpoint is None:
            return FileRef(self._beside(text))
        try:
            model, server = parse_model_at(text)
            if server is None:
                return ModelRef(model, endpoint or resolve_host(environ))
            return ModelRef(model, self._server(server, place, text))
        except ValueError as fault:
            place.refuse(str(fault), text)

    def _server(self, server: str, place: Place, text: str = "") -> Endpoint:
        """An endpoint by its name, or a server by its address. `text`: what is shown of it when it is wrong."""
        if server in self.table.endpoints or self._resembles_endpoint(server):
            return self._endpoint(server, place, text or server)
        try:
            return Endpoint(url=server_url(server), source=str(place))
        except ValueError as fault:
            place.refuse(str(fault), text or server)

    def _resembles_endpoint(self, server: str) -> bool:
        """A bare word is a host, unless it looks like a misspelt endpoint."""
        bare = re.fullmatch(r"[A-Za-z0-9_-]+", server)
        return bool(bare and difflib.get_close_matches(server, self.table.endpoints))

    def _endpoint(self, name: str, place: Place, value: str) -> Endpoint:
        if (table := self.table.endpoints.get(name)) is None:
            host = f" (a host of that name: {name}:11434)" if value != name else ""
            place.refuse(f"no endpoint {name} is defined{nearest(name, self.table.endpoints)}{host}", value)
        source = str(Place(self.file, ("endpoints", name, "url")))
        return Endpoint(name=name, source=source, **table.model_dump())

    def _default(self) -> str:
        pairs = list(self.table.pairs)
        if self.table.default_pair is not None or len(pairs) == 1:
            return self.table.default_pair or pairs[0]
        if pairs:
            choose = f'name one of {listed(pairs)}, or set default_pair = "{pairs[0]}"'
            raise ConfigError(one_line(f"{self.file}: there is no default pair; {choose}"))
        raise ConfigError(one_line(f"no pair is given: {_first_steps(self.file)}"))

    def _unknown_pair(self, name: str) -> NoReturn:
        if not self.table.pairs:
            raise ConfigError(one_line(f"there is no pair {name}: {_first_steps(self.file)}"))
        raise ConfigError(one_line(f"{self.file}: there is no pair {name}{nearest(name, self.table.pairs)}"))


def adhoc_pair(
    target: str,
    draft: str | None,
    config: Config,
    environ: Mapping[str, str],
    **flags: Unpack[Overrides],
) -> PairSettings:
    """The pair that `--target` and `--draft` name; their servers may be endpoints of the configuration.

    Raises UsageError naming the flag, ConfigError when a variable that holds a token isn't set.
    """
    chosen = replace(config, file=None).model_at(target, "target", environ)
    if isinstance(chosen, Lookup):
        FLAGS.at("target").refuse("lookup is a drafter, not a model", target)
    drafts = () if draft is None else (replace(config, file=None).model_at(draft, "draft", environ),)
    settings = PairSettings(name=None, target=chosen, drafts=drafts)
    return _with_tokens(settings.override(**flags), environ)


def find_config(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The configuration file to read, None when there is none.

    Looked for in this order: `--config`, `$SPECOLLAMA_CONFIG`, `specollama.toml` in the working directory,
    `config.toml` in the user's configuration directory. Raises ConfigError when the first two name no file.
    """
    variable = environ.get("SPECOLLAMA_CONFIG")
    for given, source in (
        (explicit, "--config"),
        (Path(variable) if variable else None, "$SPECOLLAMA_CONFIG"),
    ):
        if given is not None:
            path = cwd / os.path.expanduser(given)
            if not os.path.exists(path):
                raise ConfigError(one_line(f"{path}: there is no such file (set by {source})"))
            return path
    return next((path for path in (cwd / LOCAL_NAME, _user_file()) if os.path.exists(path)), None)


def load_config(path: Path | None) -> Config:
    """The configuration in a file that was named; an empty one for None. Raises ConfigError at the first fault."""
    return Config() if path is None else parse_config(path, read_config(path))


def read_config(path: Path) -> bytes:
    """Raises ConfigError where the file can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(one_line(f"{path}: can't be read: {error.strerror or error}")) from None


def parse_config(path: Path, raw: bytes, *, named: bool = True) -> Config:
    """The configuration that the bytes of a file are. Raises ConfigError at the first fault."""
    config = Config(path, validated(ConfigTable, toml.parsed(path, raw), Place(path)), named)
    config.check()
    return config


def _with_tokens(settings: PairSettings, environ: Mapping[str, str]) -> PairSettings:
    for model in (settings.target, *settings.drafts):
        if isinstance(model, ModelRef):
            for endpoint in model.endpoints:
                endpoint.token(environ)
    return settings


def _user_file() -> Path:
    return platformdirs.user_config_path("specollama") / "config.toml"


def _first_steps(file: Path | None) -> str:
    where = f"define one in {file}" if file else f"write a configuration file, ./{LOCAL_NAME} or {_user_file()}"
    return f"give --target MODEL[@SERVER] and --draft MODEL[@SERVER], or {where}"
