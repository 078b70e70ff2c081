"""A second Ollama whose engine drafts by itself: requirements, start, and a check that it speculates.

From 0.30 on Ollama hands its environment to llama.cpp's llama-server, which reads its own switches there. Which model
drafts is set for the whole server, so that it is one for a single target.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from time import perf_counter

import httpx
import psutil

from specollama.backends.llama_cpp import gguf_metadata
from specollama.backends.llama_cpp.draft_compatibility import why_incompatible
from specollama.backends.llama_cpp.gguf_metadata import read_header
from specollama.backends.llama_cpp.memory_needs import weight_bytes
from specollama.backends.ollama import model_store
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import DEVELOPMENT_VERSION, parsed_version
from specollama.backends.ollama.schema import has_text
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.errors import EndpointError, RunError, Unreachable, UnsupportedPair

MIN_VERSION = (0, 30, 0)
N_MAX, P_MIN = 8, 0.7
_START = 60.0  # seconds until the server answers
_STOP = 10.0  # seconds that it gets to end by itself
_LOG = 0.3  # seconds by which its log may lag behind
_LAST = 200  # lines of its log that are kept
_HEADROOM = 512 * 2**20  # bytes for the caches and the rest
_COUNTS = re.compile(r"draft acceptance\s*=.*?(\d+) accepted\s*/\s*(\d+) generated")
_FAULT = re.compile(r"level=ERROR|\berror\b|failed|must match", re.IGNORECASE)
_SAID = re.compile(r'msg="((?:[^"\\]|\\.)*)"')
_PROMPT = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"
_TOKENS = 48


@dataclass(frozen=True, slots=True)
class NativeSetup:
    """A target served with its draft by one engine. `draft`: the file of its weights."""

    model: str
    target: Path
    draft: Path
    url: str
    n_max: int = N_MAX
    p_min: float = P_MIN

    @property
    def environment(self) -> dict[str, str]:
        """Of a second server, beside the one that is there."""
        return server_environment(self.target, self.draft, self.url, self.n_max, self.p_min)

    @property
    def drafting(self) -> dict[str, str]:
        """Environment variables that make its engine draft."""
        return draft_environment(self.draft, self.n_max, self.p_min)


def server_environment(
    target: PurePath, draft: PurePath, url: str, n_max: int = N_MAX, p_min: float = P_MIN
) -> dict[str, str]:
    """Of a server that serves a target of a store with its draft, beside the server that is there."""
    return {
        "OLLAMA_HOST": httpx.URL(url).netloc.decode(),
        "OLLAMA_MODELS": str(target.parent.parent),  # the store that it was found in
        "OLLAMA_NOPRUNE": "1",  # the other server may be pulling into it
        **draft_environment(draft, n_max, p_min),
    }


def draft_environment(draft: PurePath, n_max: int = N_MAX, p_min: float = P_MIN) -> dict[str, str]:
    """What makes llama.cpp's server draft: its own variables, which Ollama hands on."""
    return {
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "LLAMA_ARG_SPEC_TYPE": "draft-simple",
        "LLAMA_ARG_SPEC_DRAFT_MODEL": str(draft),
        "LLAMA_ARG_SPEC_DRAFT_N_MAX": str(n_max),
        "LLAMA_ARG_SPEC_DRAFT_P_MIN": f"{p_min:g}",
    }


def make_setup(
    settings: PairSettings, environ: Mapping[str, str], n_max: int | None = None, p_min: float | None = None
) -> NativeSetup:
    """Set-up of the pair's native server. Raises UnsupportedPair or RunError, with one line, if it is impossible."""
    target = settings.target
    if not isinstance(target, ModelRef):
        raise UnsupportedPair(f"{target} is a file: a native server takes models of Ollama's store")
    drafts = [draft for draft in settings.drafts if isinstance(draft, ModelRef | FileRef)]
    if not drafts:
        raise UnsupportedPair("a native server needs a draft model: prompt lookup alone has none")
    draft = drafts[0]
    lengths = settings.lookahead if isinstance(settings.lookahead, tuple) else (settings.lookahead,)
    longest = max((length for length in lengths if isinstance(length, int)), default=0)
    return NativeSetup(
        target.model,
        _here(target.model, environ),
        draft.path if isinstance(draft, FileRef) else _here(draft.model, environ),
        settings.native.url,
        n_max or longest or N_MAX,
        P_MIN if p_min is None else p_min,
    )


