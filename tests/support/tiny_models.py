"""Models that take no time: GGUF files with a tokenizer of a few hundred tokens, which begins with a marker.

`random_model` has random weights. `bigram_model` has the weights that give written
probabilities: what follows depends on the last token alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy

Follow = Mapping[str | bytes, Mapping[str | bytes, float]]
"""Probabilities of what comes next by what came last, both a token's text or bytes; "": after any other token."""

BEGIN, END = "<s>", "</s>"
_MERGES = ("t h", "th e", "i n", "a n", "Ġ the", "Ġ a", "e r", "o n", "Ġ s", "r e", "Ġ t", "Ġ w", "n d", "an d")
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
_HEAD = 32  # size of an attention head
_CONTEXT = 1024
_FIRM = 200.0
_NEVER = -30.0  # a logit, where the likely ones are about 0


def random_model(
    path: Path,
    seed: int,
    *,
    writes: Sequence[str | bytes] = (),
    rest: Mapping[bytes, Sequence[bytes]] | None = None,
    noise: float = 0.0,
    width: int = 64,
    blocks: int = 2,
) -> Path:
    """A model of random weights. `writes`: the tokens that it confines itself to; () for any.

    `rest`: what a fragment, and nothing else, is followed by. `noise` makes another model that is much like it.
    """
    numbers, others = numpy.random.default_rng(seed), numpy.random.default_rng(seed + 1)

    def weights(rows: int, columns: int) -> numpy.ndarray:
        own, other = (random.normal(0, 1 / math.sqrt(columns), (rows, columns)) for random in (numbers, others))
        return own + noise * other

    size = len(tokens())
    block = {
        "attn_q": (width, width),
        "attn_k": (width, width),
        "attn_v": (width, width),
        "attn_output": (width, width),
        "ffn_gate": (2 * width, width),
        "ffn_up": (2 * width, width),
        "ffn_down": (width, 2 * width),
    }
    tensors = {"token_embd": weights(size, width), "output": 3 * weights(size, width)}
    for number in range(blocks):
        tensors |= {f"blk.{number}.{name}": weights(*shape) for name, shape in block.items()}
    if writes:
        _confine(tensors, writes, rest or {})
    return _write(path, tensors, width, blocks)


def _confine(
    tensors: Mapping[str, numpy.ndarray], writes: Sequence[str | bytes], rest: Mapping[bytes, Sequence[bytes]]
) -> None:
    """Keep features that no block changes: the first is on for every token, each of the others for one fragment."""
    embedding, output = tensors["token_embd"], tensors["output"]
    for name, tensor in tensors.items():
        if name.endswith(("attn_output", "ffn_down")):
            tensor[: 1 + len(rest)] = 0
    embedding[:, : 1 + len(rest)] = 0
    embedding[:, 0] = 0.5
    output[:, 0] = -_FIRM
    output[:, 1 : 1 + len(rest)] = 0
    output[[_place(token) for token in writes], 0] = 0
    for feature, (fragment, followers) in enumerate(rest.items(), start=1):
        embedding[_place(fragment), feature] = 0.5
        output[_place(fragment), 0] = 2  # logits: now and then, where others are 3 or so at best
        output[[_place(follower) for follower in followers], feature] = 2 * _FIRM


def bigram_model(path: Path, follow: Follow) -> Path:
    size = len(tokens())
    width = -(-size // _HEAD) * _HEAD
    output = numpy.full((size, width), _NEVER)
    for last in range(size):
        after = next((table for text, table in follow.items() if text != "" and _place(text) == last), follow[""])
        for text, probability in after.items():
            output[_place(text), last] = math.log(probability)
    tensors = {"token_embd": numpy.eye(size, width), "output": output / math.sqrt(width)}
    nothing = numpy.zeros((width, width))
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return _write(path, tensors | {f"blk.0.{name}": nothing for name in names}, width, 1)


def tokens() -> list[str]:
    """Two markers, the 256 bytes as byte-level BPE writes them, and the merged tokens."""
    return [BEGIN, END, *_byte_letters().values(), *(merge.replace(" ", "") for merge in _MERGES)]


def _place(text: str | bytes) -> int:
    if text in (BEGIN, END):
        return (BEGIN, END).index(text)
    letters = _byte_letters()
    raw = text.encode() if isinstance(text, str) else text
    return tokens().index("".join(letters[byte] for byte in raw))


def _byte_letters() -> dict[int, str]:
    """A printable letter for each byte, as GPT-2 has them."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in own]
    shifted = {byte: chr(256 + place) for place, byte in enumerate(others)}
    return {byte: shifted.get(byte) or chr(byte) for byte in range(256)}


def _write(path: Path, tensors: Mapping[str, numpy.ndarray], width: int, blocks: int) -> Path:
    texts = tokens()
    kinds = [gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(tensors["blk.0.ffn_up"].shape[0])
    writer.add_head_count(width // _HEAD)
    writer.add_head_count_kv(width // _HEAD)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_layer_norm_rms_eps(1e-9)
    writer.add_vocab_size(len(texts))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (len(texts) - len(kinds))])
    writer.add_token_merges(_MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(_TEMPLATE)
    norms = ["output_norm", *(f"blk.{number}.{name}_norm" for number in range(blocks) for name in ("attn", "ffn"))]
    for name, tensor in {**tensors, **{name: numpy.ones(width) for name in norms}}.items():
        writer.add_tensor(f"{name}.weight", tensor.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
