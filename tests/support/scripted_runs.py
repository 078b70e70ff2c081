"""Replies of scripted models: speculated, plain, and what their first tokens are distributed like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

from specollama.backends.scripted import End, Hidden, Outcome, Script, ScriptedDrafter, ScriptedTarget
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Done, Event, Text
from specollama.spec_decode.interfaces import Drafter, Target
from specollama.spec_decode.lookahead import FixedLookahead, Lookahead, SpeculationMonitor
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import (
    AcceptanceMethod,
    DoneReason,
    Draft,
    RoundRecord,
    SamplingOptions,
    TargetContinuation,
)
from tests.support.chi_square import p_value
from tests.support.reference_sampler import sampled

END = "<the end>"


def wild(seed: int, entries: Sequence[Outcome], contrast: float = 2.0) -> Script:
    """Other probabilities after every text, always the same after the same one."""

    @cache
    def script(reply: str) -> Mapping[Outcome, float]:
        random = Random(f"{seed} {reply}")
        weights = [random.uniform(0.05, 1) ** contrast for _ in entries]
        return {entry: weight / sum(weights) for entry, weight in zip(entries, weights, strict=True)}

    return script


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    reason: DoneReason
    eval_count: int


def reply(events: Sequence[Event]) -> Reply:
    """What a client makes of the events."""
    done = events[-1]
    assert isinstance(done, Done)
    text = "".join(event.text for event in events if isinstance(event, Text))
    return Reply(text, done.reason, done.stats.eval_count)


async def plain(script: Script, options: SamplingOptions, seed: int) -> Reply:
    """The target alone, its text looked at as a whole after each token."""
    target, text, tokens = ScriptedTarget(script, options, seed), "", 0
    async for token in target.stream(None):
        if isinstance(token, TargetContinuation):
            assert token.end is not None
            return Reply(text, token.end, tokens + 1)
        text, tokens = text + token.text, tokens + 1
        stops = [text.find(stop) for stop in options.stop if stop in text]
        if stops:
            return Reply(text[: min(stops)], DoneReason.STOP, tokens)
        if tokens == options.num_predict:
            return Reply(text, DoneReason.LENGTH, tokens)
    raise AssertionError("a stream says why it ends")


@dataclass(slots=True)
class Listed:
    """A lookahead that goes round a list."""

    lengths: Sequence[int]
    rounds: int = 0
    learnt: list[tuple[int, int]] = field(default_factory=list)

    def max_draft_tokens(self) -> int:
        self.rounds += 1
        return self.lengths[(self.rounds - 1) % len(self.lengths)]

    def verify_length(self, draft: Draft) -> int:
        return len(draft.tokens)

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        return ()

    def learn(self, round: RoundRecord) -> None:
        self.learnt.append((round.result.drafted, round.result.accepted))


def speculation(
    target: Target,
    drafter: Drafter,
    options: SamplingOptions,
    *,
    rule: AcceptanceMethod = AcceptanceMethod.MATCH,
    lookahead: Lookahead | None = None,
    patience: SpeculationMonitor | None = None,
    seed: int = 0,
    prompt: str = "",
) -> SpeculativeDecoder:
    lookahead = lookahead or FixedLookahead(4)
    return SpeculativeDecoder(
        prompt, target, drafter, lookahead, rule, options, Stats(), patience, random=Random(f"judge {seed}")
    )


async def events(run: SpeculativeDecoder) -> list[Event]:
    return [event async for event in run.events()]


def joint(script: Script, options: SamplingOptions) -> dict[tuple[str, ...], float]:
    """The probabilities of the first `num_predict` tokens of the target alone, by enumeration."""
    found: dict[tuple[str, ...], float] = {}

    def walk(texts: tuple[str, ...], probability: float) -> None:
        if len(texts) == options.num_predict or END in texts:
            found[texts] = found.get(texts, 0.0) + probability
            return
        for drawn, p in sampled(script("".join(texts)), options).items():
            walk((*texts, shown(drawn)), probability * p)

    walk((), 1.0)
    return found


def shown(drawn: Outcome) -> str:
    if isinstance(drawn, End):
        return END
    return drawn.turns_into if isinstance(drawn, Hidden) else drawn


@dataclass(frozen=True, slots=True)
class Scene:
    """A target and a draft whose every probability is known, under one rule and one set of options."""

    p: Script
    q: Script
    options: SamplingOptions
    rule: AcceptanceMethod = AcceptanceMethod.REJECTION
    draft_options: SamplingOptions | None = None
    lookahead: int = 2
    target: Callable[[Script, SamplingOptions, int], Target] = ScriptedTarget
    drafter: Callable[[Script, SamplingOptions, int], Drafter] = ScriptedDrafter

    def run(self, seed: int) -> SpeculativeDecoder:
        return speculation(
            self.target(self.p, self.options, seed),
            self.drafter(self.q, self.draft_options or self.options, seed + 1_000_000),
            self.options,
            rule=self.rule,
            lookahead=FixedLookahead(self.lookahead),
            seed=seed,
        )


async def first_tokens(run: SpeculativeDecoder) -> tuple[str, ...]:
    told = await events(run)
    texts = tuple(event.text for event in told if isinstance(event, Text))
    return (*texts, END) if reply(told).reason is DoneReason.STOP else texts


async def departure(scene: Scene, draws: int = 20_000) -> float:
    """How likely the first tokens of so many replies are if each was drawn from the target's own distribution.

    Sound code falls below 0.001 in one check of a thousand; the seeds are fixed, so that a check that passed
    passes again.
    """
    drawn = Counter[tuple[str, ...]]()
    for seed in range(draws):
        drawn[await first_tokens(scene.run(seed))] += 1
    return p_value(drawn, joint(scene.p, scene.options))
