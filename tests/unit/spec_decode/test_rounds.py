"""The loop: the target's own reply, whatever is drafted, and what it costs and counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.backends.scripted import (
    End,
    Hidden,
    Outcome,
    Script,
    ScriptedDrafter,
    ScriptedTarget,
    constant_script,
    fixed_script,
)
from specollama.errors import RunError
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Done, Event, Status, Text
from specollama.spec_decode.lookahead import AdaptiveLookahead, FixedLookahead, SpeculationMonitor
from specollama.spec_decode.types import (
    AcceptanceMethod,
    DoneReason,
    Draft,
    Origin,
    OutputToken,
    RoundRecord,
    SamplingOptions,
    TargetContinuation,
    TargetRow,
    TargetScores,
    Token,
    VerifyResult,
)
from tests.support.draws import examples
from tests.support.scripted_runs import Listed, Reply, events, plain, reply, speculation, wild

COLD = SamplingOptions(temperature=0)
LETTERS: tuple[Outcome, ...] = ("a", "b", ".", "\n", Hidden("é"), Hidden("ñ"), End())
WORDS: tuple[Outcome, ...] = ("a", "ab", "b.", "\nUser", ":", Hidden("é"), End())
OTHER_WORDS: tuple[Outcome, ...] = ("a", "b", ".\n", "User", "ab", Hidden("é"))


@dataclass(slots=True)
class Log:
    """What a reply asked of its models, in order, and what of it was closed."""

    proposed: list[tuple[str, int]] = field(default_factory=list)  # the text, and how many tokens
    scored: list[tuple[int, int]] = field(default_factory=list)  # drafted, rows asked
    committed: list[int | None] = field(default_factory=list)  # the limits
    order: str = ""  # p, s, c, for each of these in turn
    streams: int = 0
    closed: int = 0
    limit: int | None = None  # the last stream's


class LoggedTarget(ScriptedTarget):
    """Writes down what it is asked; `lost_after` rounds it can't be asked again."""

    def __init__(
        self, script: Script, options: SamplingOptions, seed: int, log: Log, *, lost_after: int | None = None
    ) -> None:
        super().__init__(script, options, seed)
        self.log = log
        self.lost_after = lost_after

    async def score(self, draft: Draft) -> TargetScores:
        scored = await super().score(draft)
        self.log.order += "s"
        self.log.scored.append((len(draft.tokens), scored.rows_requested))
        return scored

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        self.log.order += "c"
        self.log.committed.append(limit)
        continuation = await super().commit(verdict, limit)
        if self.lost_after is not None and len(self.log.committed) > self.lost_after:
            return replace(continuation, lost=True, reason="the context is full")
        return continuation

    async def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        self.log.streams += 1
        self.log.limit = limit
        try:
            async for token in super().stream(limit):
                yield token
        finally:
            self.log.closed += 1


class LoggedDrafter(ScriptedDrafter):
    """Writes down what it is asked; fails after `fails_after` proposals."""

    def __init__(
        self, script: Script, options: SamplingOptions, seed: int, log: Log, *, fails_after: int | None = None
    ) -> None:
        super().__init__(script, options, seed)
        self.log = log
        self.fails_after = fails_after

    async def propose(self, text: str, count: int) -> Draft:
        self.log.order += "p"
        self.log.proposed.append((text, count))
        if self.fails_after is not None and len(self.log.proposed) > self.fails_after:
            raise RunError("the draft's server is gone")
        return await super().propose(text, count)


def texts(told: list[Event]) -> list[str]:
    return [event.text for event in told if isinstance(event, Text)]


def done(told: list[Event]) -> Done:
    assert isinstance(told[-1], Done)
    return told[-1]


async def scripted(
    target: Script,
    draft: Script,
    options: SamplingOptions = COLD,
    *,
    lookahead: int = 4,
    rule: AcceptanceMethod = AcceptanceMethod.GREEDY,
) -> list[Event]:
    run = speculation(
        ScriptedTarget(target, options, 1),
        ScriptedDrafter(draft, options, 2),
        options,
        rule=rule,
        lookahead=FixedLookahead(lookahead),
    )
    return await events(run)


