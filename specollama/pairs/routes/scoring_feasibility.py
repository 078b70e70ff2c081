"""Decides which replies of an engine can be speculated without loss, and whether it pays. Pure: no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specollama.backends.engines.base import Capabilities, EngineInfo
from specollama.backends.timings import doubt_text
from specollama.config.settings import PairSettings
from specollama.errors import UnsupportedPair
from specollama.pairs.assumptions import ASSUMED_ACCEPTANCE, prefill_is_too_long
from specollama.pairs.decoding import choose_acceptance_method
from specollama.pairs.feasibility import why_drafting_is_off
from specollama.spec_decode.calibration import MAX_DRAFT_TOKENS
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.types import AcceptanceMethod, SamplingOptions

if TYPE_CHECKING:
    from specollama.backends.llama_cpp.profiling import ModelProfile

_DEFAULTS = SamplingOptions()


@dataclass(frozen=True, slots=True)
class EnginePrompt:
    """A request as a prompt. Without `tokens` the engine's own chat endpoint gets the `messages`, for `reason`."""

    tokens: Sequence[int] = ()
    text: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    reason: str = ""


def check_options(can: Capabilities, sampling: SamplingOptions, requested: AcceptanceMethod, kind: str) -> None:
    """Check that the engine has the options that are set, and can keep the requested acceptance method lossless.

    Raises UnsupportedPair.
    """
    for name in sorted(can.unsupported_options):
        if (value := getattr(sampling, name)) != getattr(_DEFAULTS, name):
            raise UnsupportedPair(f"{kind} has no {name} (= {value:g} here)")
    choose_acceptance_method(requested, sampling, why_not_rejection(kind))


def why_not_rejection(kind: str) -> str:
    """Why rejection sampling can't be lossless with an engine."""
    return f"{kind} doesn't show the whole distribution that it draws from"


def why_not_scored(
    settings: PairSettings, can: Capabilities, sampling: SamplingOptions, facts: EngineInfo, kind: str
) -> str:
    """The reason not to draft; "" if drafting is lossless."""
    if off := why_drafting_is_off(settings):
        return off
    if sampling.penalised and not can.penalizes_prompt:
        return f"penalties: {kind} doesn't count a reply's tokens when they are sent again as a prompt"
    if sampling.seed is not None and not sampling.greedy and not can.takes_seed:
        return f"a seed: {kind} takes none for a request"
    if facts.strips_leading_space:
        return f"{kind} prints this model's tokens without their leading spaces"
    if not (can.one_pass and sampling.greedy) and facts.slots is not None and facts.slots < 2:
        return f"{kind} works on one request at a time (start it with more slots)"
    return ""


def max_rows(can: Capabilities, facts: EngineInfo, sampling: SamplingOptions) -> int:
    """Rows requested at once: at most one for each slot, unless the engine scores all rows in one pass."""
    each_takes_a_slot = facts.slots is not None and not (can.one_pass and sampling.greedy)
    return min(MAX_DRAFT_TOKENS + 1, facts.slots or 1) if each_takes_a_slot else MAX_DRAFT_TOKENS + 1


def needs_request_per_row(can: Capabilities, sampling: SamplingOptions) -> bool:
    """Whether each row has to be a request of its own: one request has one seed, which rows may not share."""
    return not sampling.greedy and (can.needs_seed or sampling.seed is not None)


def request_pattern(can: Capabilities, sampling: SamplingOptions) -> str:
    """How the rows of a round are requested, for the status line. Timings depend on it."""
    if can.one_pass and sampling.greedy:
        return "one pass a round"
    return "one request a place" if needs_request_per_row(can, sampling) else "one request a round"


def why_not_faster(
    costs: ModelProfile, can: Capabilities, facts: EngineInfo, prompt: int, sampling: SamplingOptions
) -> str:
    """Why rounds would be slower than the engine's stream, even if drafts cost nothing; "" if they may be faster."""
    step = costs.plain or costs.passes[1]
    curve, best, likely, size = CostCurve(dict(costs.passes)), 0.0, 1.0, 1
    rows = max_rows(can, facts, sampling)
    for more in range(1, rows):
        likely += ASSUMED_ACCEPTANCE**more
        if (factor := likely * step / curve(more + 1)) > best:
            best, size = factor, more + 1
    if best <= 1:
        cost = cost_text(curve, size, step)
        doubt = f" ({text})" if (text := doubt_text(costs.until)) else ""
        return f"it doesn't pay here: a request for {size} places costs {cost} of the engine's own stream{doubt}"
    reading = costs.reading * prompt * (size - 1)
    if facts.slots is not None and rows > 1 and prefill_is_too_long(reading, step):
        return f"{size} slots would read the prompt of {prompt} tokens for {reading:.1f} s first"
    return ""


def cost_text(curve: CostCurve, rows: int, step: float) -> str:
    return f"{curve(rows) / step:.1f} steps"
