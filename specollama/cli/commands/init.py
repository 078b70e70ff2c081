"""`specollama init`: find the installed models that make a pair, write the user's configuration, and try the pair."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from specollama.cli.commands.run import messages
from specollama.cli.terminal import options, output
from specollama.config.endpoints import resolve_host
from specollama.config.loading import find_config, load_config, user_file
from specollama.config.settings import EMBEDDED
from specollama.errors import EndpointError, RunError, UsageError, one_line
from specollama.pairs.report import number
from specollama.pairs.request import ChatInput
from specollama.server.embedded.pair import can_open_embedded
from specollama.tools.bench import Comparison, compare
from specollama.tools.doctor import config_file
from specollama.tools.doctor.first_pair import choice_line, rank_choices, with_default, with_default_name
from specollama.tools.doctor.installed_models import installed_pairs
from specollama.tools.doctor.suggestions import Suggestion, suggest_pulls

_PROMPT = "Write a Python function that reverses a string, then write it again with type hints."
_TOKENS = 64
_MOST_SHOWN = 9
_GET_OLLAMA = "https://ollama.com/download has it; OLLAMA_HOST names one elsewhere"


def init(
    yes: Annotated[bool, typer.Option("--yes", help="Take the first choice without asking.")] = False,
    trial: Annotated[bool, typer.Option("--try/--no-try", help="Answer a prompt both ways at the end.")] = True,
) -> None:
    """Set up a first pair: find the installed models that make one, write the configuration, try one prompt both ways.

    The models are those of $OLLAMA_HOST, else of this machine. The file is the user's own configuration.
    """
    if not yes and not output.can_ask():
        raise UsageError("init asks at a terminal; give --yes to take the first choice")
    file = user_file()
    before = config_file.read_config(file)
    text, name = _chosen(before, yes=yes)
    file.parent.mkdir(parents=True, exist_ok=True)
    config_file.write_config(file, text)
    output.stderr().out(one_line(f'{file}: default_pair = "{name}"'))
    _warn_of_another(file)
    if trial:
        _try(file)
    output.stderr().out('now: specollama chat, or specollama run "your prompt"')


def _chosen(before: str, *, yes: bool) -> tuple[str, str]:
    """The new configuration's text, and the name of its default pair."""
    endpoint = resolve_host(os.environ)
    models, pairs, faults = asyncio.run(installed_pairs([endpoint], os.environ))
    choices = rank_choices(models, pairs)[:_MOST_SHOWN]
    if not choices:
        _accept_embedded(f"{faults[0]} ({_GET_OLLAMA})" if faults else _nothing_installed(endpoint.url), yes=yes)
        return with_default_name(before, EMBEDDED), EMBEDDED
    say = output.stderr().out
    for place, choice in enumerate(choices, 1):
        say(f"{place}. {choice_line(choice)}")
    for pull in suggest_pulls(models, pairs):
        say(f"   {pull.target} would have a better draft: ollama pull {pull.draft}")
    chosen = choices[0] if yes else _ask(choices)
    return with_default(before, chosen), chosen.name


def _nothing_installed(url: str) -> str:
    return f"{url} has no model that can be a target: ollama pull qwen2.5-coder:7b, and qwen2.5-coder:0.5b as its draft"


def _ask(choices: list[Suggestion]) -> Suggestion:
    while True:
        place: int = typer.prompt("Which one?", default=1, type=int, err=True)
        if 1 <= place <= len(choices):
            return choices[place - 1]
        output.stderr().out(f"a number from 1 to {len(choices)}")


def _accept_embedded(why: str, *, yes: bool) -> None:
    """Offer the embedded pair. Raises RunError where it can't be had or isn't wanted."""
    if not can_open_embedded():
        raise RunError(f"{why}; pip install 'specollama[local,embedded]' has a small pair that needs no Ollama")
    output.stderr().out(why)
    if not yes and not output.ask_yes_no("Use the embedded pair of small models (540 MB in your cache)?"):
        raise RunError("nothing was set up")


def _warn_of_another(file: Path) -> None:
    """Tell of a file that comes before the user's own in this folder."""
    used = find_config(None, os.environ, Path.cwd())
    if used is not None and used != file:
        output.stderr().out(one_line(f"note: here {used} is used instead of it"))


def _try(file: Path) -> None:
    """One prompt both ways. A fault of a server is told; what was set up stays."""
    settings = options.named_pair(load_config(file), None)
    asked = ChatInput(messages(_PROMPT, None), {"num_predict": _TOKENS, "temperature": 0})
    output.stderr().out("trying one prompt both ways; the first time, the models are loaded and measured")
    try:
        comparison = asyncio.run(compare(settings, os.environ, asked))
    except EndpointError as error:
        output.stderr().out(one_line(f"the pair is set up, but it can't be tried: {error}"))
        return
    output.stderr().out(_speeds(comparison))


def _speeds(comparison: Comparison) -> str:
    ours, theirs = comparison.speculative.stats, comparison.plain.stats
    factor = "" if comparison.factor is None else f": {comparison.factor:.2f}x"
    why = f" ({ours.reason})" if ours.reason else ""
    return (
        f"speculative {number(ours.tokens_per_second)} tokens/s by route {ours.route}{why}, "
        f"plain {number(theirs.tokens_per_second)} tokens/s{factor}"
    )