# the target's own reply


replies = st.fixed_dictionaries(
    {
        "target": st.integers(0, 10_000),
        "draft": st.integers(0, 10_000) | st.none(),  # None: the same script
        "lengths": st.lists(st.integers(1, 9), min_size=1, max_size=4),
        "stop": st.lists(st.sampled_from([".", "ab", "\nUser:", "é", "b.\n", "aa"]), max_size=2).map(tuple),
        "num_predict": st.integers(1, 24),
        "draft_temperature": st.sampled_from([0.0, 1.0]),
    }
)


@examples(150)
@given(replies, st.sampled_from([0.0, 0.8, 1.5]), st.sampled_from([0, 1, 3]) | st.none(), st.none() | st.integers(0, 3))
async def test_any_draft_and_lookahead_give_the_reply_of_the_target_alone(
    case: dict[str, object], temperature: float, fails_after: int | None, lost_after: int | None
) -> None:
    """Also when the draft model goes away, or the target can't be asked any more, after some rounds."""
    options, script, draft, lookahead = read(case, temperature, LETTERS, LETTERS)
    log = Log()
    run = speculation(
        LoggedTarget(script, options, 5, log, lost_after=lost_after),
        LoggedDrafter(draft, drafts(options, case), 6, log, fails_after=fails_after),
        options,
        rule=AcceptanceMethod.GREEDY if options.greedy else AcceptanceMethod.MATCH,
        lookahead=lookahead,
    )
    told = await events(run)
    expected = await plain(script, options, 5)
    assert reply(told) == expected
    assert_sound(log, told, options)


@examples(200)
@given(replies)
async def test_at_temperature_zero_the_draft_may_have_other_tokens(case: dict[str, object]) -> None:
    options, script, draft, lookahead = read(case, 0.0, WORDS, OTHER_WORDS)
    run = speculation(
        ScriptedTarget(script, options, 5),
        ScriptedDrafter(draft, drafts(options, case), 6),
        options,
        rule=AcceptanceMethod.GREEDY,
        lookahead=lookahead,
    )
    assert reply(await events(run)) == await plain(script, options, 5)


def read(
    case: dict[str, object], temperature: float, target: tuple[Outcome, ...], draft: tuple[Outcome, ...]
) -> tuple[SamplingOptions, Script, Script, Listed]:
    options = SamplingOptions(
        temperature=temperature,
        top_k=7,
        top_p=1.0,
        stop=case["stop"],  # type: ignore[arg-type]
        num_predict=case["num_predict"],  # type: ignore[arg-type]
    )
    script = wild(case["target"], target)  # type: ignore[arg-type]
    drafted = script if case["draft"] is None and target == draft else wild(case["draft"] or 0, draft)  # type: ignore[arg-type]
    return options, script, drafted, Listed(case["lengths"])  # type: ignore[arg-type]


def drafts(options: SamplingOptions, case: dict[str, object]) -> SamplingOptions:
    return replace(options, temperature=case["draft_temperature"])  # type: ignore[arg-type]


def assert_sound(log: Log, told: list[Event], options: SamplingOptions) -> None:
    """What holds of every reply with one-letter tokens."""
    stats = done(told).stats
    assert [type(event) for event in told].count(Done) == 1
    assert "pp" not in log.order.rstrip("p")  # one request for a draft in a round
    assert "ss" not in log.order.replace("p", "")
    assert all(rows <= drafted + 1 for drafted, rows in log.scored)
    assert stats.rows == sum(rows for _, rows in log.scored)
    assert stats.rounds == sum(drafted > 0 for drafted, _ in log.scored)
    for text, count in log.proposed:
        assert 1 <= count <= options.num_predict - len(text) - 1  # room for the token beyond the draft
    shown = [event for event in told if isinstance(event, Text)]
    emitted = stats.accepted + stats.recovered + stats.bonus + stats.plain
    assert emitted <= stats.eval_count <= emitted + 1  # the end is a token too
    assert stats.accepted <= stats.tested <= stats.drafted
    assert sum(stats.accepted_at) == stats.accepted
    for origin in Origin:
        assert sum(event.origin is origin for event in shown) <= getattr(stats, origin.value)
    assert (log.streams, log.closed) in ((0, 0), (1, 1))
    assert sum(isinstance(event, Status) for event in told) == log.streams == len(stats.notices)


