"""An Ollama whose engine makes passes of a known length: several requests share one, or don't, as it is told.

Each slot holds the text that it read last. A request comes to the slot that holds most of its beginning. What waits
is read together: with one cache in one pass, with a cache for each slot in a pass for each run of neighbouring slots
that have as much to read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from time import perf_counter_ns
from typing import Any

from tests.support.serving import JSON, NDJSON, Receive, Send, read_body

PASS = 0.02  # seconds


@dataclass
class Waiting:
    prompt: str
    limit: int
    came: int
    slot: int = 0
    words: int = 0
    began: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Engine:
    """One model's. `passes`: how many it has made."""

    slots: int
    unified: bool
    passes: int = 0
    held: list[str] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    at_work: bool = False

    async def read(self, prompt: str, limit: int) -> Waiting:
        self.held = self.held or [""] * self.slots
        request = Waiting(prompt, limit, perf_counter_ns())
        self.waiting.append(request)
        if not self.at_work:
            self.at_work = True
            asyncio.get_running_loop().create_task(self._work())
        await request.done.wait()
        return request

    async def _work(self) -> None:
        while self.waiting:
            batch, self.waiting = self.waiting[: self.slots], self.waiting[self.slots :]
            free = list(range(self.slots))
            for request in batch:
                request.began = perf_counter_ns()
                self._place(request, free)
            await asyncio.sleep(PASS * self._passes(batch))
            for request in batch:
                request.done.set()
        self.at_work = False

    def _place(self, request: Waiting, free: list[int]) -> None:
        common = {slot: _common(self.held[slot], request.prompt) for slot in free}
        request.slot = max(free, key=common.__getitem__)
        free.remove(request.slot)
        request.words = max(1, len(request.prompt[common[request.slot] :].split()))
        self.held[request.slot] = request.prompt

    def _passes(self, batch: list[Waiting]) -> int:
        in_order = sorted(batch, key=lambda request: request.slot)
        shared = 1 if self.unified else len(list(groupby(in_order, key=lambda request: request.words)))
        count = shared + max(request.limit for request in batch) - 1
        self.passes += count
        return count


def _common(held: str, prompt: str) -> int:
    pairs = enumerate(zip(held, prompt, strict=False))
    return next((place for place, (ours, asked) in pairs if ours != asked), min(len(held), len(prompt)))


@dataclass
class PassingOllama:
    """`evicting`: one model in memory at a time; `logprobs`: "all", "none", or "first" where it drafts by itself."""

    slots: int = 8
    unified: bool = True
    evicting: bool = False
    logprobs: str = "all"
    models: tuple[str, ...] = ("target", "draft")
    version: str = "0.33.0"
    show: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        raw = await read_body(receive)
        status, lines = await self._answer(scope["path"], json.loads(raw) if raw else {})
        kind = NDJSON if len(lines) > 1 else JSON
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        name = str(body.get("model", "")).removesuffix(":latest")
        if path == "/api/version":
            return 200, [{"version": self.version}]
        if path == "/api/tags":
            return 200, [{"models": [self._listed(each) for each in self.models]}]
        if path == "/api/ps":
            running = [{**self._listed(each), "context_length": 4096, "size_vram": 0} for each in self.loaded]
            return 200, [{"models": running}]
        if name not in self.models:
            return 404, [{"error": f"model '{name}' not found"}]
        if path == "/api/show":
            plain = {"details": {"format": "gguf"}, "template": "{{ .Prompt }}", "capabilities": ["completion"]}
            return 200, [{**plain, **self.show}]
        self._load(name)
        if body.get("_debug_render_only"):
            return 200, [{"_debug_info": {"rendered_template": "<user>Hello<end>"}}]
        if not body.get("prompt"):
            return 200, [{"response": "", "done": True, "done_reason": "load"}]
        return 200, await self._generated(name, body)

    def _listed(self, name: str) -> dict[str, Any]:
        digest = self.digests.get(name, f"{len(name):064x}")
        return {"name": f"{name}:latest", "digest": digest, "size": 1000}

    def _load(self, name: str) -> None:
        others = [] if self.evicting else [each for each in self.loaded if each != name]
        self.loaded = [*others, name]

    async def _generated(self, name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        engine = self.engines.setdefault(name, Engine(self.slots, self.unified))
        limit = max(1, int(body["options"]["num_predict"]))
        request = await engine.read(body["prompt"], limit)
        now = perf_counter_ns()
        told = {"all": limit, "first": 1, "none": 0}[self.logprobs]
        entries = [{"token": " word", "logprob": -0.1, "top_logprobs": []}] * told
        return [
            {
                "response": " word" * limit,
                "done": True,
                "done_reason": "length",
                "total_duration": now - request.came,
                "load_duration": 0,
                "prompt_eval_count": len(body["prompt"].split()),
                "prompt_eval_duration": round((now - request.began) / limit),
                "eval_count": limit,
                "eval_duration": round((now - request.began) * (limit - 1) / limit),
                **({"logprobs": entries} if entries else {}),
            }
        ]
