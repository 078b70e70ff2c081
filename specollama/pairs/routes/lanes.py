"""Routes `lanes` and `greedy`: plans a reply of a target on an Ollama server, and builds its drafter and target."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specollama.backends.drafter_pool import LookupThenModel
from specollama.backends.ollama.drafter import OllamaDrafter, RetokenizingDrafter
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.server_watch import MonitoredTarget, ServerWatch
from specollama.backends.ollama.slot_probe import SlotProbe
from specollama.backends.ollama.target import ParallelTarget, StreamTarget
from specollama.backends.prompt_lookup import TextLookupDrafter
from specollama.config.settings import FileRef, PairSettings
from specollama.errors import EndpointError
from specollama.pairs.event_streams import split_thinking
from specollama.pairs.feasibility import near_tie_text
from specollama.pairs.served_drafters import runs_ahead
from specollama.pairs.slots import SharedLookahead
from specollama.pairs.tokenizers import TokenizerMatch
from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.decode_loop import RoundObserver, SpeculativeDecoder
from specollama.spec_decode.draft_ahead import DraftAhead, OverlappedTarget
from specollama.spec_decode.events import Event, Status
from specollama.spec_decode.interfaces import Drafter, Target
from specollama.spec_decode.lookahead import AdaptiveLookahead, Lookahead, ScheduledLookahead, SpeculationMonitor
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.retokenization import CountedPath, ExactPath
from specollama.spec_decode.types import AcceptanceMethod, Route

if TYPE_CHECKING:
    pass

_BEGIN_MARKERS = ("<s>", "<bos>", "<BOS_TOKEN>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>")


@dataclass(frozen=True, slots=True)
class OllamaPlan:
    """Plan of one reply of a target on an Ollama server. `context_length`: the target's, in tokens; None if unknown.

    `draft` and `draft_requests` are None if prompt lookup is the only drafter.
    """

    route: Route
    rule: AcceptanceMethod
    prompt: str
    seed: int  # the base of the position seeds
    target: ModelInfo
    draft: ModelInfo | None
    target_requests: RequestTemplate
    draft_requests: RequestTemplate | None
    tokenizers: TokenizerMatch
    context_length: int | None
    lanes: int
    lookup: bool = False  # prompt lookup drafts first; the draft model drafts if lookup finds nothing
    raw: bool = False  # the request's prompt is used as it is, without a template
    probe: SlotProbe | None = None  # None: the settings force the route, so that nothing was probed

    @property
    def first_seed(self) -> int:
        """The sampling seed of the reply's first token."""
        return self.seed if self.route is Route.GREEDY else position_seed(self.seed, 0)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt: exact with the target's tokenizer, otherwise estimated."""
        exact = self.tokenizers.target
        return len(exact.encode(self.prompt)) if exact else len(self.prompt) // 4

    @property
    def is_full(self) -> bool:
        """Whether the prompt leaves no room for a draft."""
        known = self.context_length is not None and self.tokenizers.target is not None
        return known and self.prompt_tokens + 2 > (self.context_length or 0)


def monitor_for(plan: OllamaPlan, settings: PairSettings) -> SpeculationMonitor | None:
    """Monitor that stops slow speculation; None if the lookahead is forced, or if a seed must reproduce the reply."""
    if plan.route is Route.GREEDY or settings.lookahead != "auto":
        return None
    if plan.target_requests.options.seed is not None and not plan.target_requests.options.greedy:
        return None
    return SpeculationMonitor(plan.probe.step if plan.probe else None)


def ollama_lookahead(plan: OllamaPlan, settings: PairSettings) -> Lookahead:
    if settings.lookahead == "auto":
        return AdaptiveLookahead(max_tokens=max(1, plan.lanes - 1))
    lengths = settings.lookahead if isinstance(settings.lookahead, tuple) else (settings.lookahead,)
    if plan.route is Route.LANES and settings.lanes is not None:
        lengths = tuple(min(length, max(1, plan.lanes - 1)) for length in lengths)
    return ScheduledLookahead(lengths)


def status_detail(plan: OllamaPlan, settings: PairSettings, lookahead: Lookahead) -> str:
    """The text of the status line."""
    words = f"{plan.route}, lookahead {lookahead}" + ", drafting ahead" * drafts_ahead(plan, settings)
    if plan.route is Route.LANES and plan.tokenizers.target is None:
        words += f"; cuts checked by token counts alone: {plan.tokenizers.why_not_exact}"
    if idle := [str(draft) for draft in settings.drafts if isinstance(draft, FileRef)]:
        words += f"; {', '.join(idle)} drafts only for a target that is opened in process"
    if plan.target_requests.options.greedy:
        words += "".join(f"; {told}" for told in [near_tie_text(plan.target.show.details.quantization_level)] if told)
    return words


