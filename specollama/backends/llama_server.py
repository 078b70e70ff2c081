"""One llama-server over HTTP, as another engine to measure against: its own rendering, its own speculation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from specollama.backends.http import CONNECT_TIMEOUT, IDLE_TIMEOUT, outside, translated
from specollama.errors import BrokenReply, Refused
from specollama.types import DoneReason, SamplingOptions

_Model = TypeVar("_Model", bound=BaseModel)


class Timings(BaseModel):
    """llama-server's own count of a reply, in tokens. The drafted ones are missing where it doesn't speculate."""

    prompt_n: int = 0
    cache_n: int = 0
    predicted_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0


class Chunk(BaseModel):
    """An event of /completion. `read`: the how manieth read of the connection brought it, from 1."""

    model_config = ConfigDict(extra="ignore")

    content: str = ""
    stop: bool = False
    stop_type: str = ""
    timings: Timings = Timings()
    read: int = 0

    @property
    def reason(self) -> DoneReason:
        return DoneReason.LENGTH if self.stop_type == "limit" else DoneReason.STOP


class Props(BaseModel):
    """What /props says. `default_generation_settings` is required: it tells a llama-server from other servers."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    default_generation_settings: dict[str, Any]
    build_info: str = ""
    model_path: str = ""


class LlamaServer:
    """The API of one llama-server, as an async context manager.

    `token`: its `--api-key`. Raises EndpointError from every call: Unreachable, Refused or BrokenReply.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        source: str = "",
        connect_timeout: float = CONNECT_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self.url = url.rstrip("/")
        self.source = source
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else None,
            timeout=httpx.Timeout(idle_timeout, connect=connect_timeout),
            trust_env=outside(self.url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def props(self) -> Props:
        with self._translated():
            response = await self._http.get("/props")
        self._check(response)
        return self._validated(response.content, Props)

    async def render(self, messages: list[dict[str, Any]]) -> str:
        """The prompt that the server's own template makes of a chat."""
        with self._translated():
            response = await self._http.post("/apply-template", json={"messages": messages})
        self._check(response)
        return self._validated(response.content, _Rendered).prompt

    async def complete(self, prompt: str, options: SamplingOptions) -> AsyncGenerator[Chunk, None]:
        """POST /completion, event by event; the last has `stop`."""
        with self._translated():
            async with self._http.stream("POST", "/completion", json=completion_body(prompt, options)) as response:
                if response.is_error:
                    await response.aread()
                self._check(response)
                async for event, read in _events(response.aiter_bytes()):
                    chunk = self._chunk(event, read)
                    yield chunk
                    if chunk.stop:
                        return
        raise self._broken("the reply ended before its last event (no stop: true)")

    def _chunk(self, event: bytes, read: int) -> Chunk:
        chunk = self._validated(event, _Event)
        if chunk.error is not None:
            raise Refused(f"{self.url}: {_said(chunk.error)}", url=self.url, status=200)
        return chunk.model_copy(update={"read": read})

    def _check(self, response: httpx.Response) -> None:
        if response.is_error:
            try:
                said = _said(response.json().get("error"))
            except (ValueError, AttributeError):
                said = f"HTTP {response.status_code} {response.reason_phrase}".strip()
            raise Refused(f"{self.url}: {said}", url=self.url, status=response.status_code)

    def _validated(self, body: bytes, model: type[_Model]) -> _Model:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            start = body[:60].decode("utf-8", "replace")
            raise self._broken(f"the answer isn't what llama-server sends: {start!r}") from error

    def _broken(self, what: str) -> BrokenReply:
        return BrokenReply(f"{self.url}: {what}", url=self.url)

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self.url, self.source, "is llama-server running there?")


class _Rendered(BaseModel):
    prompt: str


class _Event(Chunk):
    error: Any = None


def completion_body(prompt: str, options: SamplingOptions) -> dict[str, Any]:
    """A request of /completion that samples as Ollama would with these options."""
    return {
        "prompt": prompt,
        "stream": True,
        "cache_prompt": True,
        "n_predict": options.num_predict if options.num_predict > 0 else -1,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "typical_p": options.typical_p,
        "repeat_last_n": options.repeat_last_n,
        "repeat_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "stop": list(options.stop),
        **({} if options.seed is None else {"seed": options.seed}),
    }


async def _events(reads: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, int]]:
    """The data of server-sent events, and the number of the read that completed each."""
    rest, number = b"", 0
    async for read in reads:
        number += 1
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            # a fault in mid-reply comes as "error: {...}" from older builds, as data from newer ones
            name, _, data = line.strip().partition(b": ")
            if name == b"error":
                yield b'{"error": ' + data + b"}", number
            elif name == b"data" and data != b"[DONE]":
                yield data, number


def _said(error: Any) -> str:
    said = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(said or "it failed and gave no reason").split())
