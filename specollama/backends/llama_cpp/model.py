"""A model opened in process by llama.cpp: token ids in, logits out, all positions of a pass at once.

Not thread-safe: whoever shares it asks it from one thread.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from specollama.backends.llama_cpp.gguf_metadata import refuse_unreadable
from specollama.backends.llama_cpp.hardware import free_memory
from specollama.backends.llama_cpp.memory_needs import first_part, kv_cache_bytes, weight_bytes
from specollama.backends.llama_cpp.tokenizer import import_llama, silence_llama_log
from specollama.errors import RunError

Logits = NDArray[np.float32]

PREFILL_CHUNK = 128  # tokens read in one pass: a cancel takes effect between two
_VALUE_LIMIT = 256  # bytes of a header's value
_HEADROOM = 256 * 2**20  # bytes for compute buffers and the rest of the process


class Cancelled(Exception):
    """Prefill was cancelled between two passes."""


class DamagedFile(RunError):
    """llama.cpp can't load the file."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is opened. None: llama.cpp's own choice, or as many threads as there are cores to use.

    `gpu_layers` -1: all. `kv_type` is a ggml type by its name, as "f16" or "q8_0".
    """

    context_length: int = 4096  # tokens
    threads: int | None = None
    batch_threads: int | None = None
    gpu_layers: int = -1
    kv_type: str = "f16"
    mmap: bool = True
    ubatch: int = PREFILL_CHUNK  # tokens; each costs compute buffer, 0.6 MB for a large vocabulary


class LlamaModel:
    """A model with one context and its KV cache. Close it with `close`.

    Raises MissingPackage without llama-cpp-python; RunError when the file can't be opened, its architecture isn't
    known, it can't take back what it has read, or the memory doesn't suffice.
    """

    def __init__(self, path: Path, options: LoadOptions | None = None) -> None:
        options = options or LoadOptions()
        self.path = path
        self._llama = llama = import_llama()
        silence_llama_log(llama)
        self._model, self._context = _open(llama, path, options), None
        try:
            self._check_memory(options)
            self._context = self._open_context(options)
        except RunError:
            self.close()
            raise
        self._batch = llama.llama_batch_init(PREFILL_CHUNK, 0, 1)
        self._memory = llama.llama_get_memory(self._context)
        self._read: list[int] = []  # tokens in the cache, by place
        self.size: int = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self.context_length: int = llama.llama_n_ctx(self._context)
        self._chunk: int = min(PREFILL_CHUNK, llama.llama_n_batch(self._context))  # a small context has smaller ones

    def close(self) -> None:
        """Free the memory; done twice it does nothing."""
        if self._context:
            self._llama.llama_batch_free(self._batch)
            self._llama.llama_free(self._context)
            self._context = None
        if self._model:
            self._llama.llama_model_free(self._model)
            self._model = None

    @property
    def chat_template(self) -> str:
        """The template that the file carries; "" for none."""
        self._check_open()
        found = self._llama.llama_model_chat_template(self._model, None)
        return found.decode("utf-8", "replace") if found else ""

    def metadata(self, key: str) -> str:
        """A value of the file's header, as text; "" where it has no such key."""
        buffer = ctypes.create_string_buffer(_VALUE_LIMIT)
        length = self._llama.llama_model_meta_val_str(self._model, key.encode(), buffer, _VALUE_LIMIT)
        return buffer.value.decode("utf-8", "replace") if length > 0 else ""

    def cached_tokens(self, tokens: list[int]) -> int:
        """Length of the longest prefix of the tokens that is in the KV cache."""
        if tokens[: len(self._read)] == self._read:
            return len(self._read)
        pairs = enumerate(zip(self._read, tokens, strict=False))
        return next((place for place, (ours, asked) in pairs if ours != asked), len(tokens))

    def logits(self, tokens: list[int], count: int, stopped: Callable[[], bool] = lambda: False) -> list[Logits]:
        """The logits after each of the last `count` tokens of the whole text; each has one number a vocabulary entry.

        They are llama.cpp's own memory, good until the next call. What is read already isn't read again. Raises
        Cancelled when `stopped` says so between two passes, RunError when llama.cpp fails or the model is closed.
        """
        self._check_open()
        begin = min(self.cached_tokens(tokens), len(tokens) - count)
        self._truncate_cache(begin)
        while len(tokens) - begin > self._chunk:
            if stopped():
                raise Cancelled
            length = min(self._chunk, len(tokens) - begin - count)
            self._decode(tokens[begin : begin + length], 0)
            begin += length
        self._decode(tokens[begin:], count)
        places = range(len(tokens) - begin - count, len(tokens) - begin)
        found = (self._llama.llama_get_logits_ith(self._context, place) for place in places)
        return [np.ctypeslib.as_array(row, shape=(self.size,)) for row in found]

    def _check_open(self) -> None:
        """llama.cpp would go on with memory that is free."""
        if not self._model:
            raise RunError(f"{self.path.name} was closed: other options were asked for")

    def _truncate_cache(self, length: int) -> None:
        """Remove the KV cache beyond the first tokens."""
        if length < len(self._read):
            if not self._llama.llama_memory_seq_rm(self._memory, 0, length, -1):
                self._clear_cache()
                raise RunError(f"{self.path.name} can't take back what it has read")
            del self._read[length:]

    def _clear_cache(self) -> None:
        self._llama.llama_memory_clear(self._memory, True)
        self._read.clear()

    def _decode(self, tokens: list[int], count: int) -> None:
        """Decode these tokens in one pass, with logits after each of the last `count`."""
        batch, begin = self._batch, len(self._read)
        if begin + len(tokens) > self.context_length:
            raise RunError(f"the context of {self.context_length} tokens is full")
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place] = token
            batch.pos[place] = begin + place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = place >= len(tokens) - count
        if self._llama.llama_decode(self._context, batch):
            self._clear_cache()
            raise RunError(f"llama.cpp failed in a pass over {len(tokens)} tokens of {self.path.name}")
        self._read.extend(tokens)

    def _check_memory(self, options: LoadOptions) -> None:
        llama = self._llama
        if llama.llama_model_is_recurrent(self._model) or llama.llama_model_is_hybrid(self._model):
            raise RunError(f"{self.path.name} is a recurrent model: it can't take back what it has read")
        if not llama.llama_model_has_decoder(self._model) or llama.llama_model_has_encoder(self._model):
            raise RunError(f"{self.path.name} isn't a model that writes on from a text alone")
        free, needed = free_memory(), self._kv_size(options) + _HEADROOM
        if needed > free:
            raise RunError(
                f"{self.path.name}: its context of {self._context_tokens(options)} tokens needs {_gib(needed)}, and "
                f"{_gib(free)} of memory are free: give a smaller num_ctx"
            )

    def _kv_size(self, options: LoadOptions) -> int:
        """Bytes of the KV cache."""
        llama, model = self._llama, self._model
        heads = llama.llama_model_n_head(model) or 1
        usual = llama.llama_model_n_embd(model) // heads  # where the file doesn't say
        kind = self.metadata("general.architecture")
        return kv_cache_bytes(
            layers=llama.llama_model_n_layer(model),
            kv_heads=llama.llama_model_n_head_kv(model) or heads,
            key_length=_number(self.metadata(f"{kind}.attention.key_length")) or usual,
            value_length=_number(self.metadata(f"{kind}.attention.value_length")) or usual,
            tokens=self._context_tokens(options),
            kv_type=options.kv_type,
        )

    def _context_tokens(self, options: LoadOptions) -> int:
        """The context's length: no longer than the model was trained for."""
        trained = self._llama.llama_model_n_ctx_train(self._model)
        return min(options.context_length, trained) if trained > 0 else options.context_length

    def _open_context(self, options: LoadOptions) -> Any:
        llama = self._llama
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = self._context_tokens(options)
        parameters.n_batch = PREFILL_CHUNK
        parameters.n_ubatch = options.ubatch
        parameters.n_threads = options.threads or _cores()
        parameters.n_threads_batch = options.batch_threads or options.threads or _cores()
        parameters.type_k = parameters.type_v = _ggml_type(llama, options.kv_type)
        parameters.swa_full = True  # a sliding window's cache can't take back otherwise
        parameters.no_perf = True
        if not (context := llama.llama_init_from_model(self._model, parameters)):
            raise RunError(f"llama.cpp can't make a context of {options.context_length} tokens for {self.path.name}")
        return context


