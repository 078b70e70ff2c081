"""Token id <-> text cache for the target's vocabulary, filled as tokens are seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specollama.backends.engines.base import REPLACEMENT, Engine
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.spec_decode.types import Draft, Token


@dataclass(slots=True)
class TokenTexts:
    """For drafts alone: a wrong entry costs a rejection, never a wrong word.

    `vocabulary`: the draft model's tokenizer, given where it is the target's, too; nothing has to be asked then.
    """

    engine: Engine
    vocabulary: LlamaTokenizer | None = None
    _texts: dict[int, str] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)

    def text(self, token: int) -> str:
        """What a token prints; "" where that isn't known, or is no text of its own."""
        if self.vocabulary is not None and 0 <= token < len(self.vocabulary.all_texts()):
            return self.vocabulary.token_text(token)
        return self._texts.get(token, "")

    def record(self, token: int, text: str) -> None:
        """Record a token seen in a reply."""
        self._texts[token] = text
        self._ids.setdefault(text, token)

    async def fetch(self, tokens: Iterable[int]) -> None:
        """Fetch the texts of these tokens, so that `text` knows them."""
        new = [token for token in dict.fromkeys(tokens) if token not in self._texts]
        if not new or self.vocabulary is not None or not self.engine.capabilities.detokenizes:
            return
        for token, text in zip(new, await self.engine.detokenize([[token] for token in new]), strict=True):
            self.record(token, "" if REPLACEMENT in text else text)

    async def retokenize(self, draft: Draft) -> list[tuple[int, str]]:
        """A draft in the target's tokens, with their texts; up to the first that has none of its own."""
        ids = [token.id if token.id is not None else self._id(token) for token in draft.tokens]
        if None not in ids:
            texts = (token.text for token in draft.tokens)
            return [(token, text) for token, text in zip(ids, texts, strict=True) if token is not None]
        tokens = await self._tokens(draft.text)
        if not self.engine.capabilities.detokenizes and len(tokens) == len(
            draft.tokens
        ):  # the same pieces, most likely
            return [(token, drafted.text) for token, drafted in zip(tokens, draft.tokens, strict=True)]
        await self.fetch(tokens)
        return list(_leading(tokens, [self.text(token) for token in tokens], draft.text))

    def _id(self, token: Token) -> int | None:
        if self.vocabulary is not None:
            return self.vocabulary.id_by_text.get(token.text)
        return self._ids.get(token.text)

    async def _tokens(self, text: str) -> list[int]:
        """The tokens of a piece of text. After a line's end: some tokenizers put a space before a text's first word."""
        if self.vocabulary is not None:
            return self.vocabulary.encode_fragment(text)
        before, tokens = [await self.engine.tokenize(each, whole=False) for each in ("\n", "\n" + text)]
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        return await self.engine.tokenize(text, whole=False)


def _leading(tokens: Sequence[int], texts: Sequence[str], draft: str) -> Iterable[tuple[int, str]]:
    """The tokens as far as their texts are known, and are those of the draft."""
    offset = 0
    for token, text in zip(tokens, texts, strict=True):
        if not text or not draft.startswith(text, offset):
            return
        offset += len(text)
        yield token, text
