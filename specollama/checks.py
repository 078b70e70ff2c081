"""What a pair can do without loss, and what it can't and why: decided from what is known, nothing asked."""

from __future__ import annotations

from dataclasses import dataclass

from specollama.backends.facts import Model
from specollama.backends.probe import ROWS, Probe
from specollama.backends.vocabulary import LlamaVocabulary
from specollama.config import PairSettings
from specollama.errors import UnsupportedPair
from specollama.types import Route, Rule, SamplingOptions

_HOPED_ACCEPTANCE = 0.8  # of a draft before anything is known of it: generous, since a poor one is noticed


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """What is known of a pair's tokenizers. `same`: the draft model's tokens are the target's."""

    target: LlamaVocabulary | None = None
    same: bool = False
    why_not_exact: str = ""  # why the target's isn't there


def why_plain(settings: PairSettings, target: Model) -> str | None:
    """Why the pair's replies can't be, or are not to be, speculated; None when they can."""
    if settings.route is Route.PLAIN:
        return "route plain was asked for"
    if settings.lookahead == 0:
        return "lookahead is 0"
    if target.remote:
        return f"{target.name} is a cloud model"
    if target.show.details.format == "safetensors":
        return f"{target.name} runs on the MLX engine"
    if target.speculates_itself:
        return f"{target.name} is speculated by its own server"
    if target.thinks:
        return f"{target.name} is a thinking model"
    return None


def choose_rule(asked: Rule, options: SamplingOptions, target: Model, tokenizers: Tokenizers) -> Rule:
    """The rule of a reply: greedy at temperature 0, else rejection where it is exact, else match.

    With a seed it is match, so that the reply doesn't depend on what was drafted. Raises UnsupportedPair when
    rejection was asked for and can't be exact.
    """
    if options.greedy:
        return Rule.GREEDY
    obstacle = _rejection_obstacle(options, target, tokenizers)
    if asked is Rule.REJECTION and obstacle:
        raise UnsupportedPair(f"rule rejection can't be kept lossless here: {obstacle}; use `match` or `auto`")
    return Rule.MATCH if asked is Rule.MATCH or obstacle else Rule.REJECTION


def _rejection_obstacle(options: SamplingOptions, target: Model, tokenizers: Tokenizers) -> str | None:
    if options.seed is not None:
        return "a seed asks for a reply that doesn't depend on the draft"
    if options.penalised:
        return "penalties change what log-probabilities don't show"
    if not target.sampler_known:
        return "the target's sampler doesn't work in llama.cpp's order"
    if tokenizers.target is None:
        return tokenizers.why_not_exact
    return None if tokenizers.same else "draft and target have different tokenizers"


def why_not_lanes(probe: Probe) -> str | None:
    """Why the route lanes would be slower than plain on these servers; None when it should gain."""
    if probe.speedup(_HOPED_ACCEPTANCE) > 1:
        return None
    if probe.slots < 2:
        return f"the target works on one request at a time: {ROWS} rows cost {_steps(probe)}"
    return f"lanes don't pay here: {ROWS} rows and their draft cost {_steps(probe)}"


def _steps(probe: Probe) -> str:
    if probe.step <= 0:
        return "no known number of target steps"
    return f"{(probe.rows + probe.draft) / probe.step:.1f} target steps"
