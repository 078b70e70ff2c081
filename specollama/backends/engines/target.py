"""Route `scoring`: a target on an engine that takes token ids and scores a whole draft in one request.

The target stores the token ids that the engine sampled and sends them back in the next request, so no text is tokenised
again. It verifies drafted tokens by id against the engine's own sample at each place (rules greedy and match). The
engine samples with all options, and needn't return a distribution.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from specollama.backends.engines.base import (
    REPLACEMENT,
    DrawSettings,
    Engine,
    PromptPosition,
    SampledToken,
    ScoringRequest,
    score_request,
)
from specollama.backends.engines.token_texts import TokenTexts
from specollama.errors import EndpointError, Refused
from specollama.spec_decode.types import (
    DoneReason,
    Draft,
    TargetContinuation,
    TargetRow,
    TargetScores,
    Token,
    VerifyResult,
)

_LONGEST_CHARACTER = 8  # tokens; a longer incomplete character is written with REPLACEMENT
_UNSPELT = "the engine doesn't tell what a character of several tokens prints"


@dataclass(slots=True)
class ScoringTarget:
    """The target of one reply.

    `tokens`: prompt and reply so far; the first `prompt_tokens` of them are the prompt, and the target appends to them.
    `by_row`: each row is a request of its own, with the seed of its position. `messages`: a chat whose tokens aren't
    known; the target can only stream the reply to it.
    """

    engine: Engine
    tokens: list[int]
    draws: DrawSettings
    token_texts: TokenTexts
    prompt_tokens: int
    messages: Sequence[Mapping[str, Any]] = ()
    context_length: int | None = None
    by_row: bool = False
    _hidden: SampledToken | None = None  # the sampled token without text at which the last round ended
    _widest: int = 0  # rows of the widest request so far

    async def score(self, draft: Draft) -> TargetScores:
        room = None if self.context_length is None else max(0, self.context_length - len(self.tokens) - 1)
        drafted = (await self.token_texts.retokenize(draft))[:room]
        request = ScoringRequest(self._place(), [token for token, _ in drafted])
        drawn = await self._rows(request)
        # A slot that wasn't used before prefills the whole text first.
        read, self._widest = (len(self.tokens) if len(drawn) > self._widest else 0), max(len(drawn), self._widest)
        return TargetScores(
            self._rows_along(drafted, drawn), rows_requested=len(drawn), follows_target=True, prefilled_tokens=read
        )

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        for emitted in verdict.emitted:
            assert emitted.token.id is not None, "rows give ids"
            self.tokens.append(emitted.token.id)
        if verdict.end:
            return TargetContinuation()
        if self._full:
            return TargetContinuation(end=DoneReason.LENGTH)
        if verdict.hidden or not verdict.emitted:
            return await self._decode_character(self._hidden if verdict.hidden else None, limit)
        return TargetContinuation()

    async def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        pieces = (
            self.engine.chat(self.messages, limit, self.draws)
            if self.messages
            else self.engine.stream(self._place(), self._bounded_limit(limit), self.draws)
        )
        async with aclosing(pieces) as stream:
            async for written in stream:
                if written.text:
                    yield Token(written.text)
                if written.end:
                    yield TargetContinuation(sampled=written.hidden_tokens, end=written.end, reason=written.missing)
                    return

    def _bounded_limit(self, limit: int | None) -> int | None:
        """The limit, at most the room in the context: engines refuse more.

        Without a limit some engines stop after 16 or 128 tokens, so the room is the limit then.
        """
        if self.context_length is None:
            return limit
        room = max(1, self.context_length - len(self.tokens))
        return room if limit is None else min(limit, room)

    def _place(self) -> PromptPosition:
        return PromptPosition(self.tokens, len(self.tokens) - self.prompt_tokens)

    @property
    def _full(self) -> bool:
        return self.context_length is not None and len(self.tokens) + 1 > self.context_length

    async def _rows(self, request: ScoringRequest) -> list[SampledToken | None]:
        """Score the rows, and retry once: the server may be busy, or may have closed an idle connection."""
        try:
            return await score_request(self.engine, request, self.draws, by_row=self.by_row)
        except EndpointError as error:
            if isinstance(error, Refused) and error.status < 500:
                raise  # the server would refuse the same request again
            return await score_request(self.engine, request, self.draws, by_row=self.by_row)

    def _rows_along(
        self, drafted: Sequence[tuple[int, str]], drawn: Sequence[SampledToken | None]
    ) -> dict[int, TargetRow]:
        """The rows by text offset, up to the first draft token that the target didn't sample."""
        rows, offset = dict[int, TargetRow](), 0
        for row, (token, text) in zip(drawn, [*drafted, (-1, "")], strict=True):
            if row is None:
                break
            rows[offset] = self._row(row)
            if row.token != token or row.end or row.text != text:
                break
            offset += len(text)
        return rows

    def _row(self, drawn: SampledToken) -> TargetRow:
        if drawn.end:
            return TargetRow(None, end=True)
        if not drawn.text:
            self._hidden = drawn
            return TargetRow(None)
        self.token_texts.record(drawn.token, drawn.text)
        return TargetRow(Token(drawn.text, drawn.logprob, drawn.token), top=drawn.top)

    async def _decode_character(self, drawn: SampledToken | None, limit: int | None) -> TargetContinuation:
        """Sample tokens until they complete a character. `drawn`: the first of them, if it was sampled already."""
        sampled, part = 0, list[int]()
        while limit is None or sampled < limit:
            if drawn is None:
                [drawn] = await self._rows(ScoringRequest(self._place()))
            if drawn is None:
                return TargetContinuation(lost=True, reason="the engine gave no token")
            if drawn.end:
                return self._continuation("", sampled, DoneReason.STOP)
            if not drawn.text and not self.engine.capabilities.detokenizes:
                return TargetContinuation(
                    lost=True, reason=_UNSPELT
                )  # the stream repeats this token, with the same seed
            self.tokens.append(drawn.token)
            sampled, part = sampled + 1, [*part, drawn.token]
            text, whole = await self._detokenized(part, drawn)
            if text or self._full:
                return self._continuation(text, sampled, DoneReason.LENGTH if self._full else None)
            part, drawn = [] if whole else part, None
        return self._continuation("", sampled, DoneReason.LENGTH)

    async def _detokenized(self, part: Sequence[int], last: SampledToken) -> tuple[str, bool]:
        """The text of these tokens together, and whether it is complete; control tokens have the text ""."""
        if len(part) == 1 and last.text:
            return last.text, True
        [text] = await self.engine.detokenize([part])
        if text.endswith(REPLACEMENT) and len(part) < _LONGEST_CHARACTER:
            return "", False
        return ("" if len(part) == 1 else text), True

    def _continuation(self, text: str, sampled: int, end: DoneReason | None) -> TargetContinuation:
        return TargetContinuation((Token(text),) if text else (), sampled, end=end)
