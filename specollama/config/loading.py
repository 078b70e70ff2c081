"""Finds and reads the configuration file, and resolves the pairs, models and endpoints in it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, Unpack

from specollama.config import paths, toml
from specollama.config.endpoints import Endpoint, parse_model_at, resolve_host, server_url
from specollama.config.plain_file import open_plain
from specollama.config.schema import ConfigTable, ModelTable, PairTable, join_names, suggest_names
from specollama.config.settings import (
    EMBEDDED,
    FLAGS,
    NATIVE,
    DraftRef,
    FileRef,
    ModelRef,
    Overrides,
    PairSettings,
    PromptLookup,
)
from specollama.config.validation import ConfigLocation, validate_table
from specollama.errors import ConfigError, one_line
from specollama.spec_decode.types import ServerApi

LOCAL_NAME = "specollama.toml"


@dataclass(frozen=True, slots=True)
class Config:
    """A validated configuration; empty if there is no file.

    `named`: a flag or variable named the file, or it is the user's own. False: it was found in the working directory.
    """

    file: Path | None = None
    table: ConfigTable = field(default_factory=ConfigTable)
    named: bool = True

    def pair(self, name: str | None, environ: Mapping[str, str]) -> PairSettings:
        """Return the pair of that name; for None the default pair.

        Raises ConfigError when there is no such pair, no default, or a variable that holds a token isn't set.
        """
        name = self._default() if name is None else name
        if name not in self.table.pairs:
            self._unknown_pair(name)
        return _check_tokens(self._settings(name, environ), environ)

    def is_embedded(self, name: str | None) -> bool:
        """Whether the pair of that name, the default one for None, is the embedded one, which no file defines."""
        chosen = self.table.default_pair if name is None else name
        return chosen == EMBEDDED and EMBEDDED not in self.table.pairs

    def model_at(self, text: str, flag: str, environ: Mapping[str, str]) -> DraftRef:
        """Return the model that a flag ("target", "draft") gives as `MODEL`, `MODEL@SERVER`, `FILE.gguf` or `lookup`.

        The server: a URL, `host`, `host:port` or the name of an endpoint. Raises UsageError naming the flag.
        """
        return self._parse_model(text, FLAGS.with_keys(flag), environ)

    def validate(self) -> None:
        """Raise ConfigError at the first unknown name, and at a pair that can't be run."""
        default = self.table.default_pair
        if default not in (None, EMBEDDED, *self.table.pairs):
            words = f"no such pair{suggest_names(str(default), self.table.pairs)}"
            ConfigLocation(self.file, ("default_pair",)).fail(words, default)
        self.default_endpoint({})
        for name in self.table.pairs:
            self._settings(name, {})

    def default_endpoint(self, environ: Mapping[str, str]) -> Endpoint:
        """Return the endpoint for requests that aren't for a pair: `serve.endpoint`, else OLLAMA_HOST."""
        name = self.table.serve.endpoint
        if name is None:
            return resolve_host(environ)
        return self._endpoint(name, ConfigLocation(self.file, ("serve", "endpoint")), name)

    def endpoints(self) -> list[Endpoint]:
        """Return the named endpoints of the file."""
        return [self._endpoint(name, ConfigLocation(self.file), name) for name in self.table.endpoints]

    def _settings(self, name: str, environ: Mapping[str, str]) -> PairSettings:
        table: PairTable = self.table.pairs[name]
        place = ConfigLocation(self.file, ("pairs", name))
        target = self._model(table.target, place.with_keys("target"), environ)
        if isinstance(target, PromptLookup):
            place.with_keys("target").fail("lookup is a drafter, not a model", str(target))
        drafts = tuple(self._draft(draft, place.with_keys("draft"), environ) for draft in table.draft)
        native = self._server(table.native, place.with_keys("native")) if table.native else NATIVE
        return PairSettings(name=name, target=target, drafts=drafts, native=native).with_tuning(table).validated(place)

    def _draft(self, table: ModelTable, place: ConfigLocation, environ: Mapping[str, str]) -> DraftRef:
        if table.api not in (None, ServerApi.OLLAMA):
            place.with_keys("api").fail("a draft model is Ollama's, or a file, or lookup", str(table.api))
        if isinstance(table.endpoint, list):
            place.with_keys("endpoint").fail("a draft model has one endpoint", str(table.endpoint))
        return self._model(table, place, environ)

    def _model(self, table: ModelTable, place: ConfigLocation, environ: Mapping[str, str]) -> DraftRef:
        if table.path is not None:
            return FileRef(self._resolve_path(table.path))
        if table.endpoint is None:
            return self._parse_model(table.model, place.with_keys("model"), environ)
        if "@" in table.model:
            words = "the model names a server already; leave one of the two out"
            place.with_keys("endpoint").fail(words, str(table.endpoint))
        names = table.endpoint if isinstance(table.endpoint, list) else [table.endpoint]
        endpoint, *replicas = [self._endpoint(name, place.with_keys("endpoint"), name) for name in names]
        if table.api is not None:
            return ModelRef(table.model, endpoint, table.api, tuple(replicas))
        if replicas:
            place.with_keys("endpoint").fail("several endpoints are for engines that score: give api, too", str(names))
        return self._parse_model(table.model, place.with_keys("model"), environ, endpoint)

    def _resolve_path(self, path: str) -> Path:
        """Return the absolute path; a relative one is relative to the configuration file's directory."""
        start = self.file.absolute().parent if self.file else Path.cwd()
        return start / os.path.expanduser(path)

    def _parse_model(
        self, text: str, place: ConfigLocation, environ: Mapping[str, str], endpoint: Endpoint | None = None
    ) -> DraftRef:
        if text == PromptLookup.LOOKUP.value and endpoint is None:
            return PromptLookup.LOOKUP
        if text.lower().endswith(".gguf") and endpoint is None:
            return FileRef(self._resolve_path(text))
        try:
            model, server = parse_model_at(text)
            if server is None:
                return ModelRef(model, endpoint or resolve_host(environ))
            return ModelRef(model, self._server(server, place, text))
        except ValueError as fault:
            place.fail(str(fault), text)

    def _server(self, server: str, place: ConfigLocation, text: str = "") -> Endpoint:
        """Return an endpoint by its name, or a server by its address. `text`: the value to show in an error."""
        if server in self.table.endpoints or self._resembles_endpoint(server):
            return self._endpoint(server, place, text or server)
        try:
            return Endpoint(url=server_url(server), source=str(place))
        except ValueError as fault:
            place.fail(str(fault), text or server)

    def _resembles_endpoint(self, server: str) -> bool:
        """Whether a bare word is probably a misspelt endpoint, not a host."""
        bare = re.fullmatch(r"[A-Za-z0-9_-]+", server)
        return bool(bare and difflib.get_close_matches(server, self.table.endpoints))

    def _endpoint(self, name: str, place: ConfigLocation, value: str) -> Endpoint:
        if (table := self.table.endpoints.get(name)) is None:
            host = f" (a host of that name: {name}:11434)" if value != name else ""
            place.fail(f"no endpoint {name} is defined{suggest_names(name, self.table.endpoints)}{host}", value)
        source = str(ConfigLocation(self.file, ("endpoints", name, "url")))
        return Endpoint(name=name, source=source, **table.model_dump())

    def _default(self) -> str:
        pairs = list(self.table.pairs)
        if self.table.default_pair is not None or len(pairs) == 1:
            return self.table.default_pair or pairs[0]
        if pairs:
            choose = f'name one of {join_names(pairs)}, or set default_pair = "{pairs[0]}"'
            raise ConfigError(one_line(f"{self.file}: there is no default pair; {choose}"))
        raise ConfigError(one_line(f"no pair is given: {_first_steps(self.file)}"))

    def _unknown_pair(self, name: str) -> NoReturn:
        if not self.table.pairs:
            raise ConfigError(one_line(f"there is no pair {name}: {_first_steps(self.file)}"))
        raise ConfigError(one_line(f"{self.file}: there is no pair {name}{suggest_names(name, self.table.pairs)}"))