def drafts_ahead(plan: OllamaPlan, settings: PairSettings) -> bool:
    """Whether to draft while the target verifies: only if the two models don't share their hardware."""
    if plan.draft is None or plan.rule is AcceptanceMethod.REJECTION or plan.route is Route.GREEDY:
        return False
    return runs_ahead(settings, plan.target.server.url, plan.draft.server.url)


async def build_target_and_drafter(
    plan: OllamaPlan, settings: PairSettings, watch: ServerWatch, stack: AsyncExitStack
) -> tuple[Target, Drafter]:
    """Create the target and the drafter of a reply; `stack` closes them."""
    target, drafter = await _build_target(plan, watch, stack), _build_drafter(plan, watch)
    if drafter is not None and drafts_ahead(plan, settings):
        ahead = await stack.enter_async_context(aclosing(DraftAhead(drafter)))
        target, drafter = OverlappedTarget(target, [ahead]), ahead
    if drafter is not None and not plan.lookup:
        return target, drafter
    exact = plan.tokenizers.target
    return target, LookupThenModel(
        RetokenizingDrafter(TextLookupDrafter(), exact) if exact else TextLookupDrafter(), drafter
    )


async def _build_target(plan: OllamaPlan, watch: ServerWatch, stack: AsyncExitStack) -> Target:
    """Create the target of the plan's route; `stack` closes it."""
    options = plan.target_requests.options
    if plan.route is Route.GREEDY:
        limit = options.num_predict if options.num_predict > 0 else None
        target = StreamTarget(plan.target.server, plan.target_requests, plan.prompt, limit=limit, seed=plan.seed)
        return await stack.enter_async_context(aclosing(target))
    exact = plan.tokenizers.target
    lanes = ParallelTarget(
        plan.target.server,
        plan.target_requests,
        ExactPath(plan.prompt, exact) if exact else CountedPath(plan.prompt),
        rule=plan.rule,
        seed=plan.seed,
        context_length=plan.context_length,
        row_tokens=plan.probe.row_tokens if plan.probe else plan.target.row_tokens,
        note=watch.note_target,
    )
    return MonitoredTarget(lanes, watch)


def _build_drafter(plan: OllamaPlan, watch: ServerWatch) -> Drafter | None:
    """Create the drafter of the draft model, if there is one. It drafts in the target's tokenization."""
    if plan.draft is None or plan.draft_requests is None:
        return None
    tokenizers = plan.tokenizers
    ollama = OllamaDrafter(
        plan.draft.server,
        plan.draft_requests,
        rule=plan.rule,
        seed=secrets.randbits(31),
        vocabulary=tokenizers.target if tokenizers.same else None,
        row_tokens=plan.draft.row_tokens,
        note=watch.note_draft,
    )
    if tokenizers.target and not (tokenizers.same and plan.draft.has_logprobs):
        return RetokenizingDrafter(ollama, tokenizers.target)
    return ollama


def may_double_bos(prompt: str, target: ModelInfo) -> bool:
    """Whether the server may add a second BOS token. Heuristic, used only without the target's tokenizer."""
    adds = target.show.model_info.get("tokenizer.ggml.add_bos_token")
    return adds is not False and prompt.startswith(_BEGIN_MARKERS)


async def ollama_events(
    plan: OllamaPlan, settings: PairSettings, lanes: Callable[[], int] | None, watcher: RoundObserver | None
) -> AsyncGenerator[Event, None]:
    """Yield the events of a reply. `lanes`: number of lanes it may use now; `watcher` is called after each round."""
    lookahead = ollama_lookahead(plan, settings)
    if lanes is not None:
        lookahead = SharedLookahead(lookahead, lanes)
    stats = Stats(route=plan.route, prompt_eval_count=plan.prompt_tokens)
    yield Status(on=True, detail=status_detail(plan, settings, lookahead))
    watch = ServerWatch(plan.target, plan.draft, plan.lanes, plan.probe.step if plan.probe else None)
    async with AsyncExitStack() as stack:
        target, drafter = await build_target_and_drafter(plan, settings, watch, stack)
        speculation = SpeculativeDecoder(
            prompt=plan.prompt,
            target=target,
            drafter=drafter,
            lookahead=lookahead,
            rule=plan.rule,
            options=plan.target_requests.options,
            stats=stats,
            monitor=monitor_for(plan, settings),
            observer=watcher,
        )
        events = await stack.enter_async_context(aclosing(speculation.events()))
        async for event in split_thinking(events, plan.prompt, plan.target.can_think):
            yield event
    await unload(plan)


async def unload(plan: OllamaPlan) -> None:
    """Unload the models after the reply if the settings ask for it. Best effort: the reply is already complete."""
    for model, requests in ((plan.target, plan.target_requests), (plan.draft, plan.draft_requests)):
        if model and requests and requests.unloads:
            with suppress(EndpointError):
                await model.server.generate(requests.unload())
