"""The tables of the configuration file, as pydantic models, and the words of their own checks.

A fault is one line: the file (or flag), the path of keys, the value, what is allowed, the nearest valid name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, create_model, model_validator
from pydantic_core import PydanticCustomError

from specollama.config.endpoints import server_url
from specollama.spec_decode.types import OPTION_TYPES, AcceptanceMethod, Route, ServerApi

NAME = re.compile(r"[A-Za-z0-9._-]+")
SECRET = re.compile(r"token|secret|pass|key|auth", re.IGNORECASE)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECONDS = re.compile(r"[+-]?\d+\.?\d*")
DURATION = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+")  # Go's, without its bare "0"


def table_error(words: str, key: str | None = None) -> PydanticCustomError:
    """Return the error for a table's own check to raise. `key`: the faulty key of the table."""
    return PydanticCustomError("fault", "{words}", {"words": words, "key": key})


def _must(words: str, check: Callable[[Any], bool] = lambda value: True) -> WrapValidator:
    """Refuse, in these words, what isn't of the field's type or fails the check.

    For the few fields whose type doesn't say what is allowed. All others are worded by `validation.WORDS`.
    """

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            value = handler(value)
        except ValidationError:
            raise table_error(f"must be {words}") from None
        if value is not None and not check(value):
            raise table_error(f"must be {words}")
        return value

    return WrapValidator(validate)


def _named(kind: str) -> WrapValidator:
    """Validate tables under names that the user chooses."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(value, dict):
            raise table_error(f"must be tables, each headed [{kind}.NAME]")
        for name in value:
            if not NAME.fullmatch(name):
                raise table_error("a name may hold letters, digits, '.', '_' and '-' only", name)
        return handler(value)

    return WrapValidator(validate)


def _server(value: Any, handler: Callable[[Any], str]) -> str:
    try:
        if "://" not in handler(value):
            raise ValueError("must begin with http:// or https://, as http://tower:11434")
        return server_url(value)
    except ValidationError:
        raise table_error("must be a URL, as http://tower:11434") from None
    except ValueError as fault:
        raise table_error(str(fault)) from None


class Table(BaseModel):
    """A table of the file. An unknown key is reported before a missing one, because it is often its misspelling."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())
    key_word: ClassVar[str] = "key"

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise table_error(f"must be a table; allowed in it: {join_names(cls.model_fields)}")
        for key in data:
            if key not in cls.model_fields:
                raise table_error(f"unknown {cls.key_word}{suggest_names(key, cls.model_fields)}", key)
        for key, info in cls.model_fields.items():
            if info.is_required() and key not in data:
                raise table_error(f"missing; give it as {key} = {(info.examples or ['...'])[0]}", key)
        return data


Seconds = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


_SamplingTable = create_model(
    "_SamplingTable",
    __base__=Table,
    **{name: (kind | None, None) for name, kind in OPTION_TYPES.items()},  # type: ignore[call-overload]
)


class OptionsTable(_SamplingTable):  # type: ignore[misc, valid-type]
    """Ollama's options by their names: the sampling options, and those with which models are loaded."""

    key_word: ClassVar[str] = "option"
    num_keep: int | None = None
    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    use_mmap: bool | None = None
    num_thread: int | None = None
    draft_num_predict: int | None = None


class EndpointTable(Table):
    url: Annotated[str, WrapValidator(_server)] = Field(examples=['"http://tower:11434"'])
    token_env: Annotated[
        str | None,
        _must("the name of an environment variable that holds the token", lambda name: VARIABLE.fullmatch(name)),
    ] = None
    connect_timeout: Seconds = 10.0
    idle_timeout: Seconds = 600.0


class ModelTable(Table):
    """A model on a server, or (`path`) a GGUF file that this process opens."""

    model: str = Field("", examples=['"qwen2.5-coder:32b"'])
    endpoint: Annotated[
        str | list[str] | None,
        _must("the name of an endpoint, or a list of such names", lambda names: names != []),
    ] = None
    api: Annotated[ServerApi | None, Field(strict=False)] = None
    path: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.path is None and not self.model:
            raise table_error('missing; give it as model = "qwen2.5-coder:32b", or path = "FILE.gguf"', "model")
        if self.path is not None and (self.model or self.endpoint or self.api):
            raise table_error("a file has no model's name, no endpoint and no api; leave them out", "path")
        if self.api is not None and self.endpoint is None:
            raise table_error("an api belongs to an endpoint; give that, too", "api")
        return self


def _draft(value: Any, handler: Callable[[Any], Any]) -> Any:
    """Accept one drafter or a list; a string is a drafter as the command line writes it."""
    listed = value if isinstance(value, list) else [value]
    return handler([{"model": one} if isinstance(one, str) else one for one in listed])


