"""Ollama models as drafters and targets, through raw requests for a prompt that was rendered once.

Ollama can't score tokens that are given to it: log-probabilities come for generated tokens only. A row costs a
request for one token; N+1 rows are asked at once, and share the target's passes where it has the slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specollama.backends.http import send_in_order
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import GenerateReply, Logprob
from specollama.errors import BrokenReply, EndpointError, Refused
from specollama.spec_decode.acceptance import position_seed, renormalize_visible
from specollama.spec_decode.retokenization import CountedPath, CutPoint, ExactPath, TokenPath
from specollama.spec_decode.sampler_support import support
from specollama.spec_decode.types import (
    AcceptanceMethod,
    Distribution,
    DoneReason,
    Draft,
    TargetContinuation,
    TargetRow,
    TargetScores,
    Token,
    VerifyResult,
)

# Tokens that a request is extended by to get back to a good cut, try by try; characters take up to 4.
_EXTENSIONS = (4, 6, 12, 24)
_FULL = "the context is full"
_NO_THINKING = "the server takes thinking out of raw replies"
REPLACEMENT = "\ufffd"  # what a Go runner prints for a fragment of a character

ReplyObserver = Callable[[GenerateReply], None]


def unnoted(reply: GenerateReply) -> None:
    """Default observer: does nothing."""


class ParallelTarget:
    """Route `lanes`: a round's rows as concurrent requests, longest first.

    Longest first, because a server that splits its cache gives each row the slot that holds most of it.
    `seed` is the reply's base for the position seeds; `context_length` the target's, in tokens, None if
    unknown; `row_tokens` what num_predict has to be for one token to come (2 where a server loses one). `note`
    is told of every reply.
    """

    def __init__(
        self,
        server: OllamaServer,
        requests: RequestTemplate,
        cursor: TokenPath,
        *,
        rule: AcceptanceMethod,
        seed: int,
        context_length: int | None = None,
        row_tokens: int = 1,
        note: ReplyObserver = unnoted,
    ) -> None:
        self._server = server
        self._requests = requests
        self._cursor = cursor
        self._rule = rule
        self._seed = seed
        self._context_length = context_length
        self._row_tokens = row_tokens
        self._note = note
        self._trouble: str | None = None
        self._extensions = 0  # requests of the extension under way

    async def score(self, draft: Draft) -> TargetScores:
        texts = [token.text for token in draft.tokens]
        cuts = [cut for cut in self._cursor.cut_points(texts) if self._fits(cut)]
        replies = await self._rows(cuts)
        rows: dict[int, TargetRow] = {}
        for cut, reply in zip(cuts, replies, strict=True):
            if isinstance(reply, EndpointError) or not self._cursor.confirm(cut, reply.prompt_eval_count):
                break
            rows[len(cut.text) - len(cuts[0].text)] = self._row(cut, reply)
        return TargetScores(rows, rows_requested=len(cuts))

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        self._cursor.advance([emitted.token.text for emitted in verdict.emitted])
        if self._trouble:
            return TargetContinuation(lost=True, reason=self._trouble)
        asked = verdict.hidden or self._cursor.is_stuck
        continuation = await self._extend(limit) if asked else TargetContinuation()
        if continuation.lost or continuation.end or self._fits(self._cursor.cut_points([])[0]):
            return continuation
        return replace(continuation, lost=True, reason=_FULL)

    async def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        """From the anchor on, with its seed; what the reply already has beyond it is checked and left out."""
        behind, shown = "".join(self._cursor.pending), self._cursor.sampled
        body = self._request(self._cursor.anchor, None if limit is None else limit + self._cursor.sampled)
        async with aclosing(self._server.stream_generate(body)) as chunks:
            async for chunk in chunks:
                if chunk.thinking:
                    raise _without_thinking(self._server)
                text = chunk.response
                if behind:
                    overlap = _split_after(text, behind)
                    if overlap is None or (chunk.done and overlap[1]):
                        break  # the target drew otherwise this time
                    text, behind = overlap
                if text:
                    shown += 1
                    yield Token(text, chunk.logprobs[0].logprob if chunk.logprobs else None)
                if chunk.done:
                    yield _end_of_stream(chunk, shown)
                    return
        self._resync_after_redraw()
        async with aclosing(self.stream(limit)) as rest:
            async for token in rest:
                yield token

    def _fits(self, cut: CutPoint, *, drawn: int = 1) -> bool:
        """Whether the reply can be sent again after so many more tokens: a prompt that fills the context is refused."""
        tokens = self._cursor.prompt_tokens_at(cut)
        return self._context_length is None or tokens is None or tokens + drawn < self._context_length

    async def _rows(self, cuts: Sequence[CutPoint]) -> list[GenerateReply | EndpointError]:
        """One reply a cut, in order, or what it failed with. That of the first cut must come, where there is one."""
        replies = (await send_in_order(partial(self._request_row, cut) for cut in reversed(cuts)))[::-1]
        if replies and isinstance(replies[0], EndpointError):
            raise replies[0]
        if failed := [reply for reply in replies if isinstance(reply, EndpointError)]:
            self._trouble = f"a row failed twice: {failed[0]}"
        return replies

    async def _request_row(self, cut: CutPoint, sent: asyncio.Event) -> GenerateReply | EndpointError:
        """One row, or why it can't be had."""
        try:
            return await self._generate_with_retry(self._request(cut, self._row_tokens), sent)
        except EndpointError as error:
            return error

    async def _generate_with_retry(self, body: dict[str, Any], sent: asyncio.Event | None = None) -> GenerateReply:
        """Asked once more where it failed: a busy server, or a kept connection that had gone."""
        try:
            return await self._generate(body, sent)
        except EndpointError as error:
            if isinstance(error, Refused) and error.status < 500:
                raise  # asked again it would be refused again
            return await self._generate(body)

    async def _generate(self, body: dict[str, Any], sent: asyncio.Event | None = None) -> GenerateReply:
        reply = await self._server.generate(body, sent)
        self._note(reply)
        if reply.thinking:
            self._trouble = _NO_THINKING
        return reply

    def _request(self, cut: CutPoint, num_predict: int | None) -> dict[str, Any]:
        seed = position_seed(self._seed, cut.position)
        return self._requests.raw(cut.text, num_predict=num_predict, seed=seed)

    def _row(self, cut: CutPoint, reply: GenerateReply) -> TargetRow:
        entry = reply.logprobs[0] if reply.logprobs else None
        text = entry.token if entry else reply.response
        if not reply.response or REPLACEMENT in text:
            return TargetRow(None, end=not reply.response and reply.done_reason == "stop")
        top = top_tokens(entry)
        return TargetRow(Token(text, entry.logprob if entry else None), top=top, p=self._distribution(cut, top))

    def _distribution(self, cut: CutPoint, top: Sequence[Token]) -> Distribution | None:
        """p, where any token of it may follow: exactly known, and none that leads off the path."""
        if self._rule is not AcceptanceMethod.REJECTION or not isinstance(self._cursor, ExactPath):
            return None
        probabilities = support(top, self._requests.options)
        if probabilities is None or not self._cursor.stays_aligned(cut, top[: len(probabilities)]):
            return None
        return renormalize_visible(top, probabilities, self._cursor.vocabulary.unambiguous_texts)

    async def _extend(self, limit: int | None) -> TargetContinuation:
        """Issue the anchor's request again, with its seed and a larger num_predict, until a good cut is reached.

        The same seed, because it is the same draw that is wanted, seen further: another that takes whatever
        comes would be biased. The tokens up to the earliest good cut are kept, and the rest is dropped; the end of
        the reply counts only where no good cut comes before it.
        """
        beyond, behind, position = list(self._cursor.pending), self._cursor.sampled, self._position
        hidden = not self._cursor.is_stuck  # it is the next token that has no text of its own
        self._extensions = 0
        for tokens in self._extension_sizes(hidden=hidden):
            longest = limit is not None and tokens >= limit
            size = behind + (limit if longest and limit is not None else tokens)
            if not self._fits(self._cursor.anchor, drawn=size):
                return TargetContinuation(lost=True, reason=_FULL, extensions=self._extensions)
            written = await self._again(size)
            if written.texts[: len(beyond)] != beyond:
                return self._resync_after_redraw()
            end = written.end or (DoneReason.LENGTH if longest else None)
            used = await self._rejoin(written, hidden=hidden, ends=end is not None)
            if used is not None:
                new, count = written.texts[len(beyond) : used], self._position - position
                return TargetContinuation(tuple(map(Token, new)), count, extensions=self._extensions)
            if end is not None:
                new, count = written.texts[len(beyond) :], written.sampled - behind
                return TargetContinuation(tuple(map(Token, new)), count, end=end, extensions=self._extensions)
        why = "the text can't be sent again as it was sampled"
        return TargetContinuation(lost=True, reason=why, extensions=self._extensions)

    def _extension_sizes(self, *, hidden: bool) -> tuple[int, ...]:
        """Tokens to extend by, try by try. The next token alone may reach a good cut, where a tokenizer can tell.

        Without one, each extension repeats all tokens since the anchor, so that small steps would cost most.
        """
        return _EXTENSIONS if hidden or not isinstance(self._cursor, ExactPath) else (1, *_EXTENSIONS)

    async def _rejoin(self, written: _Written, *, hidden: bool, ends: bool) -> int | None:
        """Move to the earliest good cut; how many of the texts lead there, None where no cut is good.

        Whether a cut is good may depend on the tokens before it alone. So, where hidden tokens came, those up to the
        cut are asked for by themselves, which shows whether the hidden ones lie behind it.
        """
        texts, sampled = written.texts, written.sampled
        used = None if hidden else self._cursor.count_to_first_aligned(texts[: written.clear])
        if used is not None and (sampled == len(texts) or (await self._again(used)).texts == texts[:used]):
            return self._cursor.resync(texts[:used], used)
        if ends or written.clear < len(texts) or len(texts) <= len(self._cursor.pending):
            return None
        return self._cursor.resync(texts, sampled)

    async def _again(self, size: int) -> _Written:
        """The first `size` tokens of what the target wrote from the anchor on: the same draws each time."""
        self._extensions += 1
        lost = self._row_tokens - 1  # tokens that the server draws and doesn't show
        return _reply_tokens(await self._generate_with_retry(self._request(self._cursor.anchor, size + lost)), size)

    @property
    def _position(self) -> int:
        """The tokens of the reply so far."""
        return self._cursor.anchor.position + self._cursor.sampled

    def _resync_after_redraw(self) -> TargetContinuation:
        """The target drew otherwise this time: go on from the text as it stands, and say so."""
        anchor, beyond = self._cursor.anchor, self._cursor.pending
        self._cursor = CountedPath(anchor.text + "".join(beyond), self._position)
        return TargetContinuation(
            lost=True, reason="the target answered the same request differently", extensions=self._extensions
        )


