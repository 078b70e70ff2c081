"""Verification of drafted tokens under three acceptance rules. Pure: no I/O, and the random generator is an argument.

- *greedy*: accept the drafted token if it is the target's most probable one.
- *rejection*: accept it with probability min(1, p/q); otherwise sample a recovered token from max(0, p - q),
  normalised (Leviathan et al. 2023, algorithm 1).
- *match*: emit the target's own sample, and continue while it equals the draft. This is lossless at any setting.
  At temperature 0 the sample is the most probable token, so that greedy equals match there.

Independence: which rule applies at a position, and whether the position is tested, depends on the tokens before it,
on the options, on the row and on q; never on the drafted token, a later one, or the target's sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from random import Random

from specollama.spec_decode.types import (
    AcceptanceMethod,
    Distribution,
    Draft,
    Origin,
    OutputToken,
    TargetRow,
    TargetScores,
    Token,
    VerifyResult,
)

_SEED_MASK = 0x7FFFFFFF


def position_seed(base: int, position: int) -> int:
    """Return the sampling seed of a position in the reply: 0 to 2**31 - 1, a function of the arguments alone.

    A server seeds its generator anew for each request, so that one seed for all requests would correlate the samples.
    No two positions of a reply share a seed: each step is a bijection of 31 bits.
    """
    digest = hashlib.blake2b(str(base).encode(), digest_size=4).digest()
    mixed = (int.from_bytes(digest, "big") + position) & _SEED_MASK
    for factor in (0x45D9F3B, 0x119DE1F3):  # odd, so that the multiplication is invertible
        mixed = ((mixed ^ (mixed >> 15)) * factor) & _SEED_MASK
    return mixed ^ (mixed >> 15)


def renormalize_visible(
    tokens: Sequence[Token], probabilities: Sequence[float], distinct: frozenset[str]
) -> Distribution | None:
    """Return the distribution over the tokens that print text, given that one of these is sampled.

    Tokens without text are hidden (Ollama prints "" for the end, control tokens and fragments of characters).
    Returns None if a text isn't in `distinct` (several tokens print it, and one of them may be hidden), or if no
    token prints text.
    """
    shown = [(token.text, p) for token, p in zip(tokens, probabilities, strict=False) if token.text]
    total = sum(p for _, p in shown)
    if total <= 0 or any(text not in distinct for text, _ in shown):
        return None
    return {text: p / total for text, p in shown}


def accepts(token: str, p: Distribution, q: Distribution, random: Random) -> bool:
    """Whether to accept a token that was sampled from q: True with probability min(1, p/q)."""
    return random.random() * q[token] < p.get(token, 0.0)


def residual(p: Distribution, q: Distribution) -> Distribution:
    """Return max(0, p - q), normalised: the distribution of the recovered token after a rejection."""
    excess = {token: max(0.0, weight - q.get(token, 0.0)) for token, weight in p.items()}
    total = sum(excess.values())
    return {token: weight / total for token, weight in excess.items()} if total > 0 else p


def sample_from(distribution: Distribution, random: Random) -> str:
    """Sample one token by inverting the cumulative distribution."""
    point = random.random()
    token = ""
    for token, weight in distribution.items():
        point -= weight
        if point < 0:
            return token
    return token  # the weights add up to slightly less than 1 because of rounding


def verify(draft: Draft, scored: TargetScores, rule: AcceptanceMethod, random: Random) -> VerifyResult:
    """Accept the longest prefix of the draft that the target agrees with, and add one recovered or bonus token.

    Under REJECTION a position uses the rejection rule if p and q are both known, and match otherwise. Any other rule
    uses match throughout. Verification compares text: with different tokenizers a target token may span several
    drafted tokens, or end inside one. It stops at a position without a row. It also stops after a token that differs
    from the drafted one, unless the rows follow the target's own tokens. If the draft is empty, the emitted token
    has the origin PLAIN.
    """
    text, place_of = draft.text, _token_starts(draft)
    offset, emitted = 0, list[OutputToken]()
    while (row := scored.rows.get(offset)) is not None:
        if row.sample is None:
            return _result(draft, emitted, offset, row, contradicted=offset < len(text))
        if offset == len(text):
            emitted.append(OutputToken(row.sample, Origin.BONUS if draft.tokens else Origin.PLAIN, row.top))
            break
        place = place_of.get(offset) if rule is AcceptanceMethod.REJECTION else None
        settled = _verify_position(draft, place, row, text[offset:], random)
        emitted.append(settled)
        if settled.origin is not Origin.ACCEPTED:
            return _result(draft, emitted, offset, row, contradicted=True)
        spans = place_of.get(offset) is None or draft.tokens[place_of[offset]].text != settled.token.text
        offset += len(settled.token.text)
        if spans and not scored.follows_target:
            break
    return _result(draft, emitted, offset, None, contradicted=False)


def _verify_position(draft: Draft, place: int | None, row: TargetRow, rest: str, random: Random) -> OutputToken:
    q = draft.q[place] if place is not None and place < len(draft.q) else None
    if place is not None and row.p is not None and q is not None:
        token = draft.tokens[place].text
        if accepts(token, row.p, q, random):
            return OutputToken(_token_with_text(token, row), Origin.ACCEPTED, row.top)
        return OutputToken(_token_with_text(sample_from(residual(row.p, q), random), row), Origin.RECOVERED, row.top)
    assert row.sample is not None
    agreed = rest.startswith(row.sample.text)
    return OutputToken(row.sample, Origin.ACCEPTED if agreed else Origin.RECOVERED, row.top)


def _token_with_text(text: str, row: TargetRow) -> Token:
    return next((token for token in row.top if token.text == text), Token(text))


def _token_starts(draft: Draft) -> dict[int, int]:
    """Index of each drafted token by the offset at which it starts, in characters."""
    starts, offset = {}, 0
    for place, token in enumerate(draft.tokens):
        starts[offset] = place
        offset += len(token.text)
    return starts


def _result(
    draft: Draft, emitted: Sequence[OutputToken], offset: int, row: TargetRow | None, *, contradicted: bool
) -> VerifyResult:
    accepted = _tokens_within(draft, offset)
    begun = (
        sum(len(token.text) for token in draft.tokens[:accepted]) < offset
    )  # the last accepted text ends inside a drafted token
    return VerifyResult(
        emitted=tuple(emitted),
        drafted=len(draft.tokens),
        tested=min(accepted + (contradicted or begun), len(draft.tokens)),
        accepted=accepted,
        end=row is not None and row.end,
        hidden=row is not None and row.hidden,
    )


def _tokens_within(draft: Draft, offset: int) -> int:
    """Number of drafted tokens that end within the first `offset` characters of the draft."""
    count, end = 0, 0
    for token in draft.tokens:
        end += len(token.text)
        if end > offset:
            break
        count += 1
    return count


def truncate_result(verdict: VerifyResult, draft: Draft, kept: int) -> VerifyResult:
    """Return the result cut to its first `kept` tokens, for a reply that ended there.

    The target's end of sequence is dropped too, since a stop string ended the reply before it.
    """
    emitted = verdict.emitted[:kept]
    agreed = sum(len(e.token.text) for e in emitted if e.origin is Origin.ACCEPTED)
    rejected = any(e.origin is Origin.RECOVERED for e in emitted)
    return _result(draft, emitted, agreed, None, contradicted=rejected)
