"""An Ollama whose models write what is written down, at temperature 0: what a reply has to be is known before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.serving import JSON, NDJSON, Receive, Send, read_body

ASSISTANT, CLOSE = "<|im_start|>assistant\n", "<|im_end|>\n"
ASTRAY = " astray"


@dataclass(frozen=True)
class Piece:
    """What one draw adds to the text. `tokens`: more than one, where a character takes several."""

    text: str
    tokens: int = 1


def pieces(text: str, *several: str) -> tuple[Piece, ...]:
    """A text as words with the space before them, each a token; the `several` take three."""
    words = [f" {word}" for word in text.split(" ")]
    words[0] = words[0].removeprefix(" ")
    return tuple(Piece(word, 3 if word.strip() in several else 1) for word in words)


@dataclass(frozen=True)
class ScriptedModel:
    """`reply` is what it writes, whatever is asked; `ASTRAY` what it writes after any other text.

    `slips`: at every so many pieces it writes something else, as a fair draft model would; 0: never. `show` goes
    into the answer of /api/show, `info` into its `model_info` when that is asked verbosely.
    """

    reply: Sequence[Piece]
    slips: int = 0
    digest: str = ""
    show: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    thinking: str = ""  # what /api/chat gives as thinking before the answer

    def after(self, written: str) -> Iterator[Piece]:
        """What it writes after the reply's first characters `written`."""
        place = self._place(written)
        for number, piece in enumerate(self.reply if place is not None else (), start=0):
            if place is None or number < place:
                continue
            if self.slips and number % self.slips == self.slips - 1:
                yield Piece(" er")
                break
            yield piece
        else:
            if place is not None:
                return
        for _ in range(100):
            yield Piece(ASTRAY)

    def _place(self, written: str) -> int | None:
        """How many pieces of the reply the text is; None when it is something else."""
        ends = [""]
        for piece in self.reply:
            ends.append(ends[-1] + piece.text)
        return ends.index(written) if written in ends else None

    def count(self, written: str) -> int:
        """The tokens of a text."""
        place = 0
        for number, piece in enumerate(self.reply):
            if not written.startswith(piece.text, place):
                return sum(each.tokens for each in self.reply[:number]) + (place < len(written))
            place += len(piece.text)
        return sum(piece.tokens for piece in self.reply) + (place < len(written))


@dataclass(frozen=True)
class Call:
    """A request, and the how manieth of its path it is, from 0."""

    path: str
    body: Mapping[str, Any]
    number: int = 0

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(self.body.get("options") or {})

    @property
    def renders(self) -> bool:
        return bool(self.body.get("_debug_render_only"))

    @property
    def streams(self) -> bool:
        return self.path in ("/api/generate", "/api/chat") and self.body.get("stream") is not False

    @property
    def generates(self) -> bool:
        """Whether text is wanted."""
        return self.path in ("/api/generate", "/api/chat") and not self.renders and self.body.get("prompt") != ""

    @property
    def drafts(self) -> bool:
        return self.generates and self.model == "draft"

    @property
    def is_row(self) -> bool:
        return self.generates and self.model == "target" and self.options.get("num_predict") in (1, 2)


