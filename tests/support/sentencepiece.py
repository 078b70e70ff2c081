"""A small SentencePiece vocabulary, as a server shows it."""

from __future__ import annotations

from typing import Any

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


PIECES = ["▁", "a", "b", "▁a", "ab", "▁ab", "A", "é", "▁the"]


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """`model_info` as a server gives it; whole numbers of the scores have lost their point."""
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, *PIECES],
        "tokenizer.ggml.scores": [0, 0, 0, *[0] * 256, *[-place for place in range(len(PIECES))]],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.merges": None,
        "llama.context_length": 2048,
        **changes,
    }
