"""The target's exact tokenizer, rebuilt on the client from the answer of a verbose /api/show.

The client writes the vocabulary as a GGUF without weights, and llama.cpp opens that file with `vocab_only`. This gives
the same tokenizer as the server's. The file stays in the cache directory under the model's digest.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specollama.config import paths
from specollama.config.atomic_file import replacement
from specollama.errors import MissingPackage, RunError

_LONG_TEXT = 2048  # characters; for texts this long, `encode` remembers the tokens of the beginning
_PIECE_LIMIT = 1024  # bytes; the longest pieces of known vocabularies have a few hundred


def cache_path(url: str, digest: str) -> Path:
    """File of a model's vocabulary. Each server has a folder of its own: another server's digests aren't trusted."""
    server = hashlib.sha256(url.encode()).hexdigest()[:16]
    return paths.cache_folder() / "vocabularies" / server / f"{digest}.gguf"


def write_vocabulary_file(model_info: Mapping[str, Any], path: Path) -> None:
    """Write the tokenizer part of a verbose `model_info` as a GGUF without weights.

    Raises RunError when the vocabulary is missing or malformed, MissingPackage without the package gguf.
    """
    if not model_info.get("tokenizer.ggml.tokens"):
        raise RunError("the server doesn't give the model's vocabulary")
    gguf = _import_gguf()
    architecture = str(model_info.get("general.architecture", "llama"))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacement(path) as scratch, closing(gguf.GGUFWriter(scratch, architecture)) as writer:
            for key, value in model_info.items():
                if key.startswith("tokenizer.ggml.") and value is not None:
                    _add(gguf, writer, key, value)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
    except (TypeError, ValueError, struct.error) as error:
        raise RunError(f"the server's vocabulary isn't one: {error}") from error


def _add(gguf: Any, writer: Any, key: str, value: Any) -> None:
    """Add a value with its GGUF type: llama.cpp wants ids unsigned and token types signed."""
    kinds = gguf.GGUFValueType
    if isinstance(value, bool):
        writer.add_key_value(key, value, kinds.BOOL)
    elif isinstance(value, int):
        writer.add_key_value(key, value, kinds.UINT32 if value >= 0 else kinds.INT32)
    elif isinstance(value, float):
        writer.add_key_value(key, value, kinds.FLOAT32)
    elif isinstance(value, str):
        writer.add_key_value(key, value, kinds.STRING)
    elif isinstance(value, list) and value:
        writer.add_key_value(key, value, kinds.ARRAY, sub_type=_element_kind(kinds, key, value))


def _element_kind(kinds: Any, key: str, value: list[Any]) -> Any:
    if isinstance(value[0], str):
        return kinds.STRING
    if key.endswith(".scores"):  # JSON writes 1.0 as 1
        return kinds.FLOAT32
    return kinds.INT32 if all(isinstance(item, int) for item in value) else kinds.FLOAT32


def _import_gguf() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise MissingPackage(_advice("gguf")) from error
    return gguf


def import_llama() -> Any:
    """The module llama_cpp. Raises MissingPackage when it isn't installed or its library can't be loaded."""
    try:
        import llama_cpp
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: its library can't be loaded
        raise MissingPackage(_advice("llama-cpp-python")) from error
    return llama_cpp


def offloads_to_gpu() -> bool:
    """Whether the installed llama.cpp can use a GPU. Raises MissingPackage without llama-cpp-python."""
    return bool(import_llama().llama_supports_gpu_offload())


def _advice(package: str) -> str:
    return f"{package} isn't installed: `pip install 'specollama[local]'`"


@dataclass(frozen=True, slots=True)
class _CachedPrefix:
    """A beginning that many texts share, and its tokens. `head` ends with the text of the control token, `marker`."""

    head: str
    marker: str
    ids: tuple[int, ...]


