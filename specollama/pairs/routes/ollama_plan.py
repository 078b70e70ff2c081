"""What routes `lanes` and `greedy` share: plan, drafters and decoding of a reply of a target on an Ollama server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from specollama.backends.drafter_pool import LookupThenModel
from specollama.backends.ollama.drafter import OllamaDrafter, RetokenizingDrafter
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.server_watch import ServerWatch
from specollama.backends.ollama.slot_probe import SlotProbe
from specollama.backends.prompt_lookup import TextLookupDrafter
from specollama.config.settings import FileRef, PairSettings
from specollama.errors import EndpointError
from specollama.pairs.event_streams import fall_back_if_empty, split_thinking
from specollama.pairs.feasibility import ReplyContext, near_tie_text
from specollama.pairs.routes.base import Plan
from specollama.pairs.routing import RouteFacts, ServedPrompt, acceptance_method
from specollama.pairs.served_drafters import request_template, runs_ahead
from specollama.pairs.slots import SharedLookahead, slots_of
from specollama.pairs.tokenizers import TokenizerMatch
from specollama.spec_decode.decode_loop import RoundObserver, SpeculativeDecoder
from specollama.spec_decode.draft_ahead import DraftAhead, OverlappedTarget
from specollama.spec_decode.events import Event, Status
from specollama.spec_decode.interfaces import Drafter, Target
from specollama.spec_decode.lookahead import Lookahead, SpeculationMonitor
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import AcceptanceMethod, Route


@dataclass(frozen=True)
class ServedReply:
    """One reply of a target on an Ollama server, whatever the route.

    `seed`: the base of the position seeds. `draft`: None if prompt lookup is the only drafter. `probe`: None if the
    settings force the route, so that nothing was measured.
    """

    context: ReplyContext
    rule: AcceptanceMethod
    prompt: ServedPrompt
    seed: int
    target: ModelInfo
    draft: ModelInfo | None
    tokenizers: TokenizerMatch
    probe: SlotProbe | None = None

    @property
    def settings(self) -> PairSettings:
        return self.context.settings

    @cached_property
    def target_requests(self) -> RequestTemplate:
        return request_template(self.target, self.context)

    @cached_property
    def draft_requests(self) -> RequestTemplate | None:
        return request_template(self.draft, self.context) if self.draft else None

    @property
    def plain_seconds(self) -> float | None:
        """Seconds of a plain decode step of the target; None if it wasn't measured."""
        return self.probe.step if self.probe else None

    @property
    def runs_ahead(self) -> bool:
        """Whether to draft while the target verifies: only if the two models don't share their hardware."""
        if self.draft is None or self.rule is AcceptanceMethod.REJECTION:
            return False
        return runs_ahead(self.settings, self.target.server.url, self.draft.server.url)


def served_reply(facts: RouteFacts) -> ServedReply:
    """The reply that the facts describe. The choice of a route has shown that they are complete."""
    target, prompt, tokenizers = facts.context.target, facts.prompt, facts.tokenizers
    assert target is not None
    assert isinstance(prompt, ServedPrompt)
    assert tokenizers is not None
    seed = facts.context.sampling.seed
    return ServedReply(
        context=facts.context,
        rule=acceptance_method(facts.context, target, facts.draft_model, tokenizers),
        prompt=prompt,
        seed=secrets.randbits(31) if seed is None else seed,
        target=target,
        draft=facts.draft_model,
        tokenizers=tokenizers,
        probe=facts.probe if isinstance(facts.probe, SlotProbe) else None,
    )