class StreamTarget:
    """Route `greedy`: the target's own reply, one plain stream, compared with the drafts as it comes.

    Never faster than plain, always the same text, and it measures acceptance; needs neither slots nor
    log-probabilities.
    """

    def __init__(
        self, server: OllamaServer, requests: RequestTemplate, prompt: str, *, limit: int | None, seed: int | None
    ) -> None:
        body = requests.raw(prompt, num_predict=limit, seed=seed)
        self._server = server
        self._chunks = server.stream_generate(body)
        self._shown = 0  # tokens
        self._ended: TargetContinuation | None = None
        self._parted = False  # the server took thinking out of the reply

    async def score(self, draft: Draft) -> TargetScores:
        text, offset = draft.text, 0
        rows: dict[int, TargetRow] = {}
        while (token := await self._next()) is not None:
            rows[offset] = TargetRow(token)
            if offset == len(text) or not text.startswith(token.text, offset):
                return TargetScores(rows, rows_requested=len(rows), follows_target=True)
            offset += len(token.text)
        if self._ended and self._ended.end is DoneReason.STOP:
            rows[offset] = TargetRow(None, end=True)
        return TargetScores(rows, rows_requested=len(rows), follows_target=True)

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        if self._parted:
            return TargetContinuation(lost=True, reason=_NO_THINKING)
        return self._ended or TargetContinuation()

    async def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        while (token := await self._next()) is not None:
            yield token
        if self._parted:
            raise _without_thinking(self._server)
        yield self._ended or TargetContinuation(end=DoneReason.STOP)

    async def aclose(self) -> None:
        await self._chunks.aclose()

    async def _next(self) -> Token | None:
        """The next token; None at the end of the stream, whose reason is kept, or where it isn't whole any more."""
        while self._ended is None and not self._parted:
            chunk = await anext(self._chunks)
            if chunk.thinking:
                self._parted = True
                return None
            if chunk.done:
                self._ended = _end_of_stream(chunk, self._shown)
            if chunk.response:
                self._shown += 1
                return Token(chunk.response, chunk.logprobs[0].logprob if chunk.logprobs else None)
        return None


