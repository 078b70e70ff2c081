"""Acceptance: seeds, the three rules, and what a round is counted as."""

from __future__ import annotations

from random import Random

import pytest

from specollama.spec_decode.acceptance import (
    accepts,
    position_seed,
    renormalize_visible,
    residual,
    sample_from,
    truncate_result,
    verify,
)
from specollama.spec_decode.types import (
    AcceptanceMethod,
    Distribution,
    Draft,
    Origin,
    TargetRow,
    TargetScores,
    Token,
    VerifyResult,
)


class Uniforms(Random):
    """Gives these numbers, and no more."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.left = list(numbers)

    def random(self) -> float:
        return self.left.pop(0)


def draft(*texts: str, q: tuple[Distribution | None, ...] = ()) -> Draft:
    return Draft(tuple(Token(text) for text in texts), q)


def scored(*samples: str | None, p: Distribution | None = None) -> TargetScores:
    """Rows after none, one, two and so on of one-character drafted tokens; None is the end."""
    rows = {n: TargetRow(Token(text) if text else None, end=text is None, p=p) for n, text in enumerate(samples)}
    return TargetScores(rows, rows_requested=len(rows))


def told(verdict: VerifyResult) -> list[tuple[str, Origin]]:
    return [(emitted.token.text, emitted.origin) for emitted in verdict.emitted]


def counts(verdict: VerifyResult) -> tuple[int, int, int]:
    return verdict.drafted, verdict.tested, verdict.accepted


HIDDEN = TargetRow(None)
END = TargetRow(None, end=True)

# seeds


def test_a_seed_is_within_what_ollama_takes() -> None:
    seeds = [position_seed(base, position) for base in (0, 1, -7, 2**63) for position in range(500)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) > 2**30
    assert min(seeds) < 2**28


def test_no_two_positions_of_a_reply_have_the_same_seed() -> None:
    assert len({position_seed(7, position) for position in range(200_000)}) == 200_000


def test_a_seed_is_the_same_each_time_it_is_asked() -> None:
    assert position_seed(42, 7) == position_seed(42, 7) == 2014252132


def test_seeds_of_different_places_differ() -> None:
    assert len({position_seed(42, position) for position in range(4096)}) == 4096


def test_seeds_of_different_replies_differ() -> None:
    assert len({position_seed(base, 0) for base in range(1000)}) == 1000
    assert position_seed(1, 23) != position_seed(12, 3)


# distributions


def test_the_visible_tokens_share_the_probability_of_the_hidden_ones() -> None:
    tokens = [Token("a"), Token(""), Token("b")]
    assert renormalize_visible(tokens, (0.5, 0.2, 0.3), frozenset("ab")) == pytest.approx({"a": 0.625, "b": 0.375})


def test_only_as_many_tokens_as_the_sampler_keeps_are_visible() -> None:
    assert renormalize_visible([Token("a"), Token("b"), Token("x")], (0.75, 0.25), frozenset("ab")) == {
        "a": 0.75,
        "b": 0.25,
    }


def test_a_text_that_several_tokens_print_makes_the_distribution_unknown() -> None:
    assert renormalize_visible([Token("a"), Token(" ")], (0.5, 0.5), frozenset("ab")) is None


def test_with_nothing_visible_there_is_no_distribution() -> None:
    assert renormalize_visible([Token(""), Token("")], (0.5, 0.5), frozenset("ab")) is None
    assert renormalize_visible([], (), frozenset("ab")) is None


def test_a_token_is_accepted_up_to_the_ratio_of_its_probabilities() -> None:
    p, q = {"a": 0.25}, {"a": 0.5}
    assert accepts("a", p, q, Uniforms(0.4999))
    assert not accepts("a", p, q, Uniforms(0.5))


def test_a_token_more_probable_for_the_target_is_always_accepted() -> None:
    assert accepts("a", {"a": 0.6}, {"a": 0.5}, Uniforms(0.999999))


def test_a_token_impossible_for_the_target_is_never_accepted() -> None:
    assert not accepts("a", {"b": 1.0}, {"a": 0.5, "b": 0.5}, Uniforms(0.0))


def test_the_residual_is_what_the_target_has_more_of() -> None:
    p = {"a": 0.5, "b": 0.3, "c": 0.2}
    assert residual(p, {"a": 0.8, "b": 0.1, "d": 0.1}) == pytest.approx({"a": 0, "b": 0.5, "c": 0.5})


def test_the_residual_of_equal_distributions_is_the_distribution_itself() -> None:
    assert residual({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize(("point", "token"), [(0.0, "a"), (0.2499, "a"), (0.25, "b"), (0.7499, "b"), (0.75, "c")])
def test_a_draw_takes_the_token_whose_share_of_the_unit_the_number_falls_in(point: float, token: str) -> None:
    assert sample_from({"a": 0.25, "b": 0.5, "c": 0.25}, Uniforms(point)) == token


def test_a_draw_beyond_weights_that_add_up_to_a_little_less_takes_the_last_token() -> None:
    assert sample_from({"a": 0.5, "b": 0.4999}, Uniforms(0.99999)) == "b"


# match and greedy: the target's own sample stands


@pytest.mark.parametrize("rule", [AcceptanceMethod.MATCH, AcceptanceMethod.GREEDY])
def test_a_draft_that_the_target_agrees_with_is_accepted_whole_and_gives_a_bonus(rule: AcceptanceMethod) -> None:
    verdict = verify(draft("a", "b"), scored("a", "b", "c"), rule, Uniforms())
    assert told(verdict) == [("a", Origin.ACCEPTED), ("b", Origin.ACCEPTED), ("c", Origin.BONUS)]
    assert counts(verdict) == (2, 2, 2)
    assert not verdict.end
    assert not verdict.hidden


@pytest.mark.parametrize("rule", [AcceptanceMethod.MATCH, AcceptanceMethod.GREEDY])
def test_the_first_token_that_differs_is_recovered_and_the_rest_untested(rule: AcceptanceMethod) -> None:
    verdict = verify(draft("a", "b", "c"), scored("a", "x", "c", "d"), rule, Uniforms())
    assert told(verdict) == [("a", Origin.ACCEPTED), ("x", Origin.RECOVERED)]
    assert counts(verdict) == (3, 2, 1)


def test_a_draft_wrong_from_the_start_still_gives_one_token() -> None:
    verdict = verify(draft("b", "b"), scored("a", "b", "b"), AcceptanceMethod.MATCH, Uniforms())
    assert told(verdict) == [("a", Origin.RECOVERED)]
    assert counts(verdict) == (2, 1, 0)


def test_an_empty_draft_gives_the_targets_token() -> None:
    verdict = verify(Draft(), scored("a"), AcceptanceMethod.MATCH, Uniforms())
    assert told(verdict) == [("a", Origin.PLAIN)]
    assert counts(verdict) == (0, 0, 0)


def test_the_end_where_a_token_was_drafted_rejects_it() -> None:
    verdict = verify(draft("a", "b"), scored("a", None, "c"), AcceptanceMethod.MATCH, Uniforms())
    assert told(verdict) == [("a", Origin.ACCEPTED)]
    assert verdict.end
    assert not verdict.hidden
    assert counts(verdict) == (2, 2, 1)


def test_the_end_after_a_whole_draft_rejects_nothing() -> None:
    verdict = verify(draft("a"), scored("a", None), AcceptanceMethod.MATCH, Uniforms())
    assert verdict.end
    assert counts(verdict) == (1, 1, 1)


@pytest.mark.parametrize("rule", [AcceptanceMethod.MATCH, AcceptanceMethod.REJECTION])
def test_a_token_without_text_ends_the_round_and_rejects_what_was_drafted_there(rule: AcceptanceMethod) -> None:
    rows = {0: TargetRow(Token("a")), 1: HIDDEN, 2: TargetRow(Token("c"))}
    verdict = verify(draft("a", "b", q=({"a": 1.0}, {"b": 1.0})), TargetScores(rows), rule, Uniforms())
    assert told(verdict) == [("a", Origin.ACCEPTED)]
    assert verdict.hidden
    assert not verdict.end
    assert counts(verdict) == (2, 2, 1)


def test_the_walk_ends_where_no_row_was_asked() -> None:
    verdict = verify(
        draft("a", "b", "c"),
        TargetScores({0: TargetRow(Token("a")), 3: TargetRow(Token("d"))}),
        AcceptanceMethod.MATCH,
        Uniforms(),
    )
    assert told(verdict) == [("a", Origin.ACCEPTED)]
    assert counts(verdict) == (3, 1, 1)
    assert not verdict.end
    assert not verdict.hidden


def test_without_any_row_nothing_is_emitted_and_nothing_tested() -> None:
    verdict = verify(draft("a"), TargetScores({}), AcceptanceMethod.MATCH, Uniforms())
    assert verdict == VerifyResult(drafted=1)


def test_a_token_of_the_target_may_span_several_drafted_ones() -> None:
    rows = {0: TargetRow(Token("ab")), 2: TargetRow(Token("c")), 3: TargetRow(Token("!"))}
    verdict = verify(draft("a", "b", "c"), TargetScores(rows, follows_target=True), AcceptanceMethod.MATCH, Uniforms())
    assert told(verdict) == [("ab", Origin.ACCEPTED), ("c", Origin.ACCEPTED), ("!", Origin.BONUS)]
    assert counts(verdict) == (3, 3, 3)


def test_a_row_after_other_tokens_than_were_emitted_is_not_used() -> None:
    rows = {0: TargetRow(Token("ab")), 1: TargetRow(Token("b")), 2: TargetRow(Token("c")), 3: TargetRow(Token("!"))}
    verdict = verify(draft("a", "b", "c"), TargetScores(rows), AcceptanceMethod.MATCH, Uniforms())
    assert told(verdict) == [("ab", Origin.ACCEPTED)]
    assert counts(verdict) == (3, 2, 2)


def test_a_token_of_the_target_may_end_inside_a_drafted_one() -> None:
    verdict = verify(
        draft("abc", "d"),
        TargetScores({0: TargetRow(Token("ab")), 3: TargetRow(Token("d"))}),
        AcceptanceMethod.MATCH,
        Uniforms(),
    )
    assert told(verdict) == [("ab", Origin.ACCEPTED)]
    assert counts(verdict) == (2, 1, 0)


def test_the_walk_goes_on_inside_a_drafted_token_where_a_row_was_asked_there() -> None:
    rows = {0: TargetRow(Token("ab")), 2: TargetRow(Token("c")), 3: TargetRow(Token("!"))}
    assert counts(
        verify(draft("abc"), TargetScores(rows, follows_target=True), AcceptanceMethod.MATCH, Uniforms())
    ) == (1, 1, 1)


def test_a_token_that_begins_like_the_draft_but_goes_on_otherwise_is_recovered() -> None:
    verdict = verify(draft("a", "b"), TargetScores({0: TargetRow(Token("ax"))}), AcceptanceMethod.MATCH, Uniforms())
    assert told(verdict) == [("ax", Origin.RECOVERED)]
    assert counts(verdict) == (2, 1, 0)


def test_a_token_longer_than_the_whole_draft_is_recovered() -> None:
    verdict = verify(draft("a"), TargetScores({0: TargetRow(Token("ab"))}), AcceptanceMethod.MATCH, Uniforms())
    assert told(verdict) == [("ab", Origin.RECOVERED)]


def test_emitted_tokens_carry_the_row_that_they_were_taken_from() -> None:
    top = (Token("a", -0.1), Token("b", -2.5))
    verdict = verify(
        draft("a"), TargetScores({0: TargetRow(Token("a", -0.1), top=top)}), AcceptanceMethod.MATCH, Uniforms()
    )
    assert verdict.emitted[0].top == top
    assert verdict.emitted[0].token.logprob == -0.1


# rejection

P = {"a": 0.3, "b": 0.6, "c": 0.1}
Q = {"a": 0.6, "b": 0.4}


def test_by_rejection_a_drafted_token_stands_although_the_target_drew_another() -> None:
    verdict = verify(draft("a", q=(Q,)), scored("b", "c", p=P), AcceptanceMethod.REJECTION, Uniforms(0.49))
    assert told(verdict) == [("a", Origin.ACCEPTED), ("c", Origin.BONUS)]
    assert counts(verdict) == (1, 1, 1)


def test_by_rejection_a_token_is_recovered_from_the_residual() -> None:
    # max(0, p - q) is 0.2 for b and 0.1 for c
    for point, token in ((0.66, "b"), (0.67, "c")):
        verdict = verify(draft("a", q=(Q,)), scored("a", "c", p=P), AcceptanceMethod.REJECTION, Uniforms(0.51, point))
        assert told(verdict) == [(token, Origin.RECOVERED)]
        assert counts(verdict) == (1, 1, 0)


def test_by_rejection_the_bonus_is_the_targets_own_sample() -> None:
    verdict = verify(draft("b", q=(Q,)), scored("a", "c", p=P), AcceptanceMethod.REJECTION, Uniforms(0.99))
    assert told(verdict)[-1] == ("c", Origin.BONUS)


@pytest.mark.parametrize("numbers", [(0.2,), (0.8, 0.3), (0.8, 0.9)])
def test_by_rejection_the_outcome_does_not_depend_on_what_the_target_drew(numbers: tuple[float, ...]) -> None:
    verdicts = [
        verify(draft("a", "b", q=(Q, None)), scored(sample, p=P), AcceptanceMethod.REJECTION, Uniforms(*numbers))
        for sample in "abc"
    ]
    assert verdicts[0] == verdicts[1] == verdicts[2]


@pytest.mark.parametrize(("p", "q"), [(None, (Q,)), (P, (None,)), (P, ()), (None, ())])
def test_where_p_or_q_is_unknown_the_rule_is_match(p: Distribution | None, q: tuple[Distribution | None, ...]) -> None:
    agreed = verify(draft("a", q=q), scored("a", "b", p=p), AcceptanceMethod.REJECTION, Uniforms())
    assert told(agreed) == [("a", Origin.ACCEPTED), ("b", Origin.BONUS)]
    assert told(verify(draft("a", q=q), scored("c", p=p), AcceptanceMethod.REJECTION, Uniforms())) == [
        ("c", Origin.RECOVERED)
    ]


@pytest.mark.parametrize("rule", [AcceptanceMethod.MATCH, AcceptanceMethod.GREEDY])
def test_other_rules_leave_p_and_q_alone(rule: AcceptanceMethod) -> None:
    verdict = verify(draft("a", q=(Q,)), scored("c", p=P), rule, Uniforms())
    assert told(verdict) == [("c", Origin.RECOVERED)]


def test_inside_a_drafted_token_the_rule_is_match() -> None:
    rows = {0: TargetRow(Token("a")), 1: TargetRow(Token("b"), p={"x": 1.0}), 2: TargetRow(Token("c"))}
    verdict = verify(
        draft("ab", q=(None,)), TargetScores(rows, follows_target=True), AcceptanceMethod.REJECTION, Uniforms()
    )
    assert told(verdict) == [("a", Origin.ACCEPTED), ("b", Origin.ACCEPTED), ("c", Origin.BONUS)]


def test_by_rejection_each_word_of_a_draft_is_judged_at_the_place_where_it_begins() -> None:
    first, second = {"the": 0.5, "a": 0.5}, {"cat": 0.8, "dog": 0.2}
    rows = {
        0: TargetRow(Token("a"), p={"the": 1.0}),
        3: TargetRow(Token("dog"), p={"cat": 0.4, "dog": 0.6}),
        6: TargetRow(Token("s")),
    }
    drafted = draft("the", "cat", q=(first, second))
    for point, texts in ((0.49, ["the", "cat", "s"]), (0.51, ["the", "dog"])):
        verdict = verify(drafted, TargetScores(rows), AcceptanceMethod.REJECTION, Uniforms(0.99, point, 0.5))
        assert [text for text, _ in told(verdict)] == texts


def test_what_stands_by_rejection_is_shown_with_the_targets_log_probability() -> None:
    top = (Token("b", -0.5), Token("a", -1.2))
    rows = {0: TargetRow(Token("b", -0.5), top=top, p=P)}
    accepted = verify(draft("a", q=(Q,)), TargetScores(rows), AcceptanceMethod.REJECTION, Uniforms(0.0)).emitted[0]
    assert accepted.token == Token("a", -1.2)
    assert accepted.top == top
    recovered = verify(draft("a", q=(Q,)), TargetScores(rows), AcceptanceMethod.REJECTION, Uniforms(0.9, 0.99)).emitted[
        0
    ]
    assert recovered.token == Token("c")  # not among those shown: no log-probability is known


# the reply's end


def clipped(verdict: VerifyResult, kept: int, *texts: str) -> tuple[int, int, int]:
    return counts(truncate_result(verdict, draft(*texts), kept))


def test_what_lies_beyond_the_replys_end_counts_as_neither_accepted_nor_tested() -> None:
    verdict = verify(draft("a", "b", "c"), scored("a", "b", "c", "d"), AcceptanceMethod.MATCH, Uniforms())
    assert clipped(verdict, 2, "a", "b", "c") == (3, 2, 2)
    assert told(truncate_result(verdict, draft("a", "b", "c"), 2)) == [("a", Origin.ACCEPTED), ("b", Origin.ACCEPTED)]


def test_a_reply_that_takes_the_whole_round_counts_the_whole_round() -> None:
    for samples in (("a", "b", "c"), ("a", "x"), ("x",)):
        verdict = verify(draft("a", "b"), scored(*samples), AcceptanceMethod.MATCH, Uniforms())
        assert truncate_result(verdict, draft("a", "b"), len(verdict.emitted)) == verdict


def test_a_recovered_token_beyond_the_replys_end_is_not_counted() -> None:
    verdict = verify(draft("a", "b"), scored("a", "x"), AcceptanceMethod.MATCH, Uniforms())
    assert clipped(verdict, 1, "a", "b") == (2, 1, 1)


@pytest.mark.parametrize("beyond", [END, HIDDEN])
def test_a_reply_that_ended_before_the_targets_own_end_never_saw_it(beyond: TargetRow) -> None:
    verdict = verify(
        draft("a", "b"), TargetScores({0: TargetRow(Token("a")), 1: beyond}), AcceptanceMethod.MATCH, Uniforms()
    )
    kept = truncate_result(verdict, draft("a", "b"), 1)
    assert counts(kept) == (2, 1, 1)
    assert not kept.end
    assert not kept.hidden


def test_a_reply_that_ends_inside_a_drafted_token_tested_but_did_not_accept_it() -> None:
    rows = {0: TargetRow(Token("ab")), 2: TargetRow(Token("c")), 3: TargetRow(Token("!"))}
    verdict = verify(draft("abc"), TargetScores(rows), AcceptanceMethod.MATCH, Uniforms())
    assert clipped(verdict, 1, "abc") == (1, 1, 0)
