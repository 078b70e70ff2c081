"""`specollama bench`: a pair on its routes beside plain, on the same prompts in the same run."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from specollama.cli.terminal import completion, options, output
from specollama.cli.terminal.figures import show_figures
from specollama.cli.terminal.progress import progress
from specollama.config.loading import Config
from specollama.config.schema import suggest_names
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.errors import MissingPackage, RunError, UsageError, one_line
from specollama.spec_decode.types import Route
from specollama.tools.bench.plot import draw
from specollama.tools.bench.prompts import BUILT_IN, Prompt, built_in, load, pick_evenly
from specollama.tools.bench.results import Results, new_file
from specollama.tools.bench.runner import BenchRun, Measurements, prompt_turns
from specollama.tools.bench.summary import ContestantFigures
from specollama.tools.bench.systems import Contestant, open_contestants

if TYPE_CHECKING:
    from specollama.pairs.trace.recorder import TraceFile

_MEASURING = "Measuring"


def bench(
    pair: Annotated[
        str | None, typer.Argument(metavar="PAIR", autocompletion=completion.pairs, help="A pair of the configuration.")
    ] = None,
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    keep_alive: options.KeepAlive = None,
    lookahead: options.Lookahead = None,
    routes: Annotated[
        str,
        typer.Option(
            metavar="ROUTE,...", rich_help_panel=_MEASURING, help="What to compare; plain always is, as the base."
        ),
    ] = "plain,auto",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="[MODEL@]SERVER",
            rich_help_panel=_MEASURING,
            help="Another engine as one more side: an Ollama or a llama-server (URL, host:port, or endpoint).",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_MEASURING,
            show_default="24 of our own, of six kinds",
            help="What to ask: FILE.jsonl in Spec-Bench's format, a text with a prompt a line, or a folder of texts.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=_MEASURING, help="Most prompts to ask, spread over the kinds."),
    ] = None,
    turns: Annotated[
        int,
        typer.Option(
            min=1, rich_help_panel=_MEASURING, help="Turns of each prompt, each measured; plain's answers between."
        ),
    ] = 1,
    num_predict: Annotated[int, typer.Option(min=2, rich_help_panel=_MEASURING, help="Most tokens of a reply.")] = 96,
    repeat: Annotated[
        int,
        typer.Option(
            min=1, rich_help_panel=_MEASURING, help="Replies of each side to each prompt, each after a fresh start."
        ),
    ] = 3,
    temperature: Annotated[
        float,
        typer.Option(
            min=0, rich_help_panel=_MEASURING, help="Above 0 for a target that is opened in process: a GGUF file."
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, rich_help_panel=_MEASURING, help="Of all replies; with the same seed texts are equal.")
    ] = 1,
    out: Annotated[
        Path, typer.Option(metavar="DIR", rich_help_panel=_MEASURING, help="Where the results are kept.")
    ] = Path("specollama-bench"),
    trace: options.Trace = None,
    trace_texts: options.TraceTexts = False,
) -> None:
    """Measure a pair: speed and texts beside the target alone, in one run."""
    flags = options.flags(lookahead=lookahead, route=None, rule=None, keep_alive=keep_alive, sampling={})
    known = options.load_configuration(config)
    chosen = parse_routes(routes)
    if target is not None and draft is None and any(each is not Route.PLAIN for each in chosen):
        draft = options.find_draft(target, known)
    if target is not None:
        flags["route"] = Route.PLAIN  # which needs no draft model; whether the routes to compare do is checked below
    settings = options.pair_settings(known, pair, target, draft, flags)
    asked = load(prompts) if prompts else built_in()
    call = BenchCall(
        settings=settings,
        routes=chosen,
        against=_engine(against, settings, known) if against else None,
        prompts=pick_evenly(asked, limit) if limit else asked,
        source=str(prompts) if prompts else BUILT_IN,
        turns=turns,
        num_predict=num_predict,
        repeat=repeat,
        temperature=temperature,
        seed=seed,
        out=out,
        trace=options.trace_file(trace, texts=trace_texts),
    )
    call.check()
    asyncio.run(_bench(call))


@dataclass(frozen=True, slots=True)
class BenchCall:
    """The plan of a benchmark. `source`: the origin of the prompts."""

    settings: PairSettings
    routes: list[Route]
    against: ModelRef | None
    prompts: list[Prompt]
    source: str
    turns: int
    num_predict: int
    repeat: int
    temperature: float
    seed: int
    out: Path
    trace: TraceFile | None = None

    def check(self) -> None:
        """Raises UsageError when there is nothing to compare, a route lacks its draft model, or a name isn't one's."""
        compared = [route for route in self.routes if route is not Route.PLAIN]
        if not compared and self.against is None:
            raise UsageError("--routes plain: nothing to compare it with; add a route, or --against")
        for route in compared:
            self.settings.with_overrides(route=route)
        self._check_temperature(compared)
        names = [question.id for prompt in self.prompts for question in prompt_turns(prompt, self.turns)]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise UsageError(
                one_line(f"--turns {self.turns}: a prompt and a turn of another are both called {twice[0]}")
            )

    def _check_temperature(self, compared: Sequence[Route]) -> None:
        """Texts are compared. Above temperature 0 only one sampler, with the noise of one seed, writes equal texts."""
        in_process = isinstance(self.settings.target, FileRef) and not self.against
        if self.temperature and not (in_process and set(compared) <= {Route.LOCAL, Route.AUTO}):
            raise UsageError(
                f"--temperature {self.temperature:g}: texts can be compared on route local alone, so --target must be "
                "a GGUF file, --routes plain,local, and --against left out"
            )

    def traced(
        self, sides: Mapping[str, Contestant], note: Callable[[str], None]
    ) -> tuple[Mapping[str, Contestant], Callable[[str], None]]:
        """The sides, traced on request, and the callback that receives each step."""
        if self.trace is None:
            return sides, note
        from specollama.tools.bench.traced import TracedContestant, TraceLabels  # here, since hardly any run is traced

        labels = TraceLabels(note)
        return {name: TracedContestant(side, self.settings, self.trace, labels) for name, side in sides.items()}, labels

    @property
    def options(self) -> dict[str, Any]:
        """Of every reply, over the pair's own."""
        sampling = {"temperature": self.temperature, "seed": self.seed} if self.temperature else {"temperature": 0}
        return {**sampling, "num_predict": self.num_predict}

    def as_object(self) -> dict[str, Any]:
        return {
            "pair": self.settings.name,
            "routes": [str(route) for route in self.routes],
            "against": self.against.endpoint.url if self.against else None,
            "prompts": self.source,
            "prompt_count": len(self.prompts),
            "turns": self.turns,
            "repeat": self.repeat,
            "lookahead": self.settings.lookahead,
            "lanes": self.settings.lanes,
            "sampling": {**self.settings.options, **self.options},
        }


