"""Value types of speculative decoding: tokens, drafts, target rows, verification results, sampling options.

The terms are those of Leviathan, Kalman and Matias (ICML 2023, arXiv 2211.17192) and of vLLM's sampler:
a round drafts some tokens, scores them, and accepts a prefix; the token that replaces the first rejected one
is *recovered*; the extra one when all were accepted is the *bonus*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, get_type_hints


class Origin(StrEnum):
    """Origin of an emitted token."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"  # decoded by the target alone: there was no draft at this position


class AcceptanceMethod(StrEnum):
    """How a drafted token is verified."""

    AUTO = "auto"
    GREEDY = "greedy"
    REJECTION = "rejection"
    MATCH = "match"


class Route(StrEnum):
    """How a pair's drafts are verified."""

    AUTO = "auto"
    LOCAL = "local"
    LANES = "lanes"
    SCORING = "scoring"
    GREEDY = "greedy"
    NATIVE = "native"  # the engine itself drafts and verifies
    PLAIN = "plain"


class ServerApi(StrEnum):
    """HTTP API of a model's server."""

    OLLAMA = "ollama"
    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    LLAMA_SERVER = "llama-server"


class DoneReason(StrEnum):
    """Why a reply ended, in Ollama's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Token:
    """One token, as a server prints it.

    `logprob` is the natural logarithm of the softmax of the raw logits, before penalties, temperature and
    truncation (top_k, top_p, min_p). `id` is the token id in the target's vocabulary, if the backend knows it.
    """

    text: str
    logprob: float | None = None
    id: int | None = None


Distribution = Mapping[str, float]
"""Maps the text of a token to its probability. Covers the tokens that print text; the values add up to 1."""


@dataclass(frozen=True, slots=True)
class TargetRow:
    """The target's output at one position.

    `sample` is the token that the target sampled under all sampling options. It is None when the sampled token prints
    no text: at the end of the sequence (`end`), or when it is hidden (a control token, a fragment of a character).
    `top` holds the most probable tokens, at most 20, most probable first; empty when the server gives none.
    `p` is the sampler's exact distribution, given that the sampled token isn't hidden. It is set only if every token
    of it may be emitted; otherwise it is None and the match rule applies. It never depends on `sample`.
    """

    sample: Token | None
    end: bool = False
    top: tuple[Token, ...] = ()
    p: Distribution | None = None

    @property
    def hidden(self) -> bool:
        return self.sample is None and not self.end


def _option(default: Any, help: str, *, rebuilt: bool = False) -> Any:
    """A sampling option. `help`: its line on the command line.

    `rebuilt`: the samplers of this package work with it. One that isn't rebuilt is sent to servers only: replies that
    set it are not computed in process, and never accepted by rejection sampling.
    """
    return field(default=default, metadata={"help": help, "rebuilt": rebuilt})


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Effective sampling options of a request, under Ollama's names.

    This is the only list of them: requests, the configuration, flags and the embedded server's defaults derive from it.
    The defaults are those of Ollama >= 0.32.10. With `seed` None each reply gets a fresh random seed.
    """

    temperature: float = _option(0.8, "0: always the most probable token.", rebuilt=True)
    top_k: int = _option(40, "Draw from so many of the most probable tokens; 0: from all.", rebuilt=True)
    top_p: float = _option(
        0.9, "Draw from the most probable tokens that together reach this probability.", rebuilt=True
    )
    min_p: float = _option(0.0, "Leave out what is less probable than this share of the most probable.", rebuilt=True)
    typical_p: float = _option(1.0, "Locally typical sampling; 1: off.", rebuilt=True)
    repeat_last_n: int = _option(64, "Tokens that penalties look back on; -1: the whole context.", rebuilt=True)
    repeat_penalty: float = _option(1.0, "Above 1: repeated tokens become less probable.", rebuilt=True)
    presence_penalty: float = _option(0.0, "Subtracted from tokens that occurred.", rebuilt=True)
    frequency_penalty: float = _option(0.0, "Subtracted from tokens for each time they occurred.", rebuilt=True)
    seed: int | None = _option(None, "The same seed gives the same reply.", rebuilt=True)
    num_predict: int = _option(-1, "Most tokens of a reply; -1: no limit.", rebuilt=True)  # 0 and below: no limit
    stop: tuple[str, ...] = _option((), "End the reply before this text. Repeatable.", rebuilt=True)

    @property
    def not_rebuilt(self) -> list[str]:
        """The names of the options that are set and that only a server's sampler works with."""
        return [
            each.name
            for each in fields(self)
            if not each.metadata["rebuilt"] and getattr(self, each.name) != each.default
        ]

    @property
    def distribution(self) -> dict[str, Any]:
        """The options that shape the distribution of a token, by name: all but the seed and where a reply ends."""
        return {name: getattr(self, name) for name in DISTRIBUTION_OPTIONS}

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0

    @property
    def penalised(self) -> bool:
        """Whether penalties change the distribution. Raw log-probabilities don't include penalties."""
        penalties = self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalties and self.repeat_last_n != 0


