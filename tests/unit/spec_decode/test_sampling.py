"""The target's sampler rebuilt from what a server shows: exact, or not known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.errors import UsageError
from specollama.spec_decode.sampler_support import resolve_sampling, restrict_to_shown, sampler_obstacle, support
from specollama.spec_decode.types import SamplingOptions, Token
from tests.support.draws import examples
from tests.support.reference_sampler import sampled

SHOWN = 20


def options(**changes: Any) -> SamplingOptions:
    """No cut and temperature 1, but for the changes."""
    return SamplingOptions(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **changes})


def top(*probabilities: float) -> list[Token]:
    return [Token(str(place), math.log(p)) for place, p in enumerate(probabilities)]


def kept(probabilities: tuple[float, ...], **changes: Any) -> list[float] | None:
    answer = support(top(*probabilities), options(**changes))
    return None if answer is None else [round(p, 9) for p in answer]


FOUR = (0.5, 0.3, 0.15, 0.05)

# exact numbers


def test_at_temperature_zero_the_most_probable_token_is_certain() -> None:
    assert kept(FOUR, temperature=0, top_k=40) == [1]
    assert kept(FOUR, temperature=-1) == [1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [0.625, 0.375]),
        ({"top_k": 4}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_p": 0.4}, [1]),
        ({"top_p": 0.7}, [0.625, 0.375]),
        ({"top_p": 0.0}, [1]),
        ({"min_p": 0.5}, [0.625, 0.375]),
        ({"min_p": 0.99}, [1]),
        ({"top_k": 3, "top_p": 0.8}, [0.625, 0.375]),  # of 0.95, 0.8 takes two
        ({"top_k": 2, "top_p": 0.62}, [1]),  # of 0.8, 0.5 is 0.625
        ({"top_k": 2, "top_p": 0.63}, [0.625, 0.375]),
        ({"top_k": 3, "min_p": 0.5}, [0.625, 0.375]),
        ({"top_p": 0.9, "min_p": 0.61}, [1]),
        ({"top_k": 2, "temperature": 0.5}, [round(25 / 34, 9), round(9 / 34, 9)]),
        ({"top_p": 0.7, "temperature": 0.5}, [round(25 / 34, 9), round(9 / 34, 9)]),
    ],
)
def test_each_cut_keeps_what_llama_cpp_keeps(changes: dict[str, Any], expected: list[float]) -> None:
    assert kept(FOUR, **changes) == expected


def test_temperature_comes_last_and_moves_no_cut() -> None:
    assert [len(kept(FOUR, top_p=0.7, temperature=t) or ()) for t in (0.1, 1.0, 5.0)] == [2, 2, 2]


# not known


def test_without_any_cut_what_is_not_shown_may_be_drawn() -> None:
    assert kept(FOUR) is None
    assert kept(FOUR, top_k=5) is None


def test_a_top_p_that_the_shown_tokens_do_not_reach_says_nothing() -> None:
    assert kept((0.3, 0.2, 0.1), top_p=0.9) is None


def test_top_p_is_certain_when_the_cut_falls_alike_for_every_mass_that_top_k_may_keep() -> None:
    # top_k 4 of 0.9 shown: the kept tokens weigh 0.9 to 1
    assert kept((0.6, 0.2, 0.1), top_k=4, top_p=0.59) == [1]  # 0.531 to 0.59 of the whole
    assert kept((0.6, 0.2, 0.1), top_k=4, top_p=0.7) == [0.75, 0.25]  # 0.63 to 0.7
    assert kept((0.6, 0.2, 0.1), top_k=4, top_p=0.63) is None  # 0.567 to 0.63: one token, or two
    assert kept((0.6, 0.2, 0.1), top_k=4, top_p=0.85) is None  # 0.765 to 0.85: two tokens, or three


def test_the_mass_that_top_k_may_keep_ends_at_one() -> None:
    assert kept((0.6, 0.3), top_k=1000, top_p=0.61) is None  # 0.549 to 0.61
    assert kept((0.6, 0.3), top_k=1000, top_p=0.59) == [1]


def test_without_top_k_the_kept_mass_is_one() -> None:
    assert kept((0.6, 0.2, 0.1), top_k=0, top_p=0.63) == [0.75, 0.25]
    assert kept((0.6, 0.2, 0.1), top_k=-1, top_p=0.59) == [1]


def test_min_p_alone_makes_it_certain_when_its_cut_is_within_what_is_shown() -> None:
    assert kept((0.5, 0.2, 0.01), top_k=40, min_p=0.1) == [round(5 / 7, 9), round(2 / 7, 9)]
    assert kept((0.5, 0.2, 0.06), top_k=40, min_p=0.1) is None


def test_min_p_makes_an_uncertain_top_p_certain_when_its_cut_is_the_earlier_one() -> None:
    assert kept((0.6, 0.2, 0.1), top_k=4, top_p=0.63, min_p=0.5) == [1]
    assert kept((0.6, 0.2, 0.1), top_k=4, top_p=0.85, min_p=0.3) == [0.75, 0.25]
    assert kept((0.6, 0.2, 0.1), top_k=4, top_p=0.85, min_p=0.1) is None


@pytest.mark.parametrize("changes", [{"top_k": 2}, {"top_p": 0.7, "top_k": 0}])
def test_a_tie_at_the_cut_is_the_engines_secret(changes: dict[str, Any]) -> None:
    assert kept((0.5, 0.25, 0.25), **changes) is None


def test_a_tie_before_or_after_the_cut_is_no_obstacle() -> None:
    assert kept((0.3, 0.3, 0.2, 0.1), top_k=3) == [0.375, 0.375, 0.25]
    assert kept((0.5, 0.2, 0.1, 0.1), top_k=2, top_p=0.71) == [1]
    assert kept((0.4, 0.2, 0.2, 0.01), min_p=0.2) == [0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    "changes",
    [{"top_p": 0.5}, {"top_p": 0.8}, {"top_k": 2, "top_p": 0.625}, {"min_p": 0.6}, {"top_k": 0, "min_p": 0.1}],
)
def test_a_cut_within_a_rounding_of_a_boundary_is_not_certain(changes: dict[str, Any]) -> None:
    assert kept(FOUR, **changes) is None


@pytest.mark.parametrize("beside", [1 - 1e-6, 1 + 1e-6])
@pytest.mark.parametrize("name", ["top_p", "min_p"])
def test_a_boundary_is_not_certain_on_either_side(name: str, beside: float) -> None:
    boundary = {"top_p": 0.8, "min_p": 0.6}[name]
    assert kept(FOUR, **{name: boundary * beside}) is None
    assert kept(FOUR, **{name: boundary * (1 + 100 * (beside - 1))}) is not None


@pytest.mark.parametrize(
    "changes", [{"repeat_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.5}, {"typical_p": 0.9}]
)
def test_options_that_raw_log_probabilities_do_not_show_make_it_unknown(changes: dict[str, Any]) -> None:
    assert kept(FOUR, top_k=2, **changes) is None
    assert kept(FOUR, temperature=0, **changes) is None


def test_penalties_over_no_tokens_are_no_penalties() -> None:
    assert kept(FOUR, top_k=2, repeat_penalty=1.5, repeat_last_n=0) == [0.625, 0.375]


def test_a_row_without_log_probabilities_says_nothing() -> None:
    assert support([], options(top_k=2)) is None
    assert support([Token("a", -0.1), Token("b")], options(top_k=2)) is None
    assert support([Token("a"), Token("b", -0.1)], options(top_k=1)) is None


# numbers that can't be right


@pytest.mark.parametrize(
    "logprobs",
    [
        [math.nan],
        [-0.1, math.nan],
        [math.nan, -2.0],
        [0.1],
        [1000.0, -1.0],
        [math.inf, -1.0],
        [-2.0, -1.0],  # not the most probable first
        [-1.0, -3.0, -2.0],
        [-0.1, -0.2],  # 1.7 of a mass of 1
        [-math.inf, -math.inf],
        [-3.4e38],  # a mass of 0
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0, 1e-310, 1e-3, 0.8])
def test_what_can_not_be_log_probabilities_says_nothing(logprobs: list[float], temperature: float) -> None:
    row = [Token(str(place), logprob) for place, logprob in enumerate(logprobs)]
    for top_k in (0, 1, 2, 40):
        assert support(row, options(temperature=temperature, top_k=top_k)) is None


def test_tokens_that_are_never_drawn_are_no_obstacle() -> None:
    """Their log-probability is minus infinity, or the lowest 32-bit number."""
    row = [Token("a", 0.0), Token("b", -3.4028235e38), Token("c", -math.inf)]
    assert support(row, options(top_k=3)) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("temperature", [1e-310, 1e-30, 1e-3, 0.049, math.inf, math.nan])
def test_near_temperature_zero_the_rounding_of_log_probabilities_would_be_multiplied(temperature: float) -> None:
    assert kept(FOUR, temperature=temperature, top_k=2) is None


@pytest.mark.parametrize("name", ["top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_an_option_that_is_no_number_makes_it_unknown(name: str, value: float) -> None:
    assert kept(FOUR, top_k=2, **{name: value}) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"top_p": -0.5}, [1]),
        ({"top_p": 7.0}, [0.625, 0.375]),
        ({"min_p": -3.0}, [0.625, 0.375]),
        ({"min_p": 3.0}, [1]),
        ({"typical_p": 2.0}, [0.625, 0.375]),
        ({"top_k": -5, "top_p": 0.7}, [0.625, 0.375]),
    ],
)
def test_cuts_beyond_their_range_cut_as_llama_cpp_takes_them(changes: dict[str, Any], expected: list[float]) -> None:
    assert kept(FOUR, **{"top_k": 2, **changes}) == expected


# against the whole vocabulary

CHOICES = {
    "temperature": (0.3, 0.8, 1.0, 1.5),
    "top_k": (0, 1, 5, 20, 25, 40),
    "top_p": (0.1, 0.5, 0.9, 0.95, 1.0),
    "min_p": (0.0, 0.01, 0.05, 0.2),
}
any_options = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()})


def vocabulary(random: Random) -> dict[str, float]:
    """40 to 60 tokens, from nearly flat to very peaked."""
    sharpness = random.uniform(0.1, 6)
    weights = [math.exp(random.gauss(0, sharpness)) for _ in range(random.randint(40, 60))]
    total = sum(weights)
    return {f"t{place}": weight / total for place, weight in enumerate(weights)}


def shown(raw: dict[str, float]) -> list[Token]:
    ordered = sorted(raw.items(), key=lambda entry: -entry[1])[:SHOWN]
    return [Token(text, math.log(p)) for text, p in ordered]


def agrees(raw: dict[str, float], chosen: SamplingOptions) -> bool:
    """Whether the answer, which has to be known, is that of the whole vocabulary."""
    rows = shown(raw)
    probabilities = support(rows, chosen)
    assert probabilities is not None
    known = {token.text: p for token, p in zip(rows, probabilities, strict=False)}
    return known == pytest.approx(sampled(raw, chosen), rel=1e-6)


@examples(200)
@given(st.integers(0, 2**32), any_options)
def test_what_is_known_is_exactly_what_the_whole_vocabulary_gives(seed: int, chosen: dict[str, Any]) -> None:
    raw = vocabulary(Random(seed))
    if support(shown(raw), options(**chosen)) is not None:
        assert agrees(raw, options(**chosen))


@examples(150)
@given(st.integers(0, 2**32), any_options, st.booleans())
def test_what_is_known_holds_for_the_heaviest_and_the_lightest_rest(
    seed: int, chosen: dict[str, Any], heavy: bool
) -> None:
    raw = vocabulary(Random(seed))
    head = shown(raw)
    visible = {token.text: math.exp(token.logprob or 0) for token in head}
    rest, least = 1 - sum(visible.values()), min(visible.values())
    fewest = math.ceil(rest / (least * 0.999))
    count = fewest if heavy else max(fewest, 500)
    completed = visible | {f"r{n}": rest / count for n in range(count)}
    if support(head, options(**chosen)) is not None:
        assert agrees(completed, options(**chosen))


def test_the_answer_is_known_often_enough_to_mean_something() -> None:
    random = Random(1)
    rows = [shown(vocabulary(random)) for _ in range(300)]
    defaults = sum(support(row, SamplingOptions()) is not None for row in rows)
    narrow = sum(support(row, SamplingOptions(top_k=20)) is not None for row in rows)
    assert defaults > 150
    assert narrow > 290


@examples(150)
@given(st.integers(0, 2**32), any_options)
def test_a_drafts_options_make_its_distribution_known(seed: int, chosen: dict[str, Any]) -> None:
    narrowed = restrict_to_shown(options(**chosen, typical_p=0.5), SHOWN)
    row = shown(vocabulary(Random(seed)))
    probabilities = support(row, narrowed)
    if probabilities is None:  # only within a rounding of a boundary, which moves with the options
        assert support(row, restrict_to_shown(options(**chosen | {"top_p": 1.0, "min_p": 0.0}), SHOWN)) is not None
    else:
        assert sum(probabilities) == pytest.approx(1)


def test_a_drafts_options_are_narrowed_no_further_than_needed() -> None:
    asked = options(top_k=7, top_p=0.9, seed=3, stop=("x",))
    assert restrict_to_shown(asked, SHOWN) == asked
    assert restrict_to_shown(options(top_k=7, top_p=0.9, seed=3, stop=("x",), typical_p=0.5), SHOWN) == asked
    assert [restrict_to_shown(options(top_k=k), SHOWN).top_k for k in (-1, 0, 1, 20, 21, 40)] == [20, 20, 1, 20, 20, 20]


# effective options

DEFAULTS = SamplingOptions(repeat_penalty=1.1)


def test_the_request_comes_before_the_modelfile_and_that_before_the_default() -> None:
    answer = resolve_sampling({"temperature": 0.1}, {"temperature": 0.5, "top_k": 3}, DEFAULTS)
    assert (answer.temperature, answer.top_k, answer.top_p, answer.repeat_penalty) == (0.1, 3, 0.9, 1.1)


def test_an_unset_option_is_as_if_it_were_not_there() -> None:
    assert resolve_sampling({"top_k": None}, {}, DEFAULTS) == DEFAULTS


def test_an_option_unset_by_the_request_keeps_the_modelfiles_value() -> None:
    assert resolve_sampling({"top_k": None}, {"top_k": 3}, DEFAULTS).top_k == 3


def test_options_that_do_not_sample_are_passed_over() -> None:
    assert resolve_sampling({"num_ctx": 4096, "mirostat": 1}, {"num_gpu": 3}, DEFAULTS) == DEFAULTS


def test_stops_come_as_one_or_several_and_replace_the_modelfiles() -> None:
    assert resolve_sampling({"stop": "END"}, {}, DEFAULTS).stop == ("END",)
    assert resolve_sampling({"stop": ["a", "b"]}, {"stop": ["c"]}, DEFAULTS).stop == ("a", "b")
    assert resolve_sampling({}, {"stop": ["c"]}, DEFAULTS).stop == ("c",)
    assert resolve_sampling({"stop": []}, {"stop": ["c"]}, DEFAULTS).stop == ()


@pytest.mark.parametrize(("asked", "seed"), [(7, 7), (0, 0), (-1, None), (None, None)])
def test_a_negative_seed_asks_for_a_random_one(asked: int | None, seed: int | None) -> None:
    assert resolve_sampling({"seed": asked}, {}, DEFAULTS).seed == seed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39, "0.8", True, [1]], ids=repr)
@pytest.mark.parametrize("name", ["temperature", "top_k", "repeat_penalty", "seed"])
def test_a_value_that_is_no_number_is_refused_in_one_line(name: str, value: Any) -> None:
    for layers in (({name: value}, {}), ({}, {name: value})):
        with pytest.raises(UsageError, match=rf"^the option {name} must be a number, not [^\n]+$"):
            resolve_sampling(*layers, DEFAULTS)


@pytest.mark.parametrize("value", [5, [5], {"a": "b"}], ids=repr)
def test_stops_that_are_no_texts_are_refused_in_one_line(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^the option stop must be a list of texts, not [^\n]+$"):
        resolve_sampling({"stop": value}, {}, DEFAULTS)


def test_numbers_are_kept_as_ollama_keeps_them() -> None:
    answer = resolve_sampling({"temperature": 1e-310, "top_k": 2.7, "seed": 3.0, "min_p": 1e-300}, {}, DEFAULTS)
    assert (answer.temperature, answer.top_k, answer.seed, answer.min_p) == (0, 2, 3, 0)
    assert answer.greedy


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0"),
        ({"repeat_penalty": -1e-40}, "repeat_penalty is -1e-40"),
        ({"repeat_penalty": 0.0, "repeat_last_n": 0}, None),  # penalties over no tokens
        ({"repeat_penalty": -1.5}, None),
        ({"repeat_last_n": -1}, None),
        ({"repeat_last_n": -2}, "repeat_last_n is -2"),
    ],
)
def test_options_under_which_no_reply_can_be_computed_are_named(changes: dict[str, Any], reason: str | None) -> None:
    assert sampler_obstacle(options(**changes)) == reason


@dataclass(frozen=True, slots=True)
class WithAnother(SamplingOptions):
    """One sampling option more, of which only the server's sampler knows."""

    sharpness: float = field(default=0.0, metadata={"help": "Unknown here.", "rebuilt": False})


