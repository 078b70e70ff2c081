"""Route `scoring`: a target on an engine that takes token ids and scores a whole draft in one request.

The reply is kept as the ids that the engine drew, so that what it is asked next is exactly what it wrote: no text is
tokenised again. Drafted tokens are judged by id against what the engine draws itself at each place, with its own
sampler and all options (rules greedy and match): nothing of a distribution has to be visible for that.
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

_LONGEST_CHARACTER = 8  # tokens; what is no character by then is printed as it is
_UNSPELT = "the engine doesn't tell what a character of several tokens prints"


@dataclass(slots=True)
class ScoringTarget:
    """One reply.

    `tokens`: all of its text so far, the first `prompt_tokens` of them the prompt's; the target adds to them. `by_row`:
    each row is a request of its own, with the seed of its place. `messages`: a chat whose tokens aren't known, which
    can only be streamed.
    """

    engine: Engine
    tokens: list[int]
    draws: DrawSettings
    token_texts: TokenTexts
    prompt_tokens: int
    messages: Sequence[Mapping[str, Any]] = ()
    context_length: int | None = None
    by_row: bool = False
    _hidden: SampledToken | None = None  # the draw without text at which the last verdict ended
    _widest: int = 0  # rows of the widest request so far

    async def score(self, draft: Draft) -> TargetScores:
        room = None if self.context_length is None else max(0, self.context_length - len(self.tokens) - 1)
        drafted = (await self.token_texts.retokenize(draft))[:room]
        request = ScoringRequest(self._place(), [token for token, _ in drafted])
        drawn = await self._rows(request)
        # Slots that weren't used before read the whole text first.
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
        asked = (
            self.engine.chat(self.messages, limit, self.draws)
            if self.messages
            else self.engine.stream(self._place(), self._bounded_limit(limit), self.draws)
        )
        async with aclosing(asked) as stream:
            async for written in stream:
                if written.text:
                    yield Token(written.text)
                if written.end:
                    yield TargetContinuation(sampled=written.hidden_tokens, end=written.end, reason=written.missing)
                    return

    def _bounded_limit(self, limit: int | None) -> int | None:
        """Without a limit some engines stop after 16 or 128 tokens; one beyond the context they refuse."""
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
        """Retry once: the server was busy, or a kept connection had gone."""
        try:
            return await score_request(self.engine, request, self.draws, by_row=self.by_row)
        except EndpointError as error:
            if isinstance(error, Refused) and error.status < 500:
                raise  # asked again it would be refused again
            return await score_request(self.engine, request, self.draws, by_row=self.by_row)

    def _rows_along(
        self, drafted: Sequence[tuple[int, str]], drawn: Sequence[SampledToken | None]
    ) -> dict[int, TargetRow]:
        """The rows as far as they follow what the target draws itself."""
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
        """The target's next character, however many tokens it takes; `drawn`: its first, where that is known."""
        sampled, part = 0, list[int]()
        while limit is None or sampled < limit:
            if drawn is None:
                [drawn] = await self._rows(ScoringRequest(self._place()))
            if drawn is None:
                return TargetContinuation(lost=True, reason="the engine gave no token")
            if drawn.end:
                return self._continuation("", sampled, DoneReason.STOP)
            if not drawn.text and not self.engine.capabilities.detokenizes:
                return TargetContinuation(lost=True, reason=_UNSPELT)  # the stream begins before it, with its seed
            self.tokens.append(drawn.token)
            sampled, part = sampled + 1, [*part, drawn.token]
            text, whole = await self._detokenized(part, drawn)
            if text or self._full:
                return self._continuation(text, sampled, DoneReason.LENGTH if self._full else None)
            part, drawn = [] if whole else part, None
        return self._continuation("", sampled, DoneReason.LENGTH)

    async def _detokenized(self, part: Sequence[int], last: SampledToken) -> tuple[str, bool]:
        """What the tokens of a character print together, and whether they are whole: control tokens print nothing."""
        if len(part) == 1 and last.text:
            return last.text, True
        [text] = await self.engine.detokenize([part])
        if text.endswith(REPLACEMENT) and len(part) < _LONGEST_CHARACTER:
            return "", False
        return ("" if len(part) == 1 else text), True

    def _continuation(self, text: str, sampled: int, end: DoneReason | None) -> TargetContinuation:
        return TargetContinuation((Token(text),) if text else (), sampled, end=end)