class LlamaTokenizer:
    """A tokenizer of llama.cpp (alignment.Vocabulary). Close it with `close`.

    Raises MissingPackage without llama-cpp-python, RunError when llama.cpp can't read the file.
    """

    def __init__(self, path: Path) -> None:
        self._llama = llama = import_llama()
        silence_llama_log(llama)
        parameters = llama.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self._model:
            raise RunError(f"llama.cpp can't read the vocabulary in {path}")
        self._vocab = llama.llama_model_get_vocab(self._model)
        size = llama.llama_vocab_n_tokens(self._vocab)
        self._pieces = [self._piece(token) for token in range(size)]
        self._texts = [_prefix(piece).decode() for piece in self._pieces]
        self.unambiguous_texts = _distinct(self._pieces, self._texts)
        self._root: _CachedPrefix | None = None
        self.adds_begin_marker = bool(llama.llama_vocab_get_add_bos(self._vocab))

    def close(self) -> None:
        if self._model:
            self._llama.llama_model_free(self._model)
            self._model = None

    @property
    def bos_text(self) -> str:
        """The text of the begin marker; "" when the model has none."""
        token = self._llama.llama_vocab_bos(self._vocab)
        return "" if token < 0 else self._piece(token, special=True).decode("utf-8", "replace")

    @property
    def eos_text(self) -> str:
        """The text of the token that ends a text; "" when the model has none."""
        token = self._llama.llama_vocab_eos(self._vocab)
        return "" if token < 0 else self._piece(token, special=True).decode("utf-8", "replace")

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of the whole text. Remembers those of a long text up to its last control token.

        Raises RunError when the tokenizer is closed or llama.cpp fails.
        """
        if self._root and text.startswith(self._root.head):
            return self._root.ids + self._tokenise(self._root.marker + text[len(self._root.head) :], whole=False)[1:]
        ids = self._tokenise(text, whole=True)
        if len(text) >= _LONG_TEXT:
            self._encode_with_cached_prefix(text, ids)
        return ids

    def encode_fragment(self, text: str) -> list[int]:
        """The tokens of a piece of text by itself, without a begin marker. Raises RunError as `encode` does."""
        return list(self._tokenise(text, whole=False))

    def encode_continuation(self, text: str) -> list[int]:
        """The tokens of a text that follows other text, without the space that some tokenizers add at the beginning."""
        before, both = self.encode_fragment("\n"), self.encode_fragment(f"\n{text}")
        separate = both[: len(before)] == before  # otherwise one token has the line break and some of the text
        return both[len(before) :] if separate else self.encode_fragment(text)

    def _tokenise(self, text: str, *, whole: bool) -> tuple[int, ...]:
        """`whole`: llama.cpp adds a begin marker if the model wants one."""
        if not self._model:
            raise RunError("the model was closed: other options were asked for")
        raw = text.encode()
        room = len(raw) + 8
        tokens = (self._llama.llama_token * room)()
        count = self._llama.llama_tokenize(self._vocab, raw, len(raw), tokens, room, whole, True)
        if count < 0:
            raise RunError("llama.cpp can't tokenise the text")
        return tuple(tokens[:count])

    def _encode_with_cached_prefix(self, text: str, ids: tuple[int, ...]) -> None:
        """Remember the tokens up to the last control token: llama.cpp tokenises the text after one by itself.

        Nothing is remembered if tokenising the two parts gives other tokens than `ids`.
        """
        last = next((token for token in reversed(ids) if self._llama.llama_vocab_is_control(self._vocab, token)), None)
        if last is None:
            return
        marker = self._piece(last, special=True).decode("utf-8", "replace")
        place = text.rfind(marker) if marker else -1
        if place < 0:
            return
        head = text[: place + len(marker)]
        root = _CachedPrefix(head, marker, self._tokenise(head, whole=True))
        if root.ids + self._tokenise(marker + text[len(head) :], whole=False)[1:] == ids:
            self._root = root

    def display_text(self, token: int) -> str:
        """The text of a token without an incomplete last character; "" for control tokens."""
        return self._texts[token]

    def all_texts(self) -> list[str]:
        """`display_text` of all tokens, by id."""
        return self._texts

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, which may end within a character; b"" for control tokens."""
        return self._pieces[token]

    def token_text(self, token: int) -> str:
        """The text of a token that consists of whole characters; "" for any other token."""
        return self._texts[token] if len(self._texts[token].encode()) == len(self._pieces[token]) else ""

    def is_end(self, token: int) -> bool:
        """Whether this token ends a reply (llama.cpp: end of generation)."""
        return bool(self._llama.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def id_by_text(self) -> dict[str, int]:
        """Token ids by text, for the texts that one token alone has."""
        return {text: token for token, text in enumerate(self._texts) if text in self.unambiguous_texts}

    def control_tokens_in(self, text: str) -> tuple[str, ...]:
        """The texts of the control tokens in a text, without duplicates, in order of first occurrence."""
        control = (token for token in self.encode(text) if self._llama.llama_vocab_is_control(self._vocab, token))
        return tuple(dict.fromkeys(self._piece(token, special=True).decode("utf-8", "replace") for token in control))

    def _piece(self, token: int, *, special: bool = False) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE_LIMIT)
        length = self._llama.llama_token_to_piece(self._vocab, token, buffer, _PIECE_LIMIT, 0, special)
        return buffer.raw[: max(0, length)]


def _prefix(piece: bytes) -> bytes:
    """The longest beginning of a piece that consists of whole characters."""
    for end in range(len(piece), max(-1, len(piece) - 4), -1):
        try:
            piece[:end].decode()
        except UnicodeDecodeError:
            continue
        return piece[:end]
    return b""


def _distinct(pieces: list[bytes], texts: list[str]) -> frozenset[str]:
    """The texts that one token alone has, and that are all of its bytes."""
    times = Counter(texts)
    whole = (text for text, piece in zip(texts, pieces, strict=True) if text.encode() == piece)
    # some servers write U+FFFD for an incomplete character, and a row with it is read as one
    return frozenset(text for text in whole if text and times[text] == 1 and "\ufffd" not in text)


def silence_llama_log(llama: Any) -> None:
    """Turn llama.cpp's log off: it writes each metadata key of a file to stderr."""
    llama.llama_log_set(_quiet(llama), ctypes.c_void_p(0))


_callbacks: list[Any] = []  # llama.cpp keeps the pointer: it must never be collected


def _quiet(llama: Any) -> Any:
    if not _callbacks:
        _callbacks.append(llama.llama_log_callback(lambda level, text, data: None))
    return _callbacks[0]
