"""`specollama batch`: many prompts answered into a run's folder, for people to look at; nothing is sent anywhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer
from rich.markup import escape

from specollama.cli.terminal import completion, options, output
from specollama.cli.terminal.progress import progress
from specollama.config.settings import PairSettings
from specollama.errors import RunError, UsageError
from specollama.pairs.pair import Pair
from specollama.tools.review.batch import Batch, begin_run
from specollama.tools.review.log_entries import PairCall
from specollama.tools.review.prompts import PromptFile, load
from specollama.tools.review.run_folder import ReviewRun, open_run
from specollama.tools.review.state import ItemStatus


@options.takes_sampling
def batch(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[PAIR] PROMPTS",
            autocompletion=completion.pairs,
            help='A pair of the configuration; JSON lines: {"id", "prompt" or "messages", "options", "metadata"}.',
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="The run's folder; an old one goes on.")],
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    keep_alive: options.KeepAlive = None,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Items to answer at once.")] = 1,
    quorum: Annotated[
        int | None,
        typer.Option(
            min=1, help="Different reviewers that must approve a text.", show_default="review.quorum of the file, or 1"
        ),
    ] = None,
    reviewer: options.Reviewer = None,
    lookahead: options.Lookahead = None,
    route: options.RouteName = None,
    rule: options.RuleName = None,
    sampling: options.Sampling = MappingProxyType({}),
    num_ctx: options.NumCtx = None,
) -> None:
    """Answer many prompts, each once, and keep the replies for `specollama review`. Nothing is sent anywhere.

    After Ctrl-C or a crash the same command goes on where it was.
    """
    sampling = {**sampling, "num_ctx": num_ctx}
    flags = options.flags(lookahead=lookahead, route=route, rule=rule, keep_alive=keep_alive, sampling=sampling)
    known = options.load_configuration(config)
    name, file = _pair_and_file(words, target_given=target is not None)
    settings = options.pair_settings(known, name, target, draft, flags)
    prompts = load(file)
    who = options.reviewer_name(reviewer)
    call = PairCall(pair=settings.name, target=target, draft=draft, flags=_given(flags))
    with open_run(out, who) as run:
        _tell_recovered(run)
        begin_run(run, who, call, settings, prompts, quorum or known.table.review.quorum)
        try:
            asyncio.run(_answer(run, who, settings, prompts, concurrency))
        finally:
            _report(run)
        _fail_if_any(run)


def _pair_and_file(words: list[str], *, target_given: bool) -> tuple[str | None, Path]:
    if len(words) == 1:
        return None, Path(words[0])
    if len(words) > 2:
        raise UsageError(f"too many arguments: {' '.join(words[2:])}; give a pair and a file of prompts")
    if target_given:
        raise UsageError(f"a pair ({words[0]}) and --target exclude each other")
    return words[0], Path(words[1])


def _given(flags: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value is not None and value != {}}


async def _answer(run: ReviewRun, who: str, settings: PairSettings, prompts: PromptFile, concurrency: int) -> None:
    total = len(prompts.items)
    waiting = len(run.state.with_status(ItemStatus.WAITING, ItemStatus.FAILED))
    async with Pair(settings, os.environ) as pair:
        with progress(total, total - waiting) as (_, advance):
            await Batch(run, who, pair, prompts, advance).answer_all(concurrency)


def _tell_recovered(run: ReviewRun) -> None:
    if run.recovered:
        output.stderr().print(
            f"a process was killed while it wrote; {run.recovered} bytes of an unfinished entry were cut off"
        )


def _report(run: ReviewRun) -> None:
    total, without = len(run.state.items), len(run.state.with_status(ItemStatus.WAITING))
    folder, aside = escape(str(run.folder)), output.stderr()
    if without:
        aside.print(
            f"{total - without} of {output.count_text(total, 'item')} in {folder}; the same command goes on from there"
        )
    else:
        aside.print(f"{output.count_text(total, 'item')} in {folder}; next: specollama review {folder}")


def _fail_if_any(run: ReviewRun) -> None:
    failed = run.state.with_status(ItemStatus.FAILED)
    if failed:
        first = failed[0]
        raise RunError(
            f"{len(failed)} of {len(run.state.items)} items have no reply ({first.id}: {first.error}); "
            "the same command tries these again"
        )