@dataclass
class ScriptedOllama:
    models: Mapping[str, ScriptedModel]
    version: str = "0.33.0"
    prompt_tokens: int = 10  # of any rendered prompt
    context_length: int = 4096
    loaded: Sequence[str] | None = None  # the models that /api/ps lists; None: all
    calls: list[Call] = field(default_factory=list)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        raw = await read_body(receive)
        path = scope["path"]
        call = Call(path, json.loads(raw) if raw else {}, sum(each.path == path for each in self.calls))
        self.calls.append(call)
        status, answer = self._answer(call)
        kind = NDJSON if isinstance(answer, list) else JSON
        lines = answer if isinstance(answer, list) else [answer]
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for line in lines:
            await send({"type": "http.response.body", "body": json.dumps(line).encode() + b"\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def asked(self, path: str, model: str | None = None) -> list[Call]:
        return [call for call in self.calls if call.path == path and model in (None, call.model)]

    def _answer(self, call: Call) -> tuple[int, Any]:
        plain: dict[str, Callable[[], Any]] = {
            "/api/version": lambda: {"version": self.version},
            "/api/tags": lambda: {"models": [self._listed(name) for name in self.models]},
            "/api/ps": lambda: {"models": [self._running(name) for name in self._in_memory()]},
        }
        if call.path in plain:
            return 200, plain[call.path]()
        model = self.models.get(call.model.removesuffix(":latest"))
        if model is None:
            return 404, {"error": f"model '{call.model}' not found"}
        if call.path == "/api/show":
            return 200, self._show(model, verbose=bool(call.body.get("verbose")))
        if call.renders:
            return 200, {"model": call.model, "_debug_info": {"rendered_template": _rendered(call)}}
        if call.path == "/api/chat":
            return 200, self._shaped(call, self._chat(model, call))
        if not call.body.get("prompt"):
            return 200, {"model": call.model, "response": "", "done": True, "done_reason": "load"}
        return 200, self._shaped(call, self._generate(model, call, str(call.body["prompt"])))

    def _in_memory(self) -> Sequence[str]:
        return list(self.models) if self.loaded is None else self.loaded

    def _listed(self, name: str) -> dict[str, Any]:
        digest = self.models[name].digest or hashlib.sha256(name.encode()).hexdigest()
        return {"name": f"{name}:latest", "model": f"{name}:latest", "digest": digest}

    def _running(self, name: str) -> dict[str, Any]:
        return {**self._listed(name), "context_length": self.context_length}

    def _show(self, model: ScriptedModel, *, verbose: bool) -> dict[str, Any]:
        info = model.info if verbose else dict.fromkeys(model.info)
        base = {"details": {"format": "gguf"}, "capabilities": ["completion"], "template": "{{ .Prompt }}"}
        return {**base, "model_info": dict(info), **model.show}

    def _chat(self, model: ScriptedModel, call: Call) -> list[dict[str, Any]]:
        lines = self._generate(model, call, _rendered(call))
        for line in lines:
            line["message"] = {"role": "assistant", "content": line.pop("response")}
        if model.thinking:
            lines.insert(
                0, {"done": False, "message": {"role": "assistant", "content": "", "thinking": model.thinking}}
            )
        return lines

    def _generate(self, model: ScriptedModel, call: Call, prompt: str) -> list[dict[str, Any]]:
        written = prompt.rpartition(ASSISTANT)[2]
        limit = int(call.options.get("num_predict") or -1)
        lines, sampled, reason = [], 0, "stop"
        for piece in model.after(written):
            if 0 <= limit < sampled + piece.tokens:
                sampled, reason = limit, "length"  # what of a character was sampled is lost
                break
            sampled += piece.tokens
            lines.append(_chunk(call, piece))
            if sampled == limit:
                reason = "length"
                break
        last = {
            "response": "",
            "done": True,
            "done_reason": reason,
            "total_duration": 3_000_000,
            "load_duration": 1_000_000,
            "prompt_eval_count": self.prompt_tokens + model.count(written),
            "prompt_eval_duration": 1_000_000,
            "eval_count": sampled + (reason == "stop"),
            "eval_duration": 1_000_000,
        }
        return [{"model": call.model, **line} for line in [*lines, last]]

    def _shaped(self, call: Call, lines: list[dict[str, Any]]) -> Any:
        """The lines, or all of them as one object."""
        if call.streams:
            return lines
        whole = dict(lines[-1])
        logprobs = [entry for line in lines for entry in line.get("logprobs", [])]
        if logprobs:
            whole["logprobs"] = logprobs
        if "message" in whole:
            whole["message"] = {
                "role": "assistant",
                "content": "".join(line["message"]["content"] for line in lines),
            }
        else:
            whole["response"] = "".join(line["response"] for line in lines)
        return whole


def _rendered(call: Call) -> str:
    turns = [f"<|im_start|>{each['role']}\n{each['content']}{CLOSE}" for each in call.body.get("messages", [])]
    return "".join(turns) + ASSISTANT


def _chunk(call: Call, piece: Piece) -> dict[str, Any]:
    chunk: dict[str, Any] = {"response": piece.text, "done": False}
    if call.body.get("logprobs"):
        alternatives = [{"token": piece.text, "logprob": -0.1}, {"token": " else", "logprob": -2.5}]
        chunk["logprobs"] = [{"token": piece.text, "logprob": -0.1, "top_logprobs": alternatives}]
    return chunk


SONG = pieces(
    "The tide comes in, the tide goes out, and 東 lies where the sun rises. Nobody knows how old the song is, "
    "but every child of the coast can sing it.",
    "東",
)
"""What the target writes: 34 words, of which one takes three tokens."""


def song(**changes: Any) -> ScriptedOllama:
    """The pair that most tests are about. `changes`: of the server."""
    models = {"target": ScriptedModel(SONG), "draft": ScriptedModel(SONG, slips=6)}
    return replace(ScriptedOllama(models), **changes)