async def test_a_perfect_draft_is_accepted_whole_in_every_round() -> None:
    script = fixed_script(*"abcdefghij")
    told = await scripted(script, script, lookahead=4)
    stats = done(told).stats
    assert texts(told) == list("abcdefghij")
    assert (stats.rounds, stats.drafted, stats.accepted, stats.recovered, stats.bonus) == (2, 8, 8, 0, 2)
    assert stats.eval_count == 11


async def test_a_draft_that_is_always_wrong_costs_a_round_for_each_token() -> None:
    told = await scripted(fixed_script(*"abc"), constant_script({"z": 1.0}))
    stats = done(told).stats
    assert texts(told) == list("abc")
    assert (stats.rounds, stats.drafted, stats.tested, stats.accepted) == (4, 16, 4, 0)
    assert stats.acceptance_rate == 0


async def test_a_draft_model_that_says_nothing_leaves_the_target_to_write_alone() -> None:
    told = await scripted(fixed_script(*"abc"), constant_script({End(): 1.0}))
    assert texts(told) == list("abc")
    assert done(told).stats.plain == 3
    assert done(told).stats.draft_requests == 4


async def test_each_piece_tells_where_it_is_from_and_in_which_round() -> None:
    told = await scripted(fixed_script("a", "b", "c", "d"), fixed_script("a", "b", "z", "d"), lookahead=3)
    assert [(e.text, e.origin.value, e.round) for e in told if isinstance(e, Text)] == [
        ("a", "accepted", 1),
        ("b", "accepted", 1),
        ("c", "recovered", 1),
        ("d", "accepted", 2),
    ]


async def test_a_hidden_token_is_shown_as_the_targets_own_outside_any_round() -> None:
    cafe = ("c", "a", "f", "é", "s")
    places: dict[str, dict[Outcome, float]] = {"".join(cafe[:n]): {cafe[n]: 1.0} for n in range(5)}
    places |= {"caf": {Hidden("é"): 1.0}, "cafés": {End(): 1.0}}
    told = await scripted(lambda text: places[text], fixed_script(*cafe))
    assert [(e.text, e.origin.value, e.round) for e in told if isinstance(e, Text)] == [
        ("c", "accepted", 1),
        ("a", "accepted", 1),
        ("f", "accepted", 1),
        ("é", "plain", 0),
        ("s", "accepted", 2),
    ]
    assert done(told).stats.plain == 1
    assert done(told).stats.eval_count == 6


async def test_the_draft_reads_prompt_and_reply_held_back_text_included() -> None:
    log, script = Log(), fixed_script(*"abxy")
    run = speculation(
        ScriptedTarget(script, COLD, 1),
        LoggedDrafter(constant_script({"z": 1.0}), COLD, 2, log),
        replace(COLD, stop=("bxz",)),
        prompt="Q: ",
        lookahead=FixedLookahead(2),
    )
    assert "".join(texts(await events(run))) == "abxy"
    assert [text for text, _ in log.proposed] == ["Q: ", "Q: a", "Q: ab", "Q: abx", "Q: abxy"]


