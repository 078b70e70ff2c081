"""One item answered by a pair, with all that the log keeps of the reply."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.schema import Message
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.errors import EndpointError, RunError
from specollama.pairs.pair import Pair
from specollama.pairs.report import stats_object
from specollama.pairs.request import ChatInput
from specollama.spec_decode.events import Done, Text
from specollama.spec_decode.types import AcceptanceMethod, Route, Token
from specollama.tools.review.log_entries import ItemAnswered, Piece, text_digest
from specollama.tools.review.prompts import BatchItem

_SHOWN = 2  # most probable tokens at each place: the reply's own, and the best other
_DIGITS = 4  # of a log-probability


def seed_of(run_seed: int, id: str, attempt: int) -> int:
    """The seed of an item's attempt: the same after a crash as without one."""
    return int.from_bytes(hashlib.sha256(f"{run_seed} {attempt} {id}".encode()).digest()[:4]) >> 1


@dataclass(slots=True)
class _ReplyBuffer:
    """A reply as it comes."""

    pieces: list[Piece] = field(default_factory=list)
    thinking: str = ""

    def text(self, event: Text) -> None:
        if event.thinking:
            self.thinking += event.text
        elif event.text:
            self.pieces.append(_piece(event))


async def answer_item(
    pair: Pair, asked: BatchItem, attempt: int, seed: int | None, *, plain: bool = False
) -> ItemAnswered:
    """The reply to an item, speculated as the pair is unless it is to be `plain`. Raises as `Pair.reply` does."""
    chosen = pair.with_overrides(route=Route.PLAIN) if plain else pair
    options = {**asked.options, **({} if seed is None else {"seed": seed})}
    heard, done = _ReplyBuffer(), None
    async with aclosing(chosen.reply(ChatInput(asked.messages, options, top_logprobs=_SHOWN))) as events:
        async for event in events:
            if isinstance(event, Text):
                heard.text(event)
            elif isinstance(event, Done):
                done = event
    if done is None:
        raise RunError("the reply has no end")
    text = "".join(piece.text for piece in heard.pieces)
    return ItemAnswered(
        id=asked.id,
        attempt=attempt,
        messages=[message.body() for message in asked.messages],
        options=asked.options,
        metadata=asked.metadata,
        seed=seed,
        text=text,
        thinking=heard.thinking,
        done_reason=str(done.reason),
        pieces=tuple(heard.pieces),
        stats=stats_object(done.stats),
        target=str(pair.settings.target),
        target_digest=await _target_digest(pair),
        prompt_digest=prompt_digest(asked.messages),
        digest=text_digest(text),
    )


def seed_for(settings: PairSettings, asked: BatchItem, run_seed: int, attempt: int) -> int | None:
    """The seed to ask with: at first the item's or the pair's own. None under the rule `rejection`, which has none."""
    own = asked.options.get("seed", settings.options.get("seed"))
    if own is not None and attempt == 1:
        return int(own)
    return None if settings.rule is AcceptanceMethod.REJECTION else seed_of(run_seed, asked.id, attempt)


def describe_pair(settings: PairSettings) -> dict[str, Any]:
    """What of a pair decides its replies, as it is when the log is read again: a sequence is a list."""
    models = [_named(model) for model in (settings.target, *settings.drafts)]
    told = {
        "target": models[0],
        "drafts": models[1:],
        "route": str(settings.route),
        "rule": str(settings.rule),
        "lookahead": settings.lookahead,
        "options": dict(settings.options),
    }
    read: dict[str, Any] = json.loads(json.dumps(told))
    return read


def _named(model: object) -> str:
    if isinstance(model, ModelRef):
        return f"{model.model}@{model.endpoint.url}"
    return str(model.path.absolute()) if isinstance(model, FileRef) else str(model)


def prompt_digest(messages: Sequence[Message]) -> str:
    """SHA-256 of the messages as JSON."""
    return text_digest(json.dumps([message.body() for message in messages], ensure_ascii=False, sort_keys=True))


async def _target_digest(pair: Pair) -> str:
    if isinstance(pair.settings.target, ModelRef):
        with suppress(EndpointError):  # the reply came without its server: from the file of a local store
            return (await pair.model_infos())[0].digest
    return ""


def _piece(event: Text) -> Piece:
    other = next((token for token in event.top if token.text != event.text), None)
    return Piece(text=event.text, origin=str(event.origin), logprob=_own(event), other=_pair(other))


def _own(event: Text) -> float | None:
    if event.logprob is not None:
        return round(event.logprob, _DIGITS)
    return next((pair[1] for token in event.top if token.text == event.text and (pair := _pair(token))), None)


def _pair(token: Token | None) -> tuple[str, float] | None:
    return None if token is None or token.logprob is None else (token.text, round(token.logprob, _DIGITS))