def _target(value: Any, handler: Callable[[Any], Any]) -> Any:
    """A text is a model written as on the command line."""
    return handler({"model": value} if isinstance(value, str) else value)


def _is_lookahead(value: int | list[int] | str) -> bool:
    if isinstance(value, list):
        return bool(value) and min(value) >= 1
    return value == "auto" or (isinstance(value, int) and value >= 0)


class TuningTable(Table):
    """The settings of a pair that flags of the command line can also set."""

    lookahead: Annotated[
        int | list[int] | Literal["auto"],
        _must('"auto", a whole number from 0, or a list of such from 1, round by round', _is_lookahead),
    ] = "auto"
    route: Annotated[Route, Field(strict=False)] = Route.AUTO
    rule: Annotated[
        AcceptanceMethod,
        Field(strict=False),
        _must("one of auto, rejection, match", lambda value: value is not AcceptanceMethod.GREEDY),
    ] = AcceptanceMethod.AUTO
    lanes: AtLeastOne | None = None
    keep_alive: Annotated[
        str | float | None,
        _must(
            'a duration, as "30m", or a number of seconds (below 0: for ever)',
            lambda value: not isinstance(value, str) or DURATION.fullmatch(value) or SECONDS.fullmatch(value),
        ),
    ] = None
    kv_type: Annotated[
        str | None, _must('a cache type of llama.cpp, as "q8_0"', lambda name: VARIABLE.fullmatch(name))
    ] = None
    batch_threads: AtLeastOne | None = None
    draft_ahead: bool | None = None
    requantize: bool = True
    options: OptionsTable = OptionsTable()

    def given(self) -> dict[str, Any]:
        """Return the keys that were set, under the names of `PairSettings`."""
        given = {name: getattr(self, name) for name in TuningTable.model_fields if name in self.model_fields_set}
        if isinstance(keep := given.get("keep_alive"), str) and SECONDS.fullmatch(keep):
            given["keep_alive"] = float(keep)  # Ollama refuses a text without a unit
        if isinstance(lengths := given.get("lookahead"), list):
            given["lookahead"] = tuple(lengths)
        if "options" in given:
            given["options"] = self.options.model_dump(exclude_none=True)
        return given


class PairTable(TuningTable):
    target: Annotated[ModelTable, WrapValidator(_target)] = Field(examples=['{ model = "qwen2.5-coder:32b" }'])
    draft: Annotated[list[ModelTable], WrapValidator(_draft)] = []
    native: str | None = None
    intercept: bool = True


class ServeTable(Table):
    """Settings of `specollama serve`. Sizes are in the units of their names; timeouts in seconds."""

    endpoint: str | None = None
    stats: bool = True
    log_prompts: bool = False
    max_requests: AtLeastOne = 256
    max_queue: Annotated[int, Field(ge=0)] = 512
    max_body: AtLeastOne = 32 * 2**20
    max_prompt: AtLeastOne | None = None
    max_num_predict: AtLeastOne | None = None
    shutdown_timeout: Seconds = 30.0
    stuck_after: Seconds = 600.0


class ChatTable(Table):
    """Defaults of a chat; flags and `/set` change them. `history` None: conversations are kept at a terminal only."""

    history: bool | None = None
    theme: Literal["default", "colourblind", "mono"] = "default"
    origin: bool = False
    verbose: bool = False
    markdown: bool = True
    wordwrap: bool = True
    fold: bool = False


class ReviewTable(Table):
    """How replies are approved. `quorum`: approvals needed; `mark_below`: tokens less probable than this are marked."""

    quorum: AtLeastOne = 1
    mark_below: Annotated[float, Field(ge=0, le=1)] = 0.5


class ConfigTable(Table):
    default_pair: str | None = None
    chat: ChatTable = ChatTable()
    review: ReviewTable = ReviewTable()
    serve: ServeTable = ServeTable()
    endpoints: Annotated[dict[str, EndpointTable], _named("endpoints")] = {}
    pairs: Annotated[dict[str, PairTable], _named("pairs")] = {}


def suggest_names(name: str, names: Iterable[str]) -> str:
    """Return the end of a message on an unknown name: the nearest name, and all."""
    near = difflib.get_close_matches(name, names := list(names), n=1)
    return (f", did you mean {near[0]}?" if near else ";") + f" allowed: {join_names(names)}"


def join_names(names: Iterable[str]) -> str:
    """Return the names in order, with commas; "none" if there are none."""
    return ", ".join(sorted(names)) or "none"
