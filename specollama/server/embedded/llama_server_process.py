"""One model in llama.cpp, run in this process, and its llama-server spoken to over loopback."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import xllamacpp

from specollama.backends.http import open_client, split_lines
from specollama.errors import ApiError, RunError

NUM_KEEP = 4  # tokens that a context shift leaves at the start, as Ollama tells llama-server

_STOPPED = "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error"
_SMALL_BATCH = 128  # llama.cpp's 512 costs 300 MB of compute buffer per model, and gains nothing on a CPU
_SPARE_THREADS = 4  # for tokenizing while every slot is streaming


class LlamaServerProcess:
    """A loaded model with `parallel` slots of `num_ctx` tokens each.

    `unified`: all slots share one KV cache, so that one pass serves them all; False: one each, as Ollama has it
    unless told otherwise. `idle_slots`: an idle slot's cache is put away when another one works (llama-server's
    own default). `threads`: of the computation; None: half of the processors. Loads in the constructor, and
    raises `RunError` when llama.cpp refuses the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        num_ctx: int,
        parallel: int,
        threads: int | None = None,
        unified: bool = True,
        idle_slots: bool = False,
    ) -> None:
        self.num_ctx = num_ctx
        self.parallel = parallel
        self.active = 0
        """Requests that llama-server is working on."""
        params = _params(path, num_ctx, parallel, threads or max(1, (os.cpu_count() or 2) // 2))
        key = secrets.token_hex()  # else others on this machine get round the token of the server in front
        params.api_keys = [key]
        params.kv_unified = unified
        params.kv_unified_per_slot = num_ctx if unified else 0  # else a slot may fill the whole cache
        params.cache_idle_slots = idle_slots
        if not idle_slots:
            params.cache_ram_mib = 0  # the store of idle prompts, which would grow to 8 GiB
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise RunError(f"llama.cpp can't load {path}: {error}") from error
        self.url: str = self._server.listening_address
        """Where this model's llama-server listens: on loopback, and on another port each time."""
        self.headers = {"Authorization": f"Bearer {key}"}
        """What a request to `url` has to carry."""
        # llama-server gives each connection a thread, so idle ones would starve it; Ollama opens a new one too
        self._http = open_client(self.url, token=key, idle_timeout=None, idle_connections=0)
        self._slots = asyncio.Semaphore(parallel)

    async def close(self) -> None:
        """Stop llama-server and give its memory back."""
        await self._http.aclose()
        self._server = None

    async def post(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask for one JSON object; `ApiError` when llama-server refuses."""
        try:
            response = await self._http.post(endpoint, json=body)
        except httpx.HTTPError as error:
            raise ApiError(500, _STOPPED) from error
        if response.status_code >= 400:
            raise ApiError(response.status_code, response.text.strip())
        reply: dict[str, Any] = response.json()
        return reply

    async def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        reply = await self.post("/tokenize", {"content": text, "add_special": add_special})
        tokens: list[int] = reply["tokens"]
        return tokens

    async def detokenize(self, tokens: list[int]) -> str:
        return str((await self.post("/detokenize", {"tokens": tokens}))["content"])

    async def events(self, endpoint: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Stream the events of one reply, first come first served; closing it frees the slot.

        `ApiError` when llama-server refuses or fails, before or in the middle of the reply.
        """
        async with self._slots:
            self.active += 1
            try:
                async with self._http.stream("POST", endpoint, json=body) as response:
                    if response.status_code >= 400:
                        raise ApiError(response.status_code, (await response.aread()).decode().strip())
                    async for event in _events(response):
                        yield event
            except httpx.HTTPError as error:
                raise ApiError(500, _STOPPED) from error
            finally:
                self.active -= 1


def _params(path: Path, num_ctx: int, parallel: int, threads: int) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = num_ctx * parallel
    params.n_parallel = parallel
    params.n_keep = NUM_KEEP
    params.ctx_shift = True
    params.n_ubatch = _SMALL_BATCH
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_threads_http = parallel + _SPARE_THREADS
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.verbosity = 0
    return params


async def _events(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """Server-sent events; lines end at \\n only, for the text in them may hold other line ends."""
    async for line in split_lines(response.aiter_raw(), ended=True):
        data = line.removeprefix(b"data: ").strip()
        if not data or data.startswith(b":") or data == b"[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise ApiError(500, _error_text(event["error"]))
        yield event


def _error_text(error: Any) -> str:
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)