def _here(name: str, environ: Mapping[str, str]) -> Path:
    found = model_store.find_weights(name, environ)
    if found is None:
        places = ", ".join(str(place) for place in model_store.store_folders(environ))
        advice = f"run this where Ollama's models are, set OLLAMA_MODELS, or `ollama pull {name}`"
        raise RunError(f"{name} isn't in a model store on this machine ({places}): {advice}")
    return found


def check_draft_compatibility(setup: NativeSetup) -> None:
    """Raises UnsupportedPair where llama.cpp wouldn't let the draft speculate, by its own conditions."""
    gguf_metadata.refuse_unreadable(setup.target)
    gguf_metadata.refuse_unreadable(setup.draft)
    if reason := why_incompatible(read_header(setup.target).fields, read_header(setup.draft).fields):
        raise UnsupportedPair(f"{setup.model}: its engine takes no such draft: {reason}")


def check_memory(setup: NativeSetup, free: int, *, gpu: bool) -> str:
    """A line where the free memory (bytes) doesn't hold both models: Ollama counts only the target. "" where it does.

    Raises RunError with it unless a `gpu` has memory of its own, whose size isn't known here: a reply shows it then.
    """
    needed = weight_bytes(setup.target) + weight_bytes(setup.draft) + _HEADROOM
    if needed <= free:
        return ""
    words = f"{setup.model} and its draft need {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of memory are free"
    if gpu:
        return f"{words}: the GPU has to hold the rest"
    raise RunError(f"{words}: `ollama stop {setup.model}` on the other server, or take smaller models")


def find_executable(given: Path | None) -> Path:
    """The `ollama` to start. Raises RunError where there is none."""
    found = shutil.which(str(given.absolute() if given.exists() else given) if given else "ollama")
    if found is None:
        raise RunError(f"{given or 'ollama'}: no such program; install Ollama, or name it with --ollama FILE")
    return Path(found)


def check_version(program: Path) -> str:
    """Its version. Raises RunError where it is too old, or isn't Ollama."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{program}: {getattr(error, 'strerror', None) or error}") from error
    told = re.findall(r"version (?:is )?v?(\d+\.\d+\.\d+\S*)", done.stdout + done.stderr)
    if not told:
        raise RunError(f"{program} --version doesn't answer as Ollama does")
    if parsed_version(told[-1]) != DEVELOPMENT_VERSION and parsed_version(told[-1]) < MIN_VERSION:
        raise RunError(f"{program} is Ollama {told[-1]}: its engine drafts from {MIN_VERSION[0]}.{MIN_VERSION[1]} on")
    return str(told[-1])


@dataclass(slots=True)
class NativeServer:
    """A running `ollama serve` and its log."""

    setup: NativeSetup
    process: asyncio.subprocess.Process
    accepted: int = 0
    drafted: int = 0
    replies: int = 0
    _log: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST))

    async def follow_log(self) -> None:
        """Follow the log to its end."""
        assert self.process.stderr
        while line := await self.process.stderr.readline():
            self.note_log_line(line.decode("utf-8", "replace").rstrip())

    def note_log_line(self, line: str) -> None:
        self._log.append(line)
        if counts := _COUNTS.search(line):
            self.accepted += int(counts[1])
            self.drafted += int(counts[2])
            self.replies += 1

    @property
    def last_fault(self) -> str:
        """What its log says went wrong last; "" where it says nothing of the kind."""
        line = next((line.strip() for line in reversed(self._log) if _FAULT.search(line)), "")
        said = _SAID.search(line)
        return said[1] if said else line

    async def wait_until_ready(self, server: OllamaServer) -> str:
        """Wait until it answers; its version. Raises RunError when it ends or doesn't answer in time."""
        began = perf_counter()
        while self.process.returncode is None and perf_counter() - began < _START:
            with suppress(Unreachable):
                return await server.version()
            await asyncio.sleep(0.1)
        if self.process.returncode is None:
            raise RunError(f"{self.setup.url}: no answer in {_START:g} s")
        raise RunError(await self.exit_reason())

    async def exit_reason(self) -> str:
        """Why it has ended, in a line."""
        await asyncio.sleep(_LOG)
        why = f": {self.last_fault}" if self.last_fault else ""
        return f"`ollama serve` at {self.setup.url} ended with code {self.process.returncode}{why}"


