"""Token id <-> text cache for the target's vocabulary, filled as tokens are seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specollama.backends.engines.base import REPLACEMENT, Engine
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.spec_decode.types import Draft, Token


@dataclass(slots=True)
class TokenTexts:
    """Used for drafts alone: a wrong entry leads to a rejected token, never to wrong text.

    `vocabulary`: the draft model's tokenizer, given if the target has the same one; then no request is needed.
    """

    engine: Engine
    vocabulary: LlamaTokenizer | None = None
    _texts: dict[int, str] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)

    def text(self, token: int) -> str:
        """The text of a token; "" if it isn't known, or isn't made of whole characters."""
        if self.vocabulary is not None and 0 <= token < len(self.vocabulary.all_texts()):
            return self.vocabulary.token_text(token)
        return self._texts.get(token, "")

    def record(self, token: int, text: str) -> None:
        """Record the text of a token."""
        self._texts[token] = text
        self._ids.setdefault(text, token)

    async def fetch(self, tokens: Iterable[int]) -> None:
        """Fetch from the engine the texts of these tokens, so that `text` has them. Raises EndpointError."""
        new = [token for token in dict.fromkeys(tokens) if token not in self._texts]
        if not new or self.vocabulary is not None or not self.engine.capabilities.detokenizes:
            return
        for token, text in zip(new, await self.engine.detokenize([[token] for token in new]), strict=True):
            self.record(token, "" if REPLACEMENT in text else text)

    async def retokenize(self, draft: Draft) -> list[tuple[int, str]]:
        """The draft as target tokens with their texts, up to the first token without a text. Raises EndpointError."""
        ids = [token.id if token.id is not None else self._id(token) for token in draft.tokens]
        if None not in ids:
            texts = (token.text for token in draft.tokens)
            return [(token, text) for token, text in zip(ids, texts, strict=True) if token is not None]
        tokens = await self._tokens(draft.text)
        if not self.engine.capabilities.detokenizes and len(tokens) == len(draft.tokens):  # most likely the same tokens
            return [(token, drafted.text) for token, drafted in zip(tokens, draft.tokens, strict=True)]
        await self.fetch(tokens)
        return list(_leading(tokens, [self.text(token) for token in tokens], draft.text))

    def _id(self, token: Token) -> int | None:
        if self.vocabulary is not None:
            return self.vocabulary.id_by_text.get(token.text)
        return self._ids.get(token.text)

    async def _tokens(self, text: str) -> list[int]:
        """The tokens of a piece of text. A line break goes before it: some tokenizers add a space to a text's start."""
        if self.vocabulary is not None:
            return self.vocabulary.encode_fragment(text)
        before, tokens = [await self.engine.tokenize(part, whole=False) for part in ("\n", "\n" + text)]
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        return await self.engine.tokenize(text, whole=False)


def _leading(tokens: Sequence[int], texts: Sequence[str], draft: str) -> Iterable[tuple[int, str]]:
    """The tokens with their texts, up to the first whose text is unknown or departs from the draft."""
    offset = 0
    for token, text in zip(tokens, texts, strict=True):
        if not text or not draft.startswith(text, offset):
            return
        offset += len(text)
        yield token, text
