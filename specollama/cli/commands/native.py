"""`specollama native`: a second Ollama whose own engine drafts, for one pair."""

from __future__ import annotations

import asyncio
import json as json_module
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from specollama.backends.llama_cpp.hardware import free_memory, has_gpu_memory
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import fetch_model_info
from specollama.backends.ollama.server_watch import is_loaded
from specollama.cli.terminal import completion, options, output
from specollama.config.endpoints import Endpoint, loopback_port
from specollama.config.settings import ModelRef, PairSettings
from specollama.errors import EndpointError, RunError, UsageError
from specollama.tools import native_server
from specollama.tools.doctor.service_environment import Service, likely_local_service, service_lines
from specollama.tools.native_server import NativeServer, NativeSetup, ObservedReply


def native(
    pair: Annotated[
        str | None, typer.Argument(metavar="PAIR", autocompletion=completion.pairs, help="A pair of the configuration.")
    ] = None,
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    ollama: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default="ollama, where it is found", help="What to start.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, show_default="the pair's `native`, else 11436", help="Where it listens."),
    ] = None,
    n_max: Annotated[
        int | None,
        typer.Option(min=1, show_default="the pair's lookahead, else 8", help="Most tokens that are drafted in a row."),
    ] = None,
    p_min: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="How sure the draft model has to be of a token for it to count.")
    ] = native_server.P_MIN,
    print_only: Annotated[
        bool, typer.Option("--print", help="Start nothing: print what to put into the environment of a service.")
    ] = False,
    service: Annotated[Service | None, typer.Option(show_default="as here", help="For --print: how it is run.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON objects, one a line.")] = False,
) -> None:
    """Start a second Ollama that speculates by itself, watch it, and stop it with Ctrl-C (or SIGTERM, SIGHUP).

    Needs Ollama 0.30 or later and both models in its store here. It is ready once a reply has shown that it drafts;
    the pair then uses it by the route `native`.
    """
    known = options.load_configuration(config)
    settings = options.pair_settings(known, pair, target, draft, {})
    if port is not None:
        settings = replace(settings, native=Endpoint(url=f"http://127.0.0.1:{port}", source="--port"))
    setup = native_server.make_setup(settings, os.environ, n_max, p_min)
    native_server.check_draft_compatibility(setup)
    if print_only:
        _print(setup, service or likely_local_service(), json=json)
        return
    if loopback_port(setup.url) is None:
        raise UsageError(f"{settings.native}: a native server is started on this machine; give --port")
    program = native_server.find_executable(ollama)
    version = native_server.check_version(program)
    teller = _Teller(json)
    if full := native_server.check_memory(setup, free_memory(), gpu=has_gpu_memory()):
        teller.tell("warning", full, message=full)
    with suppress(asyncio.CancelledError):  # by one of the signals: it has stopped as it was told
        asyncio.run(_serve(setup, program, settings, teller, version))


def _print(setup: NativeSetup, service: Service, *, json: bool) -> None:
    second = service is Service.SHELL
    environment = setup.environment if second else setup.drafting
    if json:
        print(json_module.dumps({"environment": environment, "lines": list(service_lines(service, environment))}))
        return
    print("\n".join(service_lines(service, environment)))
    if not second:
        output.stderr().out(f"for an Ollama that serves {setup.model} alone: other models don't load with that draft")


class _Teller:
    """Lines for people on stderr, or objects for programs on stdout."""

    def __init__(self, json: bool) -> None:
        self._json = json

    def tell(self, event: str, words: str, **more: Any) -> None:
        if self._json:
            print(output.json_text({"event": event, **more}), flush=True)
        else:
            output.stderr().out(words)


