"""What an engine can be asked without loss, what it can't and why, and whether it pays: nothing is asked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specollama.backends.engines.base import Capabilities, Facts
from specollama.backends.timings import in_doubt
from specollama.config.settings import PairSettings
from specollama.errors import UnsupportedPair
from specollama.pairs.feasibility import why_off
from specollama.spec_decode.calibration import MOST
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.types import Rule, SamplingOptions

if TYPE_CHECKING:
    from specollama.backends.llama_cpp.profiling import ModelCosts

_HOPED_ACCEPTANCE = 0.8  # of a draft before anything is known of it: generous, since a poor one is noticed
_HOPED_REPLY = 256  # tokens, before anything is known of a reply
_READING_SHARE = 0.2  # of the reply's plain time, that may go into reading the prompt once more for each slot
_DEFAULTS = SamplingOptions()


@dataclass(frozen=True, slots=True)
class Prompted:
    """A request as a prompt. Without `tokens` the engine's own chat endpoint gets the `messages`, for `reason`."""

    tokens: Sequence[int] = ()
    text: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    reason: str = ""


def check_options(can: Capabilities, sampling: SamplingOptions, asked: Rule, kind: str) -> None:
    """Raises UnsupportedPair where an option is set that the engine doesn't have, or a rule that can't be exact."""
    for name in sorted(can.lacks):
        if (value := getattr(sampling, name)) != getattr(_DEFAULTS, name):
            raise UnsupportedPair(f"{kind} has no {name} (= {value:g} here)")
    if asked is Rule.REJECTION and not sampling.greedy:
        raise UnsupportedPair(
            f"rule rejection needs the distribution that {kind} draws from, which it doesn't show whole; "
            "use `match` or `auto`"
        )


def why_not_scored(
    settings: PairSettings, can: Capabilities, sampling: SamplingOptions, facts: Facts, kind: str
) -> str:
    """Why nothing is drafted; "" where it can be without loss."""
    if off := why_off(settings):
        return off
    if sampling.penalised and not can.counts_prompt:
        return f"penalties: {kind} doesn't count a reply's tokens when they are sent again as a prompt"
    if sampling.seed is not None and not sampling.greedy and not can.seeds:
        return f"a seed: {kind} takes none for a request"
    if facts.strips:
        return f"{kind} prints this model's tokens without their leading spaces"
    if not (can.one_pass and sampling.greedy) and facts.slots is not None and facts.slots < 2:
        return f"{kind} works on one request at a time (start it with more slots)"
    return ""


def most_rows(can: Capabilities, facts: Facts, sampling: SamplingOptions) -> int:
    """Rows that are asked for at once: no more than the engine has slots for, where each takes one."""
    each_takes_a_slot = facts.slots is not None and not (can.one_pass and sampling.greedy)
    return min(MOST + 1, facts.slots or 1) if each_takes_a_slot else MOST + 1


def by_row(can: Capabilities, sampling: SamplingOptions) -> bool:
    """Whether each row has to be a request of its own: one request has one seed, which rows may not share."""
    return not sampling.greedy and (can.must_seed or sampling.seed is not None)


def asked(can: Capabilities, sampling: SamplingOptions) -> str:
    """How a round's rows are asked for, which is what they cost by, in words."""
    if can.one_pass and sampling.greedy:
        return "one pass a round"
    return "one request a place" if by_row(can, sampling) else "one request a round"


def why_not_worth(costs: ModelCosts, can: Capabilities, facts: Facts, prompt: int, sampling: SamplingOptions) -> str:
    """Why rounds would be slower than the engine's own stream, even with drafts for nothing; "" where they may gain."""
    step = costs.plain or costs.passes[1]
    curve, best, likely, size = CostCurve(dict(costs.passes)), 0.0, 1.0, 1
    rows = most_rows(can, facts, sampling)
    for more in range(1, rows):
        likely += _HOPED_ACCEPTANCE**more
        if (factor := likely * step / curve(more + 1)) > best:
            best, size = factor, more + 1
    if best <= 1:
        cost = costs_of(curve, size, step)
        doubt = f" ({told})" if (told := in_doubt(costs.until)) else ""
        return f"it doesn't pay here: a request for {size} places costs {cost} of the engine's own stream{doubt}"
    reading = costs.reading * prompt * (size - 1)
    if facts.slots is not None and rows > 1 and reading > _READING_SHARE * _HOPED_REPLY * step:
        return f"{size} slots would read the prompt of {prompt} tokens for {reading:.1f} s first"
    return ""


def costs_of(curve: CostCurve, rows: int, step: float) -> str:
    return f"{curve(rows) / step:.1f} steps"
