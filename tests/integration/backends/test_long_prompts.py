"""A long prompt's tokens are remembered, and what follows it is tokenised as if they weren't."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.server.embedded.default_models import packaged_model

PROMPT = "<|im_start|>user\n" + "Hello wörld, def f(x): return x\n" * 100 + "<|im_end|>\n<|im_start|>assistant\n"
OTHER = "<|im_start|>system\n" + "Another text. " * 200 + "<|im_end|>"
pieces = st.sampled_from([" a", "  ", "\n", "foo", "🌊", "<|im_end|>", "<|im_", "start|>", "é", "。", "1", "23", "\t"])


@pytest.fixture(scope="module")
def remembering() -> Iterator[LlamaTokenizer]:
    vocabulary = LlamaTokenizer(packaged_model())
    vocabulary.encode(PROMPT)
    yield vocabulary
    vocabulary.close()


@pytest.fixture(scope="module")
def forgetful() -> Iterator[LlamaTokenizer]:
    vocabulary = LlamaTokenizer(packaged_model())
    yield vocabulary
    vocabulary.close()


@given(st.lists(pieces, max_size=12).map("".join))
def test_what_follows_a_remembered_prompt_has_the_tokens_of_the_whole_text(
    remembering: LlamaTokenizer, forgetful: LlamaTokenizer, reply: str
) -> None:
    forgetful.encode(OTHER)  # remembers that one: the next text is tokenised whole
    assert remembering.encode(PROMPT + reply) == forgetful.encode(PROMPT + reply)


@given(st.lists(pieces, max_size=40).map("".join))
def test_another_text_than_the_remembered_prompt_is_tokenised_as_ever(
    remembering: LlamaTokenizer, forgetful: LlamaTokenizer, text: str
) -> None:
    assert remembering.encode(text) == forgetful.encode(text)