async def _serve(setup: NativeSetup, program: Path, settings: PairSettings, teller: _Teller, version: str) -> None:
    """Until it is ended, or ends. Raises RunError where it doesn't come up, doesn't speculate, or ends by itself."""
    await _refuse_taken(setup)
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    for number in stop_signals():
        loop.add_signal_handler(number, task.cancel)
    plain = await _plain(settings)
    teller.tell("starting", f"starting {program} ({version}) for {setup.model} on {setup.url}", url=setup.url)
    async with native_server.running_server(setup, program, os.environ) as server, OllamaServer(setup.url) as at:
        await server.wait_until_ready(at)
        shown = await native_server.require_drafting(server, at)
        teller.tell("ready", _ready(setup, server, shown, plain), **_figures(server, shown, plain))
        try:
            await native_server.wait_for_exit(server.process)
        finally:
            teller.tell("stopped", _tally(server), replies=server.replies, **_counts(server))
        raise RunError(await server.exit_reason())


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop the server, beside Ctrl-C. Under `nohup` a closed terminal (SIGHUP) is ignored."""
    if sys.platform == "win32":
        return []
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]


async def _refuse_taken(setup: NativeSetup) -> None:
    async with OllamaServer(setup.url, connect_timeout=1, idle_timeout=2) as at:
        try:
            await at.version()
        except EndpointError:
            return
    raise RunError(f"{setup.url} answers already: another server listens there; give another --port")


async def _plain(settings: PairSettings) -> ObservedReply | None:
    """The same reply from the target's own server; None where it isn't loaded there, since this wouldn't load it."""
    target = settings.target
    assert isinstance(target, ModelRef)
    try:
        async with OllamaServer(target.endpoint.url, **target.endpoint.connection_settings(os.environ)) as server:
            if not await is_loaded(await fetch_model_info(server, target.model)):
                return None
            await native_server.observe_reply(server, target.model)
            return await native_server.observe_reply(server, target.model, logprobs=False)
    except EndpointError:
        return None


def _ready(setup: NativeSetup, server: NativeServer, shown: ObservedReply, plain: ObservedReply | None) -> str:
    drafted = f"{shown.hidden} of {shown.tokens} tokens came out of drafts" if shown.hidden else "it drafts"
    counts = f", {server.accepted} of {server.drafted} drafted ones accepted" if server.drafted else ""
    lines = [f"ready: {setup.url} speculates ({drafted}{counts}, {shown.rate:.1f} tokens/s{_beside(shown, plain)})"]
    lines.append(f'in the pair: route = "native"{_where(setup)}; Ctrl-C stops it')
    return "\n".join(lines)


def _beside(shown: ObservedReply, plain: ObservedReply | None) -> str:
    """A factor only with a look at the texts."""
    if plain is None or not plain.rate:
        return ""
    same = "the same text" if plain.text == shown.text else "another text, so no factor"
    factor = f", {shown.rate / plain.rate:.2f}x" if plain.text == shown.text else ""
    return f"; plain {plain.rate:.1f}{factor}, {same}"


def _where(setup: NativeSetup) -> str:
    return "" if setup.url == "http://127.0.0.1:11436" else f', native = "{setup.url}"'


def _tally(server: NativeServer) -> str:
    if not server.drafted:
        return "stopped"
    share = server.accepted / server.drafted
    replies = "1 reply" if server.replies == 1 else f"{server.replies} replies"
    return f"stopped: {server.accepted} of {server.drafted} drafted tokens accepted ({share:.0%}) in {replies}"


def _counts(server: NativeServer) -> dict[str, int]:
    return {"drafted": server.drafted, "accepted": server.accepted}


def _figures(server: NativeServer, shown: ObservedReply, plain: ObservedReply | None) -> Mapping[str, Any]:
    return {
        "url": server.setup.url,
        "tokens": shown.tokens,
        "from_drafts": shown.hidden,
        "tokens_per_second": round(shown.rate, 2),
        "plain_tokens_per_second": round(plain.rate, 2) if plain else None,
        "same_text": plain.text == shown.text if plain else None,
        **_counts(server),
    }