DISTRIBUTION_OPTIONS = tuple(
    each.name for each in fields(SamplingOptions) if each.name not in ("seed", "num_predict", "stop")
)
"""The names of the options that shape the distribution of a token."""

_GIVEN_AS: Mapping[Any, Any] = {int | None: int, tuple[str, ...]: list[str]}  # by the type that this module keeps
OPTION_TYPES: Mapping[str, Any] = {
    name: _GIVEN_AS.get(kind, kind) for name, kind in get_type_hints(SamplingOptions).items()
}
"""The type of each sampling option's value, as requests, the configuration file and flags give it."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The tokens drafted in one round.

    `q[i]` is the distribution that `tokens[i]` was sampled from, given that the sampled token prints text. If it is
    None, it is unknown, and the match rule applies. It never depends on `tokens[i]` or on a later token.

    `source` names the drafter. `confidence[i]`, from 0 to 1, is the draft model's probability of its best token at
    that position. It never depends on `tokens[i]` either. The tuple is empty if the drafter gives no confidence.
    `step_seconds` are the seconds per drafted token; the first includes the prefill of `prefilled_tokens` tokens.
    """

    tokens: tuple[Token, ...] = ()
    q: tuple[Distribution | None, ...] = ()
    source: str = ""
    confidence: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    prefilled_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    def first(self, count: int) -> Draft:
        """Return the first `count` tokens of the draft. The timings stay those of the full draft."""
        return replace(self, tokens=self.tokens[:count], q=self.q[:count], confidence=self.confidence[:count])

    def drop_first(self, count: int) -> Draft:
        """Return the draft without its first `count` tokens. The timings stay those of the full draft."""
        return replace(self, tokens=self.tokens[count:], q=self.q[count:], confidence=self.confidence[count:])


@dataclass(frozen=True, slots=True)
class TargetScores:
    """The target's rows for one draft. The key is an offset into the draft's text, in characters.

    The row at offset 0 predicts the first token after the text so far; the row at `len(draft.text)` gives the bonus
    token. `follows_target`: each row was computed after the target's own tokens. Otherwise it was computed after the
    drafted tokens; after a target token that spans several of these, the next row then has another context than the
    emitted one. `prefilled_tokens`: tokens of the text that the target prefilled before it computed the rows.
    """

    rows: Mapping[int, TargetRow]
    rows_requested: int = 0  # rows that the server was requested to compute
    follows_target: bool = False
    prefilled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutputToken:
    """A token emitted by a round, with its origin and the target's most probable tokens at its position."""

    token: Token
    origin: Origin
    top: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The outcome of one round.

    `tested` counts the verified drafted tokens: those accepted, and the first rejected one. `end`: the target
    sampled its end of sequence after `emitted`. `hidden`: it sampled a token without text there.
    """

    emitted: tuple[OutputToken, ...] = ()
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    end: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Timings of a round in seconds, and its outcome. The target scored `draft.first(result.drafted)`."""

    draft: Draft
    result: VerifyResult
    draft_seconds: float = 0.0
    score_seconds: float = 0.0
    prefilled_tokens: int = 0  # tokens of the text that the target prefilled in this round


@dataclass(frozen=True, slots=True)
class TargetContinuation:
    """Tokens that the target decoded without drafts, up to a place where it can score again.

    `sampled` counts the sampled tokens; it exceeds `len(tokens)` if a character took several tokens. `end`: the reply
    is over; `reason` is then set if it ended differently from what the request asked for. `lost`: scoring is no longer
    possible, for the reason `reason`, and the rest of the reply must be one plain stream. `extensions`: requests sent.
    """

    tokens: tuple[Token, ...] = ()
    sampled: int = 0
    end: DoneReason | None = None
    lost: bool = False
    reason: str = ""
    extensions: int = 0