@asynccontextmanager
async def running_server(
    setup: NativeSetup, program: Path, environ: Mapping[str, str]
) -> AsyncGenerator[NativeServer, None]:
    """The server, started and followed; it and its engines are ended with the block."""
    process = await asyncio.create_subprocess_exec(
        program,
        "serve",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**environ, **setup.environment},
        limit=2**20,  # bytes of a line of its log
        start_new_session=True,  # Ctrl-C is ours: it is ended below
    )
    server = NativeServer(setup, process)
    reading = asyncio.create_task(server.follow_log())
    try:
        yield server
    finally:
        await _end(process)
        with suppress(TimeoutError):
            await asyncio.wait_for(reading, _STOP)  # to the end of the log, which its engines write to as well


async def _end(process: asyncio.subprocess.Process) -> None:
    """Terminate the server and its engines; processes that don't end are killed."""
    engines = _below(process.pid)
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(wait_for_exit(process), _STOP)
    finally:  # also where a second signal ends the waiting
        _kill(process, engines)
    await process.wait()


def _kill(process: asyncio.subprocess.Process, engines: Sequence[psutil.Process]) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its session's, also where it has ended before them
    for engine in engines:
        with suppress(psutil.NoSuchProcess):
            engine.kill()
    with suppress(ProcessLookupError):
        process.kill()


async def wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Wait until the server has ended. `Process.wait` would also wait for its engines, which have its log open."""
    while process.returncode is None:  # noqa: ASYNC110  (nothing tells)
        await asyncio.sleep(0.05)


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True, slots=True)
class ObservedReply:
    """What a reply of a server showed: `hidden` of its tokens came out of drafts (they have no log-probabilities)."""

    text: str
    tokens: int
    hidden: int
    rate: float  # tokens a second, of decoding

    @property
    def speculates(self) -> bool:
        return self.hidden > 0


async def observe_reply(
    server: OllamaServer, model: str, *, tokens: int = _TOKENS, logprobs: bool = True
) -> ObservedReply:
    """A reply that any model can foretell, at temperature 0. Raises EndpointError."""
    body = {
        "model": model,
        "prompt": _PROMPT,
        "raw": True,
        "think": False,
        "truncate": False,
        "logprobs": logprobs,
        "options": {"temperature": 0, "num_predict": tokens, "stop": []},
    }
    text, shown, hidden, rate, count = "", 0, 0, 0.0, 0
    async with aclosing(server.stream_generate(body)) as chunks:
        async for chunk in chunks:
            text += chunk.response
            told = len(chunk.logprobs or ())
            shown += told
            hidden += not told and has_text(chunk)
            if chunk.done:
                count = chunk.eval_count or 0
                rate = count / (chunk.eval_duration or 1) * 1e9
    return ObservedReply(text, count, hidden if shown else 0, rate)


async def require_drafting(server: NativeServer, at: OllamaServer) -> ObservedReply:
    """Load the target and let it answer. Raises RunError where nothing shows that it drafts."""
    try:
        await observe_reply(at, server.setup.model)  # loads it
        shown = await observe_reply(at, server.setup.model)
    except EndpointError as error:
        await asyncio.sleep(_LOG)
        why = f" ({server.last_fault})" if server.last_fault else ""
        raise RunError(f"{server.setup.model} can't be served with its draft: {error}{why}") from error
    await asyncio.sleep(_LOG)
    if not shown.speculates and not server.drafted:
        why = f" (its log: {server.last_fault})" if server.last_fault else ""
        raise RunError(
            f"{server.setup.url} answers, but doesn't speculate: none of {shown.tokens} tokens came from a draft{why}"
        )
    return shown