def parse_routes(text: str) -> list[Route]:
    """The routes of `plain,lanes`, each once. Raises UsageError naming the one that isn't there."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in list(Route):
            raise UsageError(f"--routes: there is no route {name!r}{suggest_names(name, list(Route))}")
    if not names:
        raise UsageError("--routes: names no route")
    return [Route(name) for name in dict.fromkeys(names)]


def _engine(text: str, settings: PairSettings, config: Config) -> ModelRef:
    """The engine that `--against` names; its model is called as the target's unless it names one."""
    name = "target" if isinstance(settings.target, FileRef) else settings.target.model
    named = text if "@" in text else f"{name}@{text}"
    engine = config.model_at(named, "against", os.environ)
    if not isinstance(engine, ModelRef):
        raise UsageError(f"--against {text}: names no server")
    return engine


async def _bench(call: BenchCall) -> None:
    async with AsyncExitStack() as stack:
        sides = await open_contestants(call.settings, call.routes, call.against, os.environ, stack)
        measured = Measurements(temperature=call.temperature)
        results = Results(new_file(call.out), measured, sides, call.prompts, call.as_object())
        results.save()  # now rather than after an hour: the folder may not be writable
        try:
            with progress(len(call.prompts)) as (note, advance):
                asked, told = call.traced(sides.by_name, note)
                run = BenchRun(asked, call.options, call.repeat, measured, told)
                await run.warm_up()
                for prompt in call.prompts:
                    await run.run_prompt(prompt, call.turns)
                    results.save()
                    advance(prompt.id)
            results.complete = True
        finally:
            figures = results.figures
            results.save_partial(figures)
            if not results.complete and measured.measurements:
                output.stderr().print(f"not complete; what was measured is in {escape(str(results.file))}")
    _report(results, figures)


def _report(results: Results, figures: Sequence[ContestantFigures]) -> None:
    """The table, where the files are, and a failure when a reply was no reply."""
    aside = output.stderr()
    show_figures(output.stdout(), figures)
    aside.print(f"all figures and texts: {escape(str(results.file))}")
    picture = results.file.with_suffix(".png")
    try:
        draw(figures, picture, "specollama bench: " + ", ".join(results.names))
        aside.print(f"picture: {escape(str(picture))}")
    except MissingPackage as error:
        aside.print(escape(str(error)))
    broken = [f"{side.name}: {len(side.errors)} of {len(side.prompts)}" for side in figures if side.errors]
    if broken:
        raise RunError(f"prompts without a usable reply, and so without a factor ({'; '.join(broken)})")