@dataclass(frozen=True, slots=True)
class _Written:
    """The texts of the tokens that a reply shows, and how many it sampled, its end not counted.

    Those are more than the texts where some tokens have none of their own. `end` where the target ended its reply.
    """

    texts: list[str]
    sampled: int
    end: DoneReason | None

    @property
    def clear(self) -> int:
        """How many texts come before the first with bytes that are no text: no prompt gives those back."""
        return next((place for place, text in enumerate(self.texts) if REPLACEMENT in text), len(self.texts))


def top_tokens(entry: Logprob | None) -> tuple[Token, ...]:
    """The most probable tokens of an entry."""
    listed = entry.top_logprobs if entry else None
    return tuple(Token(alternative.token, alternative.logprob) for alternative in listed or ())


def _reply_tokens(reply: GenerateReply, limit: int) -> _Written:
    """What a reply of at most `limit` tokens shows of them.

    A server that shows each fragment of a character as an entry has the whole character in the response alone: from
    the first entry on that isn't the response's own text, the rest of it is one text.
    """
    texts, place = list[str](), 0
    for entry in reply.logprobs or ():
        if not reply.response.startswith(entry.token, place):
            break
        texts.append(entry.token)
        place += len(entry.token)
    texts += [reply.response[place:]] if place < len(reply.response) else []
    ended = reply.done_reason == "stop"
    sampled = min((reply.eval_count or len(texts) + ended) - ended, limit)
    return _Written(texts, max(sampled, len(texts)), DoneReason.STOP if ended else None)


def _split_after(text: str, behind: str) -> tuple[str, str] | None:
    """What of `text` comes after `behind`, and what of `behind` is still to come; None where they differ."""
    if behind.startswith(text):
        return "", behind[len(text) :]
    return (text.removeprefix(behind), "") if text.startswith(behind) else None


def _end_of_stream(last: GenerateReply, shown: int) -> TargetContinuation:
    """The end of a stream that showed so many tokens; its own count has those without text too, and the end."""
    end = DoneReason.LENGTH if last.done_reason == "length" else DoneReason.STOP
    hidden = (last.eval_count or 0) - shown - (end is DoneReason.STOP)
    return TargetContinuation(sampled=max(0, hidden), end=end)


def _without_thinking(server: OllamaServer) -> BrokenReply:
    return BrokenReply(f"{server.url}: {_NO_THINKING}: the rest of this one would not be whole", url=server.url)