async def test_the_lookahead_and_the_drafter_learn_how_each_round_fared() -> None:
    lookahead, script = Listed([2, 3]), fixed_script(*"abcdef")
    drafter = ScriptedDrafter(fixed_script("a", "b", "c", "x", "y", "f"), COLD, 2)
    await events(speculation(ScriptedTarget(script, COLD, 1), drafter, COLD, lookahead=lookahead))
    assert lookahead.learnt == [(2, 2), (3, 0), (2, 0), (1, 1)]
    assert [(verdict.drafted, verdict.accepted) for verdict in drafter.verdicts] == lookahead.learnt


async def test_an_adaptive_lookahead_lengthens_the_drafts_of_a_good_draft_model() -> None:
    log, script = Log(), fixed_script(*"abcdefghijklmnopqrst")
    run = speculation(
        LoggedTarget(script, COLD, 1, log), ScriptedDrafter(script, COLD, 2), COLD, lookahead=AdaptiveLookahead()
    )
    await events(run)
    assert [drafted for drafted, _ in log.scored] == [4, 6, 8]


# limits and stops


async def test_one_token_needs_no_draft() -> None:
    log, options = Log(), replace(COLD, num_predict=1)
    run = speculation(
        LoggedTarget(fixed_script(*"ab"), options, 1, log), LoggedDrafter(fixed_script(*"ab"), COLD, 2, log), options
    )
    told = await events(run)
    assert texts(told) == ["a"]
    assert done(told).reason is DoneReason.LENGTH
    assert log.order == "s"
    assert done(told).stats.draft_requests == 0


async def test_the_last_round_leaves_room_for_the_token_beyond_the_draft() -> None:
    log, options = Log(), replace(COLD, num_predict=7)
    run = speculation(
        LoggedTarget(fixed_script(*"abcdefghij"), options, 1, log),
        ScriptedDrafter(fixed_script(*"abcdefghij"), COLD, 2),
        options,
    )
    told = await events(run)
    assert "".join(texts(told)) == "abcdefg"
    assert log.scored == [(4, 5), (1, 2)]
    assert log.committed == [2]


async def test_a_stop_string_in_the_middle_of_a_round_leaves_the_rest_uncounted() -> None:
    script = fixed_script("a", "b.", "c", "d", "e")
    told = await scripted(script, script, replace(COLD, stop=(".",)))
    stats = done(told).stats
    assert texts(told) == ["a", "b"]
    assert (stats.eval_count, stats.drafted, stats.tested, stats.accepted, stats.bonus) == (2, 4, 2, 2, 0)


async def test_a_stop_string_just_before_the_targets_own_end_leaves_the_end_uncounted() -> None:
    told = await scripted(fixed_script("a", "."), fixed_script("a", ".", "b"), replace(COLD, stop=(".",)))
    stats = done(told).stats
    assert texts(told) == ["a"]
    assert (stats.eval_count, stats.drafted, stats.tested, stats.accepted) == (2, 3, 2, 2)


async def test_text_held_back_is_shown_when_the_target_ends() -> None:
    told = await scripted(fixed_script("ok", "\nUser"), fixed_script("ok"), replace(COLD, stop=("\nUser:",)))
    assert texts(told) == ["ok", "\nUser"]
    assert done(told).reason is DoneReason.STOP


async def test_an_empty_reply_is_only_its_end() -> None:
    told = await scripted(fixed_script(), fixed_script(*"ab"))
    assert [type(event) for event in told] == [Done]
    assert reply(told) == Reply("", DoneReason.STOP, 1)


# what goes wrong


async def test_a_draft_that_fails_turns_the_rest_plain_and_says_so_before_it() -> None:
    log, script = Log(), fixed_script(*"abcdefghij")
    run = speculation(
        LoggedTarget(script, COLD, 1, log),
        LoggedDrafter(script, COLD, 2, log, fails_after=1),
        COLD,
        rule=AcceptanceMethod.GREEDY,
    )
    told = await events(run)
    status = Status(on=False, detail="the draft failed: the draft's server is gone")
    assert "".join(texts(told)) == "abcdefghij"
    assert told.index(status) == 5
    assert {event.origin for event in told[6:-1] if isinstance(event, Text)} == {Origin.PLAIN}
    assert done(told).stats.notices == [status.detail]
    assert done(told).stats.plain == 5
    assert done(told).stats.eval_count == 11
    assert log.order == "pscp"