class OllamaPlan(Plan, Protocol):
    """Plan of a reply whose rows come from an Ollama server. A route says how it verifies, and how far it drafts."""

    reply: ServedReply

    @property
    def first_seed(self) -> int:
        """The sampling seed of the reply's first token."""
        ...

    @property
    def drafts_ahead(self) -> bool: ...

    @property
    def uses_lookup(self) -> bool:
        """Whether prompt lookup drafts first. The draft model drafts if lookup finds nothing."""
        ...

    @property
    def lookahead(self) -> Lookahead: ...

    @property
    def monitor(self) -> SpeculationMonitor | None: ...

    async def make_target(self, watch: ServerWatch, stack: AsyncExitStack) -> Target:
        """Create the target; `stack` closes it. `watch` receives what the servers report."""
        ...

    async def events(
        self, observer: RoundObserver | None = None, fair_share: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        async with (
            aclosing(_decode(self, observer, fair_share)) as decoded,
            aclosing(fall_back_if_empty(decoded, self.first_seed)) as events,
        ):
            async for event in events:
                yield event

    def context_tokens(self, text: str) -> list[int] | None:
        exact = self.reply.tokenizers.target
        if exact is None or self.reply.context.request.raw:
            return None
        return list(exact.encode(self.reply.prompt.text + text))


async def _decode(
    plan: OllamaPlan, observer: RoundObserver | None, fair_share: Callable[[], int] | None
) -> AsyncGenerator[Event, None]:
    reply, lookahead = plan.reply, plan.lookahead
    if fair_share is not None:
        lookahead = SharedLookahead(lookahead, fair_share)
    yield Status(on=True, detail=_status_detail(plan, lookahead))
    watch = ServerWatch(reply.target, reply.draft, slots_of(reply.settings), reply.plain_seconds)
    async with AsyncExitStack() as stack:
        target, drafter = await _target_and_drafter(plan, watch, stack)
        decoder = SpeculativeDecoder(
            prompt=reply.prompt.text,
            target=target,
            drafter=drafter,
            lookahead=lookahead,
            rule=reply.rule,
            options=reply.context.sampling,
            stats=Stats(route=plan.route, prompt_eval_count=reply.prompt.tokens),
            monitor=plan.monitor,
            observer=observer,
        )
        events = await stack.enter_async_context(aclosing(decoder.events()))
        async for event in split_thinking(events, reply.prompt.text, reply.target.can_think):
            yield event
    await _unload(reply)


def _status_detail(plan: OllamaPlan, lookahead: Lookahead) -> str:
    """The text of the status line."""
    reply = plan.reply
    parts = [f"{plan.route}, lookahead {lookahead}" + ", drafting ahead" * plan.drafts_ahead]
    if plan.route is Route.LANES and reply.tokenizers.target is None:
        parts.append(f"cuts checked by token counts alone: {reply.tokenizers.why_not_exact}")
    if idle := [str(draft) for draft in reply.settings.drafts if isinstance(draft, FileRef)]:
        parts.append(f"{', '.join(idle)} drafts only for a target that is opened in process")
    if reply.context.sampling.greedy:
        parts.append(near_tie_text(reply.target.show.details.quantization_level))
    return "; ".join(filter(None, parts))


async def _target_and_drafter(plan: OllamaPlan, watch: ServerWatch, stack: AsyncExitStack) -> tuple[Target, Drafter]:
    """Create the target and the drafter of a reply; `stack` closes them."""
    target, drafter = await plan.make_target(watch, stack), _model_drafter(plan.reply, watch)
    if drafter is not None and plan.drafts_ahead:
        ahead = await stack.enter_async_context(aclosing(DraftAhead(drafter)))
        target, drafter = OverlappedTarget(target, [ahead]), ahead
    if drafter is not None and not plan.uses_lookup:
        return target, drafter
    exact = plan.reply.tokenizers.target
    lookup: Drafter = RetokenizingDrafter(TextLookupDrafter(), exact) if exact else TextLookupDrafter()
    return target, LookupThenModel(lookup, drafter)


def _model_drafter(reply: ServedReply, watch: ServerWatch) -> Drafter | None:
    """Create the drafter of the draft model, if there is one. It drafts in the target's tokenization."""
    if reply.draft is None or reply.draft_requests is None:
        return None
    tokenizers = reply.tokenizers
    drafter = OllamaDrafter(
        reply.draft.server,
        reply.draft_requests,
        rule=reply.rule,
        seed=secrets.randbits(31),
        vocabulary=tokenizers.target if tokenizers.same else None,
        row_tokens=reply.draft.row_tokens,
        note=watch.note_draft,
    )
    if tokenizers.target and not (tokenizers.same and reply.draft.has_logprobs):
        return RetokenizingDrafter(drafter, tokenizers.target)
    return drafter


async def _unload(reply: ServedReply) -> None:
    """Unload the models after the reply if the settings ask for it. Best effort: the reply is already complete."""
    for model, requests in ((reply.target, reply.target_requests), (reply.draft, reply.draft_requests)):
        if model and requests and requests.unloads:
            with suppress(EndpointError):
                await model.server.generate(requests.unload())
