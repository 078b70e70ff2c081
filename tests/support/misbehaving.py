"""A server that passes on what another one answers, and misbehaves while it does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from specollama.backends.ollama.model_info import parsed_version
from tests.support.scripted_ollama import Call
from tests.support.serving import JSON, NDJSON, Answer, Receive, Send, read_body, send_answer, whole

Body = dict[str, Any]
Then = Literal["break", "end", "stall"]

BUSY = whole({"error": "server busy, please try again.  maximum pending requests exceeded"}, 503)


class Manners:
    """What a server does to requests and replies: this one nothing."""

    def instead(self, call: Call) -> Answer | None:
        """An answer in the place of the other server's."""
        return None

    def asked(self, call: Call) -> Body:
        """The body that is passed on."""
        return dict(call.body)

    def line(self, call: Call, line: Body) -> Body | None:
        """A line of a stream, or a whole answer; None: it is left out."""
        return line

    def lines(self, call: Call, lines: list[Body]) -> list[Body]:
        """All lines of a stream, or the whole answer alone."""
        return [kept for line in lines if (kept := self.line(call, line)) is not None]

    def cut(self, call: Call, body: bytes) -> tuple[int, Then] | None:
        """After how many bytes of an answer what else happens; None: all is sent."""
        return None

    def hangs(self, call: Call) -> bool:
        """Whether nothing is ever answered."""
        return False


@dataclass
class Misbehaving:
    """Keeps all calls in the order of their arrival. `slots`: requests that generate at once; None: any number."""

    upstream: str
    url: str = field(default="", init=False)
    manners: Manners = field(default_factory=Manners)
    slots: int | None = None
    calls: list[Call] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0
    _gate: AbstractAsyncContextManager[Any] | None = None

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        raw = await read_body(receive)
        path = scope["path"]
        call = Call(path, json.loads(raw) if raw else {}, sum(each.path == path for each in self.calls))
        self.calls.append(call)
        if self.manners.hangs(call):
            await _until_gone(receive)
            return
        if answer := self.manners.instead(call):
            await send_answer(answer, send)
            return
        if self._gate is None:
            self._gate = asyncio.Semaphore(self.slots) if self.slots else nullcontext()
        async with self._gate if call.generates else nullcontext():
            self.busy += call.generates
            self.busiest = max(self.busiest, self.busy)
            try:
                status, body = await self._passed(scope["method"], call)
            finally:
                self.busy -= call.generates
        sent, then = self.manners.cut(call, body) or (None, "end")
        kind = NDJSON if call.streams else JSON
        if then == "stall":
            headers = [(b"content-type", kind.encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body[:sent], "more_body": True})
            await _until_gone(receive)
        else:
            await send_answer(Answer([body[:sent]], status, kind, breaks=then == "break"), send)

    async def _passed(self, method: str, call: Call) -> tuple[int, bytes]:
        async with httpx.AsyncClient(base_url=self.upstream, timeout=300, trust_env=False, verify=False) as client:
            body = self.manners.asked(call) if method == "POST" else None
            answer = await client.request(method, call.path, json=body)
        if answer.is_error:
            return answer.status_code, answer.content
        lines = [json.loads(line) for line in answer.content.split(b"\n") if line.strip()]
        kept = self.manners.lines(call, lines)
        return answer.status_code, b"".join(json.dumps(line).encode() + b"\n" for line in kept)

    @property
    def drafts(self) -> int:
        return sum(call.drafts for call in self.calls)

    def asked(self, path: str, model: str | None = None) -> list[Call]:
        return [call for call in self.calls if call.path == path and model in (None, call.model)]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# Manners


@dataclass
class OldVersion(Manners):
    """Knows neither log-probabilities nor rendering without answering, and passes over what it doesn't know."""

    version: str

    def asked(self, call: Call) -> Body:
        known = parsed_version(self.version) >= (0, 11, 5)
        body = {
            key: value
            for key, value in call.body.items()
            if key not in ("logprobs", "top_logprobs", "truncate") and (known or key != "_debug_render_only")
        }
        if call.generates:
            body["options"] = {"repeat_penalty": 1.1, **call.options}
        return body

    def line(self, call: Call, line: Body) -> Body:
        if call.path == "/api/version":
            return {"version": self.version}
        if call.path == "/api/ps":
            for model in line["models"]:
                model.pop("context_length", None)
        return line


