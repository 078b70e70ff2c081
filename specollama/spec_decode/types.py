"""The values that everything else is written in.

The words are those of Leviathan, Kalman and Matias (ICML 2023, arXiv 2211.17192) and of vLLM's sampler:
a round drafts some tokens, scores them, and accepts a prefix; the token that replaces the first rejected one
is *recovered*; the extra one when all were accepted is the *bonus*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Origin(StrEnum):
    """Origin of an emitted token."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"  # decoded by the target alone: nothing was drafted at this position


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
    NATIVE = "native"  # by the engine itself
    PLAIN = "plain"


class ServerApi(StrEnum):
    """The API that a model's server speaks."""

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
    """One token as a server shows it.

    `logprob` is the natural logarithm of the softmax of the raw logits, before penalties, temperature and cuts. `id`
    is its place in the target's vocabulary, where the backend knows it.
    """

    text: str
    logprob: float | None = None
    id: int | None = None


Distribution = Mapping[str, float]
"""Probabilities of the tokens that have a text of their own, by that text; they add up to 1."""


@dataclass(frozen=True, slots=True)
class TargetRow:
    """The target's output at one position.

    `sample` is the target's own draw under all sampling options. It is None when the draw has no text of its
    own: at the end of the sequence (`end`), or when it is hidden (a control token, a fragment of a character).
    `top` holds the most probable tokens, at most 20, most probable first; empty when the server gives none.
    `p` is the sampler's exact distribution given that the draw isn't hidden, and only where any token of it may
    be emitted; None otherwise (the rule is then match). It never depends on `sample`.
    """

    sample: Token | None
    end: bool = False
    top: tuple[Token, ...] = ()
    p: Distribution | None = None

    @property
    def hidden(self) -> bool:
        return self.sample is None and not self.end


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The sampling options of a request at their effective value, under Ollama's names.

    The defaults are those of Ollama >= 0.32.10. `seed` None: fresh randomness for each reply.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    num_predict: int = -1  # tokens; 0 and below: no limit
    stop: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the distribution (raw log-probabilities then don't show it)."""
        penalties = self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return penalties and self.repeat_last_n != 0


@dataclass(frozen=True, slots=True)
class Draft:
    """The tokens drafted in one round.

    `q[i]` is the distribution that `tokens[i]` was drawn from, given that the draw had a text of its own; None
    where it is unknown (the rule is then match). It never depends on `tokens[i]` or on a later token.

    `source` names the drafter, and `confidence[i]` is how sure it was at that place, 0 to 1: a model's probability of
    its best token. It never depends on `tokens[i]` either; empty where it isn't known. `step_seconds` are the seconds
    that each token took, the first with `prefilled_tokens` tokens of the text that had to be read before.
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
        """The draft cut to its first `count` tokens; its costs stay."""
        return replace(self, tokens=self.tokens[:count], q=self.q[:count], confidence=self.confidence[:count])

    def drop_first(self, count: int) -> Draft:
        """The draft without its first `count` tokens; its costs stay."""
        return replace(self, tokens=self.tokens[count:], q=self.q[count:], confidence=self.confidence[count:])


@dataclass(frozen=True, slots=True)
class TargetScores:
    """The target's rows for one draft, by the offset in characters into the draft's text at which each stands.

    A row at offset 0 is what follows the text so far; one at `len(draft.text)` gives the bonus token. `follows_target`:
    they follow the target's own tokens; else the drafted ones, and a row beyond a token of the target's that spans
    several of those stands after others than were emitted. `prefilled_tokens`: tokens of the text that the target had
    to read before it could give the rows.
    """

    rows: Mapping[int, TargetRow]
    rows_requested: int = 0  # rows requested from the server
    follows_target: bool = False
    prefilled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutputToken:
    """A token that a round emitted: its origin, and the target's most probable tokens there."""

    token: Token
    origin: Origin
    top: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The outcome of one round.

    `tested` counts the drafted tokens that were judged: those accepted, and the first rejected one. `end`: the
    target drew its end of sequence after `emitted`. `hidden`: it drew a token without text there.
    """

    emitted: tuple[OutputToken, ...] = ()
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    end: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round's outcome and its cost in seconds. The first `result.drafted` tokens of `draft` were sent."""

    draft: Draft
    result: VerifyResult
    draft_seconds: float = 0.0
    score_seconds: float = 0.0
    prefilled_tokens: int = 0  # tokens that the target prefilled in this round


@dataclass(frozen=True, slots=True)
class TargetContinuation:
    """Tokens that the target decoded alone, until it could be asked for rows again.

    `sampled` counts the tokens behind `tokens`: more than those where a character took several. `end`: the reply
    is over, `reason`: not as asked for. `lost`: the target can't be asked again, and the rest of the reply has to
    be one plain stream, for the reason `reason`. `extensions`: requests that it took.
    """

    tokens: tuple[Token, ...] = ()
    sampled: int = 0
    end: DoneReason | None = None
    lost: bool = False
    reason: str = ""
    extensions: int = 0
