"""Cases that people reported of other systems, by their number, as far as they concern the core."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

import pytest

from specollama.backends.scripted import End, Outcome, Script, ScriptedDrafter, ScriptedTarget, fixed_script
from specollama.spec_decode.acceptance import renormalize_visible, verify
from specollama.spec_decode.events import Done, Event, Text
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.retokenization import ExactPath, retokenize_draft
from specollama.spec_decode.stopping_criteria import StoppingCriteria
from specollama.spec_decode.types import (
    AcceptanceMethod,
    DoneReason,
    Draft,
    SamplingOptions,
    TargetRow,
    TargetScores,
    Token,
)
from tests.support.scripted_runs import events, plain, reply, speculation
from tests.support.toy_vocabulary import ToyVocabulary

VOCABULARY = ToyVocabulary()


async def speculated(target: Script, draft: Script, *stops: str, lookahead: int = 8, prompt: str = "") -> list[Event]:
    options = SamplingOptions(temperature=0, stop=stops)
    run = speculation(
        ScriptedTarget(target, options, 1),
        ScriptedDrafter(draft, options, 2, prompt=prompt),
        options,
        rule=AcceptanceMethod.GREEDY,
        lookahead=FixedLookahead(lookahead),
        prompt=prompt,
    )
    return await events(run)


def shown(told: list[Event]) -> list[str]:
    return [event.text for event in told if isinstance(event, Text)]


def done(told: list[Event]) -> Done:
    assert isinstance(told[-1], Done)
    return told[-1]


# C03: alternatives at one place are no sequence


def test_c03_each_alternative_is_judged_alone_and_a_fragment_among_them_is_hidden() -> None:
    # a fragment of a left quote has no text; "the" and "a" are alternatives, "thea" is nothing
    top = (Token("", math.log(0.5)), Token("the", math.log(0.3)), Token("a", math.log(0.2)))
    p = renormalize_visible(top, (0.5, 0.3, 0.2), frozenset({"the", "a"}))
    assert p == pytest.approx({"the": 0.6, "a": 0.4})
    verdict = verify(
        Draft((Token("the"),)), TargetScores({0: TargetRow(Token("a"), top=top, p=p)}), AcceptanceMethod.MATCH, Random()
    )
    assert [emitted.token.text for emitted in verdict.emitted] == ["a"]


def test_c03_alternatives_are_passed_on_one_by_one() -> None:
    top = (Token(""), Token("the"), Token("a"))
    verdict = verify(Draft(), TargetScores({0: TargetRow(Token("a"), top=top)}), AcceptanceMethod.MATCH, Random())
    assert [token.text for token in verdict.emitted[0].top] == ["", "the", "a"]


# C05: white space at a cut


def test_c05_no_row_is_asked_where_a_lone_space_joins_the_next_word() -> None:
    # " a" is one token: after a lone space, "a" would be read together with it
    cuts = ExactPath("see", VOCABULARY).cut_points([" ", "a", "b"])
    assert [cut.text for cut in cuts] == ["see", "see "]


def test_c05_a_draft_of_another_tokenizer_never_ends_on_the_space_that_begins_a_word() -> None:
    assert retokenize_draft("x", "bc ", VOCABULARY) == ["bc"]


async def test_c05_a_space_at_the_end_of_prompt_or_reply_stays() -> None:
    script = fixed_script("The", " colours", " are ", " red", ".")
    told = await speculated(script, fixed_script("The", " colours", " are ", "red"), prompt="Q: ")
    assert "".join(shown(told)) == "The colours are  red."


# C08: a stop string at the start of a long burst


def test_c08_a_stop_in_one_long_text_is_found_at_its_start() -> None:
    stopper = StoppingCriteria[int](["END"])
    assert stopper.add("END one two three four five six", 0) == []
    assert stopper.reason is DoneReason.STOP


async def test_c08_a_stop_at_the_start_of_a_long_burst_ends_the_reply_empty() -> None:
    script = fixed_script("END", " one", " two", " three", " four", " five", " six")
    told = await speculated(script, script, "END")
    assert reply(told).text == ""
    assert done(told).reason is DoneReason.STOP
    assert done(told).stats.eval_count == 1


async def test_c08_a_stop_of_several_tokens_at_the_start_of_a_burst_is_found() -> None:
    script = fixed_script("E", "N", "D", " one", " two")
    assert shown(await speculated(script, script, "END")) == []


# C09: the first half of a stop string


@pytest.mark.parametrize("lookahead", [1, 2, 8])
async def test_c09_nothing_of_a_stop_string_is_shown(lookahead: int) -> None:
    script = fixed_script("ok", "\nUser", ":", " what")
    told = await speculated(script, script, "\nUser:", lookahead=lookahead)
    assert shown(told) == ["ok"]
    assert done(told).reason is DoneReason.STOP


@pytest.mark.parametrize("lookahead", [1, 2, 8])
async def test_c09_what_only_began_like_a_stop_string_is_shown_after_all(lookahead: int) -> None:
    script = fixed_script("ok", "\nUser", "s", " like it")
    told = await speculated(script, script, "\nUser:", lookahead=lookahead)
    assert "".join(shown(told)) == "ok\nUsers like it"


# C10: log-probabilities in step with the text


@pytest.mark.parametrize("lookahead", [1, 8])
async def test_c10_log_probabilities_end_with_the_last_token_that_is_shown(lookahead: int) -> None:
    script = _slightly_unsure("ok", "\nUser", ":", " what")
    told = await speculated(script, fixed_script("ok", "\nUser", ":", " what"), "\nUser:", lookahead=lookahead)
    texts = [event for event in told if isinstance(event, Text)]
    assert [(event.text, [token.text for token in event.top]) for event in texts] == [("ok", ["ok", "?"])]
    alone = await plain(script, SamplingOptions(temperature=0, stop=("\nUser:",)), 1)
    assert done(told).stats.eval_count == alone.eval_count == 3


async def test_c10_a_token_that_is_cut_by_a_stop_string_keeps_its_own_row() -> None:
    script = _slightly_unsure("ok", "ay. And", " more")
    told = await speculated(script, fixed_script("ok", "ay. And", " more"), ".")
    texts = [event for event in told if isinstance(event, Text)]
    assert [(event.text, event.top[0].text) for event in texts] == [("ok", "ok"), ("ay", "ay. And")]


def _slightly_unsure(*tokens: str) -> Script:
    certain = fixed_script(*tokens)

    def script(text: str) -> Mapping[Outcome, float]:
        (drawn,) = certain(text)
        return {drawn: 0.9, "?": 0.1}

    return script


# C11: stop strings together with a draft


async def test_c11_a_reply_stops_at_the_first_stop_string_inside_a_burst() -> None:
    script = fixed_script("The", " Nile", ".", " The", " Rhine", ".")
    told = await speculated(script, script, ".")
    assert reply(told).text == "The Nile"
    assert done(told).stats.accepted == 3


async def test_c11_a_draft_that_passes_over_the_stop_string_does_not_matter() -> None:
    told = await speculated(
        fixed_script("The", " Nile", ".", " More"), fixed_script("The", " Nile", " and", " the"), "."
    )
    assert reply(told).text == "The Nile"


# C12: streamed and whole replies


@pytest.mark.parametrize("lookahead", [1, 3, 8])
async def test_c12_the_pieces_of_a_reply_join_to_the_whole_of_it(lookahead: int) -> None:
    script = fixed_script("The", " answer", " is", " 42", ".")
    beyond = fixed_script("The", " answer", " is", " 42", ".", "<|im_end|>", "\n")
    for stops in ((), ("<|im_end|>",)):
        told = await speculated(script, beyond, *stops, lookahead=lookahead)
        assert "".join(shown(told)) == "The answer is 42."
        assert done(told).reason is DoneReason.STOP


async def test_c12_a_marker_printed_as_text_and_matched_as_a_stop_string_is_left_out_too() -> None:
    script = fixed_script("The", " answer", " is", " 42", ".<|im_", "end|>", "more")
    assert "".join(shown(await speculated(script, script, "<|im_end|>"))) == "The answer is 42."


# C13: the target's end of turn


@pytest.mark.parametrize("lookahead", [1, 2, 3, 8])
async def test_c13_a_draft_that_runs_past_the_end_marker_adds_nothing(lookahead: int) -> None:
    told = await speculated(
        fixed_script("Hello", "!"), fixed_script("Hello", "!", "\nassistant", "\n", "Hi", " again"), lookahead=lookahead
    )
    assert "".join(shown(told)) == "Hello!"
    assert done(told).reason is DoneReason.STOP
    assert done(told).stats.eval_count == 3


async def test_c13_a_draft_that_ends_before_the_target_cuts_nothing_off() -> None:
    told = await speculated(fixed_script("Hello", ",", " you", "!"), lambda text: {End(): 1.0})
    assert "".join(shown(told)) == "Hello, you!"


# C27: one request after another


async def test_c27_the_second_request_is_accepted_as_the_first_was() -> None:
    told = [await speculated(fixed_script(*"abcdefgh"), fixed_script(*"abcxefgh"), lookahead=3) for _ in range(2)]
    first, second = (done(each).stats for each in told)
    assert first.accepted > 0
    assert (first.accepted, first.rounds, first.draft_requests) == (
        second.accepted,
        second.rounds,
        second.draft_requests,
    )