def test_an_option_that_only_the_servers_sampler_knows_is_left_to_it() -> None:
    top = [Token("a", -0.5), Token("b", -1.5)]
    unset, used = WithAnother(top_k=1), WithAnother(top_k=1, sharpness=0.5)
    assert (support(top, unset), sampler_obstacle(unset)) == ((1.0,), None)
    assert support(top, used) is None
    assert sampler_obstacle(used) == "sharpness is set, which only a server's sampler works with"


NOT_OF_A_ROW = {"seed", "num_predict", "stop", "repeat_last_n"}  # they don't shape a distribution by themselves
STRONG: dict[str, Any] = {
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.3,
    "min_p": 0.5,
    "typical_p": 0.5,
    "repeat_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
}
REBUILT = [each.name for each in fields(SamplingOptions) if each.metadata["rebuilt"] and each.name not in NOT_OF_A_ROW]


@pytest.mark.parametrize("name", REBUILT)
def test_each_option_that_the_samplers_work_with_changes_what_is_known_of_a_row(name: str) -> None:
    """One that is implemented for a whole vocabulary alone would leave rejection sampling with a wrong p."""
    usual = SamplingOptions(top_k=4)
    known = support(top(*FOUR), usual)
    assert known is not None
    assert support(top(*FOUR), replace(usual, **{name: STRONG[name]})) != known