async def test_a_target_that_cannot_be_asked_again_writes_the_rest_in_one_go() -> None:
    log, script = Log(), fixed_script(*"abcdefghij")
    run = speculation(LoggedTarget(script, COLD, 1, log, lost_after=0), ScriptedDrafter(script, COLD, 2), COLD)
    told = await events(run)
    assert "".join(texts(told)) == "abcdefghij"
    assert told[5] == Status(on=False, detail="the context is full")
    assert log.order == "sc"
    assert log.streams == log.closed == 1


async def test_a_draft_of_which_nothing_is_accepted_is_given_up_and_the_reply_stays_the_same() -> None:
    log, options = Log(), SamplingOptions(temperature=0.8, top_k=7, top_p=1.0, num_predict=60, seed=3)
    script = wild(1, LETTERS[:-1])
    run = speculation(
        LoggedTarget(script, options, 3, log),
        ScriptedDrafter(constant_script({"z": 1.0}), COLD, 2),
        options,
        patience=SpeculationMonitor(),
    )
    told = await events(run)
    why = "almost nothing of the draft is accepted (0 of 24 tested tokens)"
    assert reply(told) == await plain(script, options, 3)
    assert done(told).stats.notices == [why]
    assert done(told).stats.tested == 24
    assert log.streams == log.closed == 1


async def test_a_draft_that_fares_well_is_not_given_up() -> None:
    script = fixed_script(*"abcdefghijklmnopqrstuvwxyz0123456789")
    run = speculation(
        ScriptedTarget(script, COLD, 1), ScriptedDrafter(script, COLD, 2), COLD, patience=SpeculationMonitor()
    )
    assert done(await events(run)).stats.notices == []


async def test_the_rest_in_one_go_has_as_many_tokens_as_are_left() -> None:
    for num_predict, limit in ((8, 3), (-1, None)):
        log, script, options = Log(), fixed_script(*"abcdefghij"), replace(COLD, num_predict=num_predict)
        run = speculation(
            LoggedTarget(script, options, 1, log, lost_after=0), ScriptedDrafter(script, COLD, 2), options
        )
        await events(run)
        assert (log.streams, log.limit) == (1, limit)


class FailingTarget(ScriptedTarget):
    """Fails in the named call, from its second on."""

    def __init__(self, script: Script, call: str) -> None:
        super().__init__(script, COLD, 1)
        self.call, self.calls = call, 0

    def fail(self, call: str) -> None:
        self.calls += call == self.call
        if self.calls > 1 or (call == "stream" and call == self.call):
            raise RunError(f"{call} failed")

    async def score(self, draft: Draft) -> TargetScores:
        self.fail("score")
        return await super().score(draft)

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        self.fail("commit")
        return await super().commit(verdict, limit)

    async def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        yield Token(await self.first())
        self.fail("stream")

    async def first(self) -> str:
        token = await anext(super().stream(1))
        assert isinstance(token, Token)
        return token.text


async def collect(run: SpeculativeDecoder, told: list[Event]) -> None:
    async for event in run.events():
        told.append(event)


@pytest.mark.parametrize(("call", "text"), [("score", "abc"), ("commit", "abcdef"), ("stream", "abcd")])
async def test_an_error_of_the_target_ends_the_reply_after_what_was_sound(call: str, text: str) -> None:
    script = fixed_script(*"abcdefghij")
    drafter = LoggedDrafter(script, COLD, 2, Log(), fails_after=1 if call == "stream" else None)
    run = speculation(FailingTarget(script, call), drafter, COLD, lookahead=FixedLookahead(2))
    told: list[Event] = []
    with pytest.raises(RunError, match=f"{call} failed"):
        await collect(run, told)
    assert "".join(texts(told)) == text
    assert not any(isinstance(event, Done) for event in told)


