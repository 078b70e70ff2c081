"""Route `lanes` above temperature 0: the exact distribution of its replies, by enumeration.

The target's tokenizer reads some texts otherwise than they were sampled, so that the reply has to be extended to a
good cut again and again. Every way the draws can fall is run, and the probabilities of the replies are added up: what
comes out must be the target's own distribution, up to rounding. No sampling error, no seeds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from specollama.backends.ollama import target
from specollama.backends.ollama.drafter import OllamaDrafter
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import GenerateReply
from specollama.backends.ollama.target import ParallelTarget
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Done, Text
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.retokenization import ExactPath, TokenPath
from specollama.spec_decode.types import AcceptanceMethod, Draft, SamplingOptions, Token, VerifyResult
from tests.support.enumeration import Cells, Choices, law
from tests.support.toy_vocabulary import ToyVocabulary

pytestmark = pytest.mark.no_cover  # thousands of replies that run nothing the other tests don't

PROMPT = "-\n"  # one newline more leads off the path


class Newlines(ToyVocabulary):
    """Reads the last two newlines of a text as one token, but only at its very end, as pre-tokenizers do.

    So a reply of "\n" and "\n" is off the path where it ends there, and on it again once a letter follows.
    """

    def __init__(self) -> None:
        super().__init__(words=("<end>", "\ufffd"), fragments=())
        self.both = len(self.pieces)

    def encode(self, text: str) -> tuple[int, ...]:
        return (*super().encode(text[:-2]), self.both) if text.endswith("\n\n") else super().encode(text)

    def display_text(self, token: int) -> str:
        return "\n\n" if token == self.both else super().display_text(token)


VOCABULARY = Newlines()
X, N, CONTROL = (VOCABULARY.token(text) for text in ("x", "\n", "<end>"))
FIRST, SECOND = "é".encode()  # a character of two tokens
BROKEN = 0xFF  # a byte that is no text, and shown as a replacement mark
END = -1

Model = Callable[[tuple[int, ...]], Mapping[int, float]]
"""The probabilities of what may follow these tokens: token ids, and END."""


def even(path: tuple[int, ...]) -> Mapping[int, float]:
    return {X: 0.5, N: 0.5}


def turning(end: float = 0.0, character: float = 0.0, control: float = 0.0, broken: float = 0.0) -> Model:
    """A model that minds its last token. Its letters have odds that are 1/3, 2/3 or 1 of the draft's."""

    def follow(path: tuple[int, ...]) -> Mapping[int, float]:
        if path[-1] == FIRST:
            return {SECOND: 1.0}
        x = {N: 0.25, SECOND: 0.25}.get(path[-1], 0.5)
        rest = 1 - end - character - control - broken
        rare = {END: end, FIRST: character, CONTROL: control, BROKEN: broken}
        weights = {X: rest * x, N: rest * (1 - x), **rare}
        return {token: weight for token, weight in weights.items() if weight}

    return follow


def drafting(path: tuple[int, ...]) -> Mapping[int, float]:
    return {X: 0.75, N: 0.25}