def adhoc_pair(
    target: str,
    draft: str | None,
    config: Config,
    environ: Mapping[str, str],
    **flags: Unpack[Overrides],
) -> PairSettings:
    """Return the pair that `--target` and `--draft` name; their servers may be endpoints of the configuration.

    Raises UsageError naming the flag, ConfigError when a variable that holds a token isn't set.
    """
    chosen = replace(config, file=None).model_at(target, "target", environ)
    if isinstance(chosen, PromptLookup):
        FLAGS.with_keys("target").fail("lookup is a drafter, not a model", target)
    drafts = () if draft is None else (replace(config, file=None).model_at(draft, "draft", environ),)
    settings = PairSettings(name=None, target=chosen, drafts=drafts)
    return _check_tokens(settings.with_overrides(**flags), environ)


def find_config(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """Return the path of the configuration file; None if there is none.

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
    return next((path for path in (cwd / LOCAL_NAME, user_file()) if os.path.exists(path)), None)


def load_config(path: Path | None) -> Config:
    """Return the configuration of a named file; for None an empty one. Raises ConfigError at the first fault."""
    return Config() if path is None else parse_config(path, read_config(path))


def read_config(path: Path) -> bytes:
    """Return the bytes of the file. Raises ConfigError if it can't be read."""
    try:
        with open_plain(path) as file:
            return file.read()
    except OSError as error:
        raise ConfigError(one_line(f"{path}: can't be read: {error.strerror or error}")) from None


def parse_config(path: Path, raw: bytes, *, named: bool = True) -> Config:
    """Return the configuration in the bytes of a file. Raises ConfigError at the first fault."""
    config = Config(path, validate_table(ConfigTable, toml.parsed(path, raw), ConfigLocation(path)), named)
    config.validate()
    return config


def _check_tokens(settings: PairSettings, environ: Mapping[str, str]) -> PairSettings:
    for model in (settings.target, *settings.drafts):
        if isinstance(model, ModelRef):
            for endpoint in model.endpoints:
                endpoint.token(environ)
    return settings


def user_file() -> Path:
    """The user's own configuration file, which may be missing."""
    return paths.config_folder() / "config.toml"


def _first_steps(file: Path | None) -> str:
    where = f"define one in {file}" if file else f"write a configuration file, ./{LOCAL_NAME} or {user_file()}"
    return f"run `specollama init`, or give --target MODEL[@SERVER] and --draft MODEL[@SERVER], or {where}"