class SilentTarget(ScriptedTarget):
    """Gives no row, and no token."""

    async def score(self, draft: Draft) -> TargetScores:
        return TargetScores({}, rows_requested=1)


async def test_a_target_that_gives_nothing_is_an_error_and_no_endless_loop() -> None:
    script = fixed_script(*"abc")
    run = speculation(SilentTarget(script, COLD, 1), ScriptedDrafter(script, COLD, 2), COLD)
    with pytest.raises(RunError, match="gave no token"):
        await events(run)


class AloneTarget(ScriptedTarget):
    """Gives no row, but goes on alone by one continuation after another."""

    def __init__(self, *continuations: TargetContinuation) -> None:
        super().__init__(fixed_script(), COLD, 1)
        self.continuations = list(continuations)

    async def score(self, draft: Draft) -> TargetScores:
        return TargetScores({}, rows_requested=1)

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        return self.continuations.pop(0)


async def alone(*continuations: TargetContinuation, options: SamplingOptions = COLD) -> list[Event]:
    return await events(speculation(AloneTarget(*continuations), ScriptedDrafter(fixed_script(), COLD, 2), options))


async def test_what_the_target_writes_alone_is_shown_and_counted_tokens_without_text_included() -> None:
    told = await alone(
        TargetContinuation((Token("é"), Token("a")), sampled=3, extensions=2),
        TargetContinuation((Token("b"),), sampled=1, end=DoneReason.STOP, extensions=1),
    )
    assert texts(told) == ["é", "a", "b"]
    assert done(told).stats.extensions == 3
    assert done(told).stats.plain == 3
    assert reply(told) == Reply("éab", DoneReason.STOP, 5)


async def test_tokens_without_text_use_up_the_limit_too() -> None:
    told = await alone(TargetContinuation((Token("é"), Token("a")), sampled=3), options=replace(COLD, num_predict=3))
    assert reply(told) == Reply("éa", DoneReason.LENGTH, 3)


@pytest.mark.parametrize(("end", "count"), [(DoneReason.STOP, 4), (DoneReason.LENGTH, 3)])
async def test_tokens_without_text_before_an_end_count(end: DoneReason, count: int) -> None:
    told = await alone(TargetContinuation((Token("a"),), sampled=1), TargetContinuation((), sampled=2, end=end))
    assert reply(told) == Reply("a", end, count)


async def test_a_stop_string_ends_what_the_target_writes_alone_too() -> None:
    told = await alone(
        TargetContinuation((Token("a"), Token("."), Token("b")), sampled=3, end=DoneReason.STOP),
        options=replace(COLD, stop=(".",)),
    )
    assert reply(told) == Reply("a", DoneReason.STOP, 2)


async def test_a_limit_that_is_reached_alone_ends_the_reply_there_although_the_target_is_lost() -> None:
    continuation = TargetContinuation((Token("a"), Token("b")), sampled=2, lost=True, reason="gone")
    told = await alone(continuation, options=replace(COLD, num_predict=2))
    assert reply(told) == Reply("ab", DoneReason.LENGTH, 2)
    assert not any(isinstance(event, Status) for event in told)


class OddTarget(ScriptedTarget):
    """Leaves out rows beyond the first, as a busy server may."""

    async def score(self, draft: Draft) -> TargetScores:
        scored = await super().score(draft)
        return TargetScores({0: scored.rows[0]}, scored.rows_requested)


async def test_rows_that_are_missing_end_the_round_and_lose_nothing() -> None:
    script = fixed_script(*"abcd")
    told = await events(speculation(OddTarget(script, COLD, 1), ScriptedDrafter(script, COLD, 2), COLD))
    stats = done(told).stats
    assert texts(told) == list("abcd")
    assert (stats.rounds, stats.accepted, stats.tested) == (4, 4, 4)


# stopping early