@dataclass
class Server:
    """An Ollama server of models that are written down: one draw for each seed and place, always the same.

    It shows what llama-server shows: nothing for control tokens and the beginning of a character, which comes whole
    with its last token; what is unfinished at num_predict is lost. `fragments`: instead as Ollama's own runner shows
    it, an entry for each token, with a replacement mark where its bytes are no text.
    """

    choices: Choices
    models: Mapping[str, Model]
    fragments: bool = False
    url: str = "http://scripted"
    drawn: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)

    async def generate(self, body: dict[str, Any], sent: asyncio.Event | None = None) -> GenerateReply:
        model, options, prompt = body["model"], body["options"], VOCABULARY.encode(body["prompt"])
        limit = options["num_predict"]
        ids = self._draw(model, prompt, options)
        taken = ids[:limit]
        ended = END in taken
        tokens = taken[: taken.index(END)] if ended else taken
        entries, response = self._entries(model, prompt, tokens)
        return GenerateReply.model_validate(
            {
                "response": response,
                "logprobs": entries,
                "done": True,
                "done_reason": "stop" if ended else "length",
                "eval_count": len(tokens) + ended,
                "prompt_eval_count": len(prompt),
            }
        )

    async def stream_generate(self, body: dict[str, Any]) -> AsyncGenerator[GenerateReply, None]:
        whole = await self.generate(body)
        for entry in whole.logprobs or ():
            yield GenerateReply(response=entry.token, logprobs=[entry])
        yield whole.model_copy(update={"response": "", "logprobs": None})

    def _draw(self, model: str, prompt: tuple[int, ...], options: dict[str, Any]) -> list[int]:
        ids = self.drawn.setdefault((model, prompt, options.get("seed")), [])
        while len(ids) < options["num_predict"] and END not in ids:
            follow = self.models[model]((*prompt, *ids))
            if options["temperature"] == 0:
                ids.append(max(follow, key=follow.__getitem__))
            else:
                ids.append(list(follow)[self.choices.choose(list(follow.values()))])
        return ids

    def _entries(self, model: str, prompt: tuple[int, ...], tokens: list[int]) -> tuple[list[dict[str, Any]], str]:
        entries, held, response = list[dict[str, Any]](), b"", ""
        for place, token in enumerate(tokens):
            held += printed_bytes(token)
            top = self.models[model]((*prompt, *tokens[:place]))
            text = held.decode(errors="ignore")
            held = b"" if text else held
            response += text
            if self.fragments and token != CONTROL:
                text = VOCABULARY.pieces[token].decode(errors="replace")
            if text:
                entries.append(entry(text, token, top))
        return entries, response


def entry(text: str, token: int, top: Mapping[int, float]) -> dict[str, Any]:
    listed = sorted(top.items(), key=lambda each: -each[1])
    return {
        "token": text,
        "logprob": math.log(top[token]),
        "top_logprobs": [{"token": printed(each), "logprob": math.log(p)} for each, p in listed],
    }


def printed(token: int) -> str:
    return "" if token == END else VOCABULARY.display_text(token)


def printed_bytes(token: int) -> bytes:
    return b"" if token == CONTROL else "\ufffd".encode() if token == BROKEN else VOCABULARY.pieces[token]


class Nothing:
    """A drafter without a guess."""

    async def propose(self, text: str, count: int) -> Draft:
        return Draft()

    def learn(self, verdict: VerifyResult) -> None:
        pass


class Newline:
    """A drafter that always guesses the same, without a distribution."""

    async def propose(self, text: str, count: int) -> Draft:
        return Draft((Token("\n"),) * count)

    def learn(self, verdict: VerifyResult) -> None:
        pass


Reply = tuple[str, str, int]  # text, why it ended, eval_count


