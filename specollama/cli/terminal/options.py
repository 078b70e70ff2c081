"""The options that commands share, and how they become a pair's settings."""

from __future__ import annotations

import getpass
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specollama.cli.terminal import completion, output
from specollama.cli.terminal.standard_streams import read_piped_text
from specollama.config import trust
from specollama.config.loading import Config, adhoc_pair
from specollama.config.settings import EMBEDDED, PairSettings, PromptLookup
from specollama.errors import UsageError, one_line
from specollama.spec_decode.types import OPTION_TYPES, AcceptanceMethod, Route, SamplingOptions

if TYPE_CHECKING:
    from specollama.pairs.trace.recorder import TraceFile

_SAMPLING = "Sampling (Ollama's options, by its names)"
_SPECULATION = "Speculation"
_OPENING = "Models opened in process (route local)"
_PAIR = "Pair"

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        rich_help_panel=_PAIR,
        show_default="$SPECOLLAMA_CONFIG, ./specollama.toml, or the user's configuration directory",
        help="The configuration.",
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="MODEL[@SERVER]",
        autocompletion=completion.models,
        rich_help_panel=_PAIR,
        show_default="SERVER: $OLLAMA_HOST, else http://127.0.0.1:11434",
        help="The large model. SERVER: a URL, host, host:port, or an endpoint of the configuration.",
    ),
]
DraftName = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="MODEL[@SERVER]",
        autocompletion=completion.drafts,
        rich_help_panel=_PAIR,
        help="The small model.",
    ),
]
KeepAlive = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", rich_help_panel=_PAIR, help="How long both models stay loaded afterwards: 30m, 2h, -1m."
    ),
]
Lookahead = Annotated[
    str | None,
    typer.Option(
        metavar="N|N,N,...|auto",
        rich_help_panel=_SPECULATION,
        help="Tokens to draft in a round, or round by round; 0 drafts nothing.",
    ),
]
RouteName = Annotated[
    str | None,
    typer.Option(
        "--route",
        metavar="|".join(Route),
        autocompletion=completion.routes,
        rich_help_panel=_SPECULATION,
        help="How drafts are verified.",
    ),
]
RuleName = Annotated[
    str | None,
    typer.Option(
        "--rule",
        metavar="|".join(rule for rule in AcceptanceMethod if rule is not AcceptanceMethod.GREEDY),
        rich_help_panel=_SPECULATION,
        help="How a drafted token is judged above temperature 0.",
    ),
]