@pytest.mark.parametrize("fails_after", [None, 0, 1])
@pytest.mark.parametrize("taken", [1, 2, 3, 6, 7])
async def test_closing_the_reply_early_closes_what_it_had_opened(taken: int, fails_after: int | None) -> None:
    log, script = Log(), fixed_script(*"abcdefghij")
    run = speculation(
        LoggedTarget(script, COLD, 1, log), LoggedDrafter(script, COLD, 2, log, fails_after=fails_after), COLD
    )
    reading = run.events()
    told = [await anext(reading) for _ in range(taken)]
    await reading.aclose()
    asked = log.order
    assert "abcdefghij".startswith("".join(texts(told)))
    assert log.streams == log.closed
    with pytest.raises(StopAsyncIteration):
        await anext(reading)
    assert log.order == asked


# one reply after another


async def test_the_same_request_again_fares_the_same() -> None:
    """A drafter's or a lookahead's state must not be left over from the reply before."""
    options = SamplingOptions(temperature=0.8, top_k=7, top_p=1.0, num_predict=40, seed=9)
    counts = []
    for _ in range(2):
        run = speculation(
            ScriptedTarget(wild(4, LETTERS[:-1]), options, 9),
            ScriptedDrafter(wild(4, LETTERS[:-1], contrast=3), replace(options, temperature=0), 9),
            options,
            lookahead=AdaptiveLookahead(),
        )
        told = await events(run)
        stats = done(told).stats
        counts.append((texts(told), stats.rounds, stats.drafted, stats.accepted, stats.accepted_at))
    assert counts[0] == counts[1]
    assert counts[0][3] > 0


async def test_emitted_tokens_carry_what_the_target_showed_at_their_place() -> None:
    table: dict[Outcome, float] = {"a": 0.7, "b": 0.2, Hidden("é"): 0.1}
    run = speculation(
        ScriptedTarget(constant_script(table), COLD, 1),
        ScriptedDrafter(constant_script({"a": 1.0}), COLD, 2),
        replace(COLD, num_predict=3),
        rule=AcceptanceMethod.GREEDY,
    )
    shown = [event for event in await events(run) if isinstance(event, Text)]
    assert [[token.text for token in event.top] for event in shown] == [["a", "b", ""]] * 3


class SureDrafter(ScriptedDrafter):
    """Half as sure of each token as of the one before."""

    async def propose(self, text: str, count: int) -> Draft:
        draft = await super().propose(text, count)
        return replace(draft, confidence=tuple(0.5**place for place in range(1, len(draft.tokens) + 1)))


async def test_each_piece_tells_how_sure_the_drafter_was_and_each_round_is_told_to_who_watches() -> None:
    watched: list[RoundRecord] = []
    run = speculation(
        ScriptedTarget(fixed_script("aa", "b", "c", "d"), COLD, 1),
        SureDrafter(fixed_script("aa", "b", "z"), COLD, 2),
        COLD,
        rule=AcceptanceMethod.GREEDY,
        lookahead=FixedLookahead(3),
    )
    run.observer = watched.append
    told = [event async for event in run.events()]
    shown = [(event.text, event.confidence) for event in told if isinstance(event, Text)]
    assert shown == [("aa", 0.5), ("b", 0.25), ("c", 0.125), ("d", None)]
    assert (watched[0].result.drafted, watched[0].result.accepted) == (3, 2)
    assert watched[0].draft.confidence == (0.5, 0.25, 0.125)


def test_a_row_is_hidden_when_it_has_neither_a_sample_nor_the_end() -> None:
    assert TargetRow(None).hidden
    assert not TargetRow(None, end=True).hidden
    assert not TargetRow(Token("a")).hidden


def test_values_are_plain_and_equal_by_what_they_hold() -> None:
    assert Draft((Token("a"), Token("b"))).text == "ab"
    assert VerifyResult((OutputToken(Token("a"), Origin.BONUS),)) == VerifyResult(
        (OutputToken(Token("a"), Origin.BONUS),)
    )