def _open(llama: Any, path: Path, options: LoadOptions) -> Any:
    """The model's weights. What the file is, is looked at first: llama.cpp says no more than that it failed."""
    refuse_unreadable(path)
    if first := first_part(path):
        raise RunError(f"{path}: a later part of a model that is split; give the first: {first}")
    free, size = free_memory(), weight_bytes(path)
    if size + _HEADROOM > free:
        raise RunError(f"{path.name} needs {_gib(size)} of memory, and {_gib(free)} are free")
    parameters = llama.llama_model_default_params()
    parameters.n_gpu_layers = options.gpu_layers
    if not options.mmap:
        parameters.load_mode = llama.LLAMA_LOAD_MODE_NONE
    if not (model := llama.llama_model_load_from_file(os.fsencode(path), parameters)):
        raise DamagedFile(f"{path}: llama.cpp can't open it: it is damaged, or of an architecture that it doesn't know")
    return model


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _ggml_type(llama: Any, name: str) -> int:
    kind = getattr(llama, f"GGML_TYPE_{name.upper()}", None)
    if kind is None:
        raise RunError(f"llama.cpp knows no cache type {name!r}; it has f16, bf16, f32, q8_0, q4_0 and others")
    return int(kind)


def _cores() -> int:
    """Physical cores that this process may use: decoding is bound by memory, and a core's second thread only waits."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def _gib(size: int) -> str:
    return f"{math.ceil(size / 2**30 * 10) / 10:.1f} GiB"