@dataclass
class GoRunner(Manners):
    """The engine before 0.15.5: a token less than was asked, fragments as marks, several entries in a chunk."""

    version: str = "0.13.0"

    def asked(self, call: Call) -> Body:
        body = dict(call.body)
        limit = call.options.get("num_predict", -1)
        if call.generates and limit > 0:
            body["options"] = {**call.options, "num_predict": limit - 1}
        return body

    def instead(self, call: Call) -> Answer | None:
        """Where 1 was asked, nothing comes (0 would be no limit)."""
        if call.generates and call.options.get("num_predict") == 1:
            return whole({"response": "", "done": True, "done_reason": "length", "eval_count": 1})
        return None

    def lines(self, call: Call, lines: list[Body]) -> list[Body]:
        if call.path == "/api/version":
            return [{"version": self.version}]
        for line in lines:
            if line.get("logprobs"):
                line["logprobs"] = [entry for each in line["logprobs"] for entry in _fragments(each)]
        if not call.streams:
            return lines
        *chunks, last = lines
        pairs = zip(chunks[::2], chunks[1::2], strict=False)
        odd = chunks[-1:] if len(chunks) % 2 else []
        return [*(_two(first, second) for first, second in pairs), *odd, last]


def _fragments(entry: Body) -> list[Body]:
    """A character of several tokens as so many marks."""
    if entry["token"].isascii():
        return [entry]
    return [{"token": "\ufffd", "logprob": entry["logprob"], "top_logprobs": []} for _ in range(3)]


def _two(first: Body, second: Body) -> Body:
    """Two chunks as one."""
    place, key = ("message", "content") if "message" in first else (None, "response")
    joined = {**second, "logprobs": [*first.get("logprobs", []), *second.get("logprobs", [])]}
    text = (first[place] if place else first)[key] + (second[place] if place else second)[key]
    if place:
        joined[place] = {**second[place], key: text}
    else:
        joined[key] = text
    return joined


@dataclass
class Busy(Manners):
    """Refuses what `when` says. `times`: how often the same body is refused; None: always."""

    when: Callable[[Call], bool]
    times: int | None = None
    answer: Answer = BUSY
    _refused: dict[str, int] = field(default_factory=dict)

    def instead(self, call: Call) -> Answer | None:
        body = json.dumps(call.body, sort_keys=True)
        if not self.when(call) or self._refused.get(body, 0) == self.times:
            return None
        self._refused[body] = self._refused.get(body, 0) + 1
        return self.answer


@dataclass
class Hanging(Manners):
    when: Callable[[Call], bool]

    def hangs(self, call: Call) -> bool:
        return self.when(call)


@dataclass
class Changed(Manners):
    """Changes each line of what `when` says."""

    change: Callable[[Body], Body | None]
    when: Callable[[Call], bool] = lambda call: call.generates

    def line(self, call: Call, line: Body) -> Body | None:
        return self.change(line) if self.when(call) else line


@dataclass
class Cut(Manners):
    """Sends so many bytes of an answer, or all but so many where it is negative, and breaks the connection.

    `then`: or ends the answer as if it was whole, or says nothing more.
    """

    when: Callable[[Call], bool]
    bytes: int
    then: Then = "break"

    def cut(self, call: Call, body: bytes) -> tuple[int, Then] | None:
        if not self.when(call):
            return None
        return (self.bytes if self.bytes >= 0 else max(0, len(body) + self.bytes)), self.then


def no_rows(line: Body) -> Body:
    """Without log-probabilities."""
    return {key: value for key, value in line.items() if key != "logprobs"}


def broken_off(line: Body) -> Body:
    """As Ollama ends a reply that repeats itself: not done, and no reason."""
    return {key: value for key, value in line.items() if key != "done_reason"} | {"done": False}


def thought(line: Body) -> Body:
    """The text as thinking, whatever was asked."""
    if "message" in line:
        return line
    return {**line, "response": "", "thinking": line["response"]} if line.get("response") else line


def loaded_anew(line: Body) -> Body:
    return {**line, "load_duration": 3_000_000_000} if line.get("done") else line


@dataclass
class Lines(Manners):
    """The first lines of a stream, and another one in the place of the rest."""

    when: Callable[[Call], bool]
    first: int
    then: Body

    def lines(self, call: Call, lines: list[Body]) -> list[Body]:
        return [*lines[: self.first], self.then] if self.when(call) else lines


@dataclass
class RefusedRows(Manners):
    """Refuses the rows of a round that `which` says: the place in the order of arrival, and whether it is the first.

    The first row stands where the draft began. `times`: how often each; None: always.
    """

    which: Callable[[int, bool], bool]
    times: int | None = None
    answer: Answer = BUSY
    _arrived: int = 0
    _begun: str = ""
    _refused: dict[str, int] = field(default_factory=dict)

    def instead(self, call: Call) -> Answer | None:
        if call.drafts:
            self._arrived, self._begun = 0, str(call.body["prompt"])
        if not call.is_row:
            return None
        prompt = str(call.body["prompt"])
        if prompt not in self._refused:
            self._arrived += 1
            if not self.which(self._arrived, prompt == self._begun):
                return None
        if self._refused.get(prompt, 0) == self.times:
            return None
        self._refused[prompt] = self._refused.get(prompt, 0) + 1
        return self.answer


def third(arrived: int, first: bool) -> bool:
    return arrived == 3 and not first


def all_but_the_first(arrived: int, first: bool) -> bool:
    return not first