@dataclass(frozen=True, slots=True)
class Scene:
    """A target, a rule, and what is drafted. `drafter` None: a draft model of the same tokenizer."""

    model: Model
    length: int
    rule: AcceptanceMethod = AcceptanceMethod.MATCH
    drafter: Callable[[], Any] | None = Nothing
    lookahead: int = 1
    stop: tuple[str, ...] = ()
    extensions: tuple[int, ...] = (2, 3, 4)  # short, so that short replies see all that comes of it
    cursor: Callable[[str], TokenPath] = lambda prompt: ExactPath(prompt, VOCABULARY)
    fragments: bool = False

    @property
    def options(self) -> SamplingOptions:
        entries = len(self.model(VOCABULARY.encode(PROMPT)))
        return SamplingOptions(temperature=1, top_k=entries, top_p=1, num_predict=self.length, stop=self.stop)

    def speculation(self, choices: Choices) -> SpeculativeDecoder:
        server: Any = Server(choices, {"target": self.model, "draft": drafting}, self.fragments)
        own = RequestTemplate("draft", SamplingOptions(temperature=1, top_k=2, top_p=1))
        drafter = (
            self.drafter()
            if self.drafter
            else OllamaDrafter(server, own, rule=self.rule, seed=2, vocabulary=VOCABULARY)
        )
        requests = RequestTemplate("target", self.options)
        return SpeculativeDecoder(
            prompt=PROMPT,
            target=ParallelTarget(server, requests, self.cursor(PROMPT), rule=self.rule, seed=1),
            drafter=drafter,
            lookahead=FixedLookahead(self.lookahead),
            rule=self.rule,
            options=self.options,
            stats=Stats(),
            random=Cells(choices, 3),
        )

    async def reply(self, choices: Choices) -> Reply:
        text = ""
        async with aclosing(self.speculation(choices).events()) as events:
            async for event in events:
                text += event.text if isinstance(event, Text) else ""
        assert isinstance(event, Done)
        return text, str(event.reason), event.stats.eval_count

    async def plain(self, choices: Choices) -> Reply:
        """What the target alone writes, token by token: the law that the reply must have."""
        ids, raw = list[int](), b""
        while True:
            follow = self.model((*VOCABULARY.encode(PROMPT), *ids))
            token = list(follow)[choices.choose(list(follow.values()))]
            if token == END:
                return raw.decode(errors="ignore"), "stop", len(ids) + 1
            ids.append(token)
            raw += printed_bytes(token)
            text = raw.decode(errors="ignore")
            if found := [text.index(stop) for stop in self.stop if stop in text]:
                return text[: min(found)], "stop", len(ids)
            if len(ids) == self.length:
                return text, "length", len(ids)


SCENES = {
    "match, two letters alike": Scene(even, 7, extensions=(4, 6, 12, 24)),
    "match, ends": Scene(turning(end=0.125), 5),
    "match, ends, a long step": Scene(turning(end=0.125), 6, extensions=(4,)),
    "match, ends and a draft": Scene(turning(end=0.125), 4, drafter=Newline, lookahead=2),
    "match, a draft model": Scene(turning(end=0.125), 5, drafter=None),
    "match, characters of two tokens": Scene(turning(character=0.25), 5),
    "match, characters, a long step": Scene(turning(character=0.25), 6, extensions=(4,)),
    "match, characters, ends and a draft": Scene(turning(character=0.25, end=0.125), 4, drafter=Newline),
    "match, characters as entries of their fragments": Scene(turning(character=0.25, end=0.125), 5, fragments=True),
    "match, control tokens that no prompt gives back": Scene(turning(control=0.25), 5, extensions=(3,)),
    "match, control tokens, characters and ends": Scene(
        turning(control=0.125, character=0.125, end=0.125), 5, extensions=(3,)
    ),
    "match, bytes that are no text": Scene(turning(broken=0.25), 5, extensions=(3,)),
    "match, bytes that are no text, ends and a draft": Scene(
        turning(broken=0.25, end=0.125), 4, extensions=(2, 3), drafter=Newline, fragments=True
    ),
    "match, stop strings": Scene(turning(end=0.125), 5, stop=("\nx\n", "xx"), drafter=Newline),
    "match, stop strings and characters": Scene(turning(character=0.25), 5, stop=("é\n", "\n\nx")),
    "rejection": Scene(turning(), 5, rule=AcceptanceMethod.REJECTION, drafter=None),
    "rejection, ends": Scene(turning(end=0.125), 4, rule=AcceptanceMethod.REJECTION, drafter=None),
    "rejection, characters": Scene(
        turning(character=0.25), 4, rule=AcceptanceMethod.REJECTION, drafter=None, extensions=(2,)
    ),
    "rejection, stop strings": Scene(turning(), 4, rule=AcceptanceMethod.REJECTION, drafter=None, stop=("\n\n", "xx")),
    "rejection, two drafted at a time": Scene(turning(), 3, rule=AcceptanceMethod.REJECTION, drafter=None, lookahead=2),
}


@pytest.mark.parametrize("name", SCENES)
async def test_a_reply_has_exactly_the_distribution_of_the_targets_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = SCENES[name]
    monkeypatch.setattr(target, "_EXTENSIONS", scene.extensions)
    expected = await law(scene.plain)
    assert await law(scene.reply) == pytest.approx(expected, abs=1e-12)
