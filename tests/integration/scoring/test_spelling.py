"""What tokens print, by an engine that prints runs of them only: texts are those of the middle of a reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from specollama.backends.engines.detokenize import BatchDetokenizer
from specollama.pairs.request import CompletionInput
from tests.support import toy
from tests.support.fake_engines import Detokenize, FakeLlamaServer, FakeVLLM, LlamaDetokenize
from tests.support.scoring_replies import COLD, told
from tests.support.serving import Answer, whole
from tests.support.toy import STORY, Toy

RAW = CompletionInput("Once.<|assistant|>", options=COLD, raw=True)
WORDS = {300: " cat", 301: " ", 302: "|", 303: "~", 304: ":", 305: "cat"}
PARTS = [list("🙂".encode())[:end] for end in (1, 4)]  # bytes are tokens of their own, by their number


@dataclass
class SentencePiece:
    """`adds`: a space is put before each text. A run of bytes that is no text is printed as one mark for each."""

    adds: bool

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        assert not whole
        ids = {word: token for token, word in WORDS.items()}
        return [
            *([301] if self.adds else []),
            *(token for c in text for token in ([ids[c]] if c in ids else c.encode())),
        ]

    async def prints(self, tokens: Sequence[int]) -> str:
        text, raw = "", b""
        for token in [*tokens, None]:
            if token is not None and token < 256:
                raw += bytes([token])
                continue
            try:
                text += raw.decode()
            except UnicodeDecodeError:
                text += "\ufffd" * len(raw)
            text, raw = text + WORDS.get(token or 0, ""), b""
        return text.removeprefix(" ") if self.adds else text


@pytest.mark.parametrize("adds", [True, False])
async def test_tokens_of_sentencepiece_print_as_within_a_text(adds: bool) -> None:
    tokenizer = SentencePiece(adds)
    spelling = BatchDetokenizer(tokenizer.tokenize, tokenizer.prints)
    runs = [*PARTS, [300], [305], [301], [10], [302], [300, 301]]
    expected = ["\ufffd", "🙂", " cat", "cat", " ", "\n", "|", " cat "]
    assert await spelling.detokenize(runs) == expected
    assert [text for run in runs for text in await spelling.detokenize([run])] == expected


class PrefixedVLLM(FakeVLLM):
    """Puts a space before each text, and takes one off where it prints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.handlers["/tokenize"] = PrefixedVLLM.tokenize
        self.handlers["/detokenize"] = lambda _, body: whole({"prompt": printed(Detokenize(**body).tokens)})

    def tokenize(self, body: dict[str, Any]) -> Answer:
        return super().tokenize({**body, "prompt": f" {body['prompt']}"} if "prompt" in body else body)


class PrefixedLlamaServer(FakeLlamaServer):
    """The same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.handlers["/tokenize"] = PrefixedLlamaServer.tokenize
        self.handlers["/detokenize"] = lambda _, body: whole({"content": printed(LlamaDetokenize(**body).tokens)})

    def tokenize(self, body: dict[str, Any]) -> Answer:
        return super().tokenize({**body, "content": f" {body['content']}"})


def printed(tokens: Sequence[int]) -> str:
    return toy.text(tokens).removeprefix(" ")


@pytest.mark.parametrize(("api", "fake"), [("vllm", PrefixedVLLM), ("llama-server", PrefixedLlamaServer)])
async def test_a_character_of_several_tokens_comes_whole_where_texts_begin_with_a_space(
    api: str, fake: type[FakeVLLM] | type[FakeLlamaServer]
) -> None:
    parts = [toy.IDS[b"\xf0\x9f"], toy.IDS[b"\x99\x82"]]
    text, stats, _ = await told(fake(Toy(parts=parts)), api, RAW)
    assert text == STORY + "🙂"
    assert stats.accepted > 8