ShowOrigin = Annotated[
    bool, typer.Option("--show-origin", help="Colour tokens: accepted green, recovered red, bonus cyan.")
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Add what happened to FILE, as JSON lines for `specollama trace`."),
]
TraceTexts = Annotated[bool, typer.Option("--trace-texts", help="Let the trace hold the texts, too.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]
Images = Annotated[
    list[Path] | None, typer.Option("--image", metavar="FILE", help="Show the model an image. Repeatable.")
]
Think = Annotated[
    bool | None, typer.Option("--think/--no-think", show_default="as it does", help="Whether a thinking model thinks.")
]
Reviewer = Annotated[
    str | None,
    typer.Option("--reviewer", metavar="NAME", show_default="your user name", help="Who this is, for the log."),
]


def _sampling(help_text: str, metavar: str | None = None) -> Any:
    return typer.Option(rich_help_panel=_SAMPLING, help=help_text, metavar=metavar)


_OPTIONS = {each.name: each for each in fields(SamplingOptions)}
NumCtx = Annotated[int | None, _sampling("Context length in tokens; another one loads the models anew.")]
NumKeep = Annotated[int | None, _sampling("Tokens to keep from the start when the context overflows.")]

Sampling = Mapping[str, Any]
"""The sampling options that were given, by name: the type of the parameter `sampling` (see `takes_sampling`)."""


def takes_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag for each sampling option, in the place of its parameter `sampling`."""
    signature = inspect.signature(command, eval_str=True)
    parameters = list[inspect.Parameter]()
    for parameter in signature.parameters.values():
        parameters += [parameter] if parameter.name != "sampling" else map(_flag, _OPTIONS)

    @wraps(command)
    def with_flags(**given: Any) -> None:
        sampling = {name: given.pop(name) for name in _OPTIONS}
        command(**given, sampling={name: value for name, value in sampling.items() if value not in (None, [])})

    with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_flags


def _flag(name: str) -> inspect.Parameter:
    kind = OPTION_TYPES[name]
    metavar = "TEXT" if kind == list[str] else None
    annotation = Annotated[kind | None, _sampling(_OPTIONS[name].metadata["help"], metavar)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def _opening(help_text: str, *names: str, default: str = "as llama.cpp chooses") -> Any:
    return typer.Option(*names, rich_help_panel=_OPENING, show_default=default, help=help_text)


Threads = Annotated[int | None, _opening("Threads; sent to servers as well.", "--num-thread", default="one a core")]
BatchThreads = Annotated[int | None, _opening("Threads for reading prompts.", default="as --num-thread")]
GpuLayers = Annotated[int | None, _opening("Layers on a GPU; sent to servers as well.", "--num-gpu", default="all")]
KvType = Annotated[str | None, _opening("Type of the cache, as q8_0.", default="f16")]
Mmap = Annotated[bool | None, _opening("Map files into memory, or read them.", "--use-mmap/--no-use-mmap")]
Requantize = Annotated[
    bool | None,
    _opening("Let a draft model be a 4-bit copy where that is quicker.", "--requantize/--no-requantize", default="yes"),
]


def load_configuration(file: Path | None) -> Config:
    """The configuration of the command. At a terminal, the user is asked before a folder's own file is trusted."""
    return trust.configuration(file, os.environ, Path.cwd(), output.ask_yes_no if output.can_ask() else None)


def reviewer_name(given: str | None) -> str:
    """The reviewer's name for the log. Raises UsageError when there is none, or when it isn't printable."""
    try:
        name = " ".join((getpass.getuser() if given is None else given).split())
    except (OSError, KeyError):  # no environment and no entry of the user's
        name = ""
    if not name or not name.isprintable():
        raise UsageError("--reviewer NAME: give a name, in printable characters")
    return name


def pair_settings(
    config: Config, name: str | None, target: str | None, draft: str | None, given: Mapping[str, Any]
) -> PairSettings:
    """The named pair, or the pair of `--target` and `--draft`, with the flags applied."""
    if target is not None and draft is None and given.get("route") != Route.PLAIN:
        adhoc_pair(target, PromptLookup.LOOKUP.value, config, os.environ, **given)  # flags first, then servers
        draft = find_draft(target, config)
    if target is not None:
        return adhoc_pair(target, draft, config, os.environ, **given)
    if draft is not None:
        raise UsageError("--draft is given without --target")
    return named_pair(config, name).with_overrides(**given)


def find_draft(target: str, config: Config) -> str:
    """A draft for a target that is given alone, as `--draft` would give it; it is told on stderr."""
    import asyncio  # here, with the rest, since most calls name a draft

    from specollama.tools.doctor.draft_choice import best_draft

    chosen = asyncio.run(best_draft(replace(config, file=None).model_at(target, "target", os.environ), os.environ))
    server = target.partition("@")[2]
    draft = f"{chosen}@{server}" if server and chosen is not PromptLookup.LOOKUP else str(chosen)
    why = "no installed model has its tokenizer" if chosen is PromptLookup.LOOKUP else "the best that is installed"
    print(one_line(f"draft: {draft} ({why}; --draft names another)"), file=sys.stderr)
    return draft


def named_pair(config: Config, name: str | None) -> PairSettings:
    """The pair of that name, the default one for None; `embedded` needs no configuration."""
    if not config.is_embedded(name):
        return config.pair(name, os.environ)
    from specollama.server.embedded.pair import embedded_pair  # here, since hardly any call needs it

    return embedded_pair()


def flags(
    *,
    lookahead: str | None,
    route: str | None,
    rule: str | None,
    keep_alive: str | None,
    sampling: Mapping[str, Any],
    opening: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Overrides of a pair's settings by the flags that were given. `opening`: keys of a pair by name."""
    return {
        **(opening or {}),
        "lookahead": parse_lengths(lookahead),
        "route": route,
        "rule": rule,
        "keep_alive": keep_alive,
        "options": {name: value for name, value in sampling.items() if value is not None},
    }


def parse_lengths(given: str | None) -> int | list[int] | str | None:
    """`8` as a number, `8,4,2` as a list; any other text as it is, which validation refuses later."""
    parts = given.split(",") if given else []
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        return given
    return int(parts[0]) if len(parts) == 1 else [int(part) for part in parts]


def trace_file(file: Path | None, *, texts: bool) -> TraceFile | None:
    """The trace file of `--trace` and `--trace-texts`. Raises UsageError, and RunError when it can't be written."""
    if file is None:
        if texts:
            raise UsageError("--trace-texts is given without --trace")
        return None
    from specollama.pairs.trace.recorder import TraceFile  # here, since hardly any call traces

    return TraceFile(file, texts=texts, told=lambda fault: print(f"error: {fault}", file=sys.stderr))


def pair_and_prompt(words: list[str], config: Config, *, target_given: bool) -> tuple[str | None, str]:
    """The pair and the prompt of `[PAIR] [PROMPT]` and piped input. A lone argument is a pair if one has that name.

    Raises UsageError when there is no prompt, or too many arguments.
    """
    piped = _piped()
    name, said = _split(words, config, target_given=target_given, piped=bool(piped))
    prompt = "\n\n".join(part for part in (piped, said) if part.strip())
    if not prompt:
        raise UsageError("no prompt: give it as the last argument, or pipe it in")
    return name, prompt


def _piped() -> str:
    """The text piped in; "" for none, or white space alone."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    text = read_piped_text().rstrip("\n")
    return text if text.strip() else ""


def _split(words: list[str], config: Config, *, target_given: bool, piped: bool) -> tuple[str | None, str]:
    if (target_given and len(words) <= 1) or not words:
        return None, "".join(words)
    if len(words) == 2 and not target_given:
        return words[0], words[1]
    if target_given and len(words) == 2:
        raise UsageError(f"a pair ({words[0]}) and --target exclude each other")
    if len(words) > 1:
        raise UsageError(f"too many arguments: {' '.join(words[2:]) or words[1]!r}; put the prompt in quotes")
    lone = words[0]
    is_pair = lone in (EMBEDDED, *config.table.pairs) or (piped and not any(character.isspace() for character in lone))
    return (lone, "") if is_pair else (None, lone)
