"""Turn findings into advice. Pure: it sends no requests."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from specollama.config.validation import dotted_key
from specollama.pairs.routes.local import LocalObstacle, PackageMissing
from specollama.spec_decode.types import Route
from specollama.tools.doctor.findings import Advice, LanesFinding, Misfit, PairFindings, RouteFinding, ServerFinding

LANES_AT_ONCE = 8
_GAIN = 1.05  # below, a change isn't worth the trouble
_UNIFIED = {"LLAMA_ARG_KV_UNIFIED": "1", "LLAMA_ARG_CACHE_IDLE_SLOTS": "0"}


def known_faults(version: tuple[int, ...], development: bool = False) -> tuple[str, ...]:
    """Known faults of a version of Ollama that affect drafting and verifying."""
    if development or not version:
        return ()
    found = {
        "before 0.11.5 a chat can't be rendered without being answered": version < (0, 11, 5),
        "before 0.12.11 there are no log-probabilities": version < (0, 12, 11),
        "0.12.11 to 0.15.4 lose the last token of num_predict": (0, 12, 11) <= version < (0, 15, 5),
        "before 0.30 the Go runner samples in another order than llama.cpp": version < (0, 30),
        "0.30.0 leaves cached tokens out of prompt_eval_count": version == (0, 30, 0),
        "before 0.32.10 repeat_penalty is 1.1 unless it is set": version < (0, 32, 10),
    }
    return tuple(words for words, applies in found.items() if applies)


def server_advice(server: ServerFinding) -> Iterator[Advice]:
    """Advice about one server."""
    if server.fault:
        start = "start it (`ollama serve`)" if server.local else "start Ollama there, listening on that address"
        correct = "set OLLAMA_HOST" if server.source == "default" else f"correct {server.source}"
        yield Advice(server.fault.split("; is Ollama")[0], server.url, f"{start}, or {correct}", prevents=True)
    for model in server.loaded:
        if model.on_gpu is not None and 0 < model.on_gpu < 1:
            share = f"{model.on_gpu:.0%} of {model.name} is on the GPU, the rest is computed by the CPU"
            yield Advice(share, server.url, "give a smaller num_ctx, or take a smaller model or quantisation")


def give_advice(found: PairFindings) -> list[Advice]:
    """All advice for a pair; advice about what prevents speculation comes first."""
    if found.elsewhere:
        words = f"{found.target} is served by {found.elsewhere}, whose route is scoring"
        lines = (f"specollama pairs show {quote(found.name)} --measure",) if found.name else ()
        return [Advice(words, found.name, "its costs are measured with the pair's own requests", lines=lines)]
    servers = {server.url: server for server in (found.target_server, found.draft_server) if server}
    all_advice = [advice for server in servers.values() for advice in server_advice(server)]
    all_advice += _models(found)
    if not any(advice.prevents for advice in all_advice):
        all_advice += [
            *_faults(found),
            *_local(found),
            *_tokenizer(found),
            *_contexts(found),
            *_lanes(found),
            *_routes(found),
        ]
    return sorted(all_advice, key=lambda advice: not advice.prevents)


def _models(found: PairFindings) -> Iterator[Advice]:
    for model in found.missing:
        server = found.target_server if model == found.target else found.draft_server
        url = server.url if server else ""
        command = f"ollama pull {model}" if server is None or server.local else f"OLLAMA_HOST={url} ollama pull {model}"
        yield Advice(f"{model} isn't there", url, "pull it, or correct its name", True, lines=(command,))


def _faults(found: PairFindings) -> Iterator[Advice]:
    where = found.target_server.url if found.target_server else found.name
    for fault in found.faults:
        yield Advice(fault, where, _instead(fault, found), prevents=True)


def _instead(fault: str, found: PairFindings) -> str:
    if found.target_server is None:
        return "correct the pair's path, or the file"
    if fault == found.thinking:  # from outside it can't be told apart; its own engine needn't
        return "let its own engine draft (`specollama native`), take another target, or leave it plain"
    return "take another target, or leave it plain"


def _tokenizer(found: PairFindings) -> Iterator[Advice]:
    where = found.draft_server.url if found.draft_server else found.name
    if isinstance(found.tokenizers, Misfit):
        words = "take a draft of the target's own family: drafts of another vocabulary are put into the target's tokens"
        yield Advice(f"tokenizers: {found.tokenizers}", where, words, lines=("specollama pairs suggest",))
    if isinstance(found.delimiters, Misfit):
        words = "take a draft that knows the target's chat: what it drafts at a turn's end is rejected"
        yield Advice(f"delimiters: {found.delimiters}", where, words)


def _contexts(found: PairFindings) -> Iterator[Advice]:
    target, draft = found.context_lengths
    if target and draft and draft < target:
        words = f"{found.draft} has a context of {draft} tokens, {found.target} one of {target}"
        where = found.draft_server.url if found.draft_server else found.name
        lines = (f"[{dotted_key('pairs', found.name, 'options')}]", f"num_ctx = {target}") if found.name else ()
        do = "set num_ctx for both" if found.name else f"give --num-ctx {target}"
        yield Advice(words, where, f"beyond it nothing is drafted: {do}", lines=lines)


def _local(found: PairFindings) -> Iterator[Advice]:
    """Why the target isn't opened in process: first, since no other route gains as much on most machines."""
    if isinstance(found.local, LocalObstacle) and _worth_opening(found):
        install = ("pip install 'specollama[local]'",) if isinstance(found.local, PackageMissing) else ()
        yield Advice(found.local, found.name, "the route local is the one that gains on most machines", lines=install)


def _lanes(found: PairFindings) -> Iterator[Advice]:
    lanes, server = found.lanes, found.target_server
    if server is None or not isinstance(lanes, LanesFinding):
        return
    if not lanes.resident:
        yield Advice(
            "draft and target evict each other: each reply loads both anew",
            server.url,
            "let it keep two models, if the memory holds both; else set a smaller num_ctx, or draft on another server",
            environment={"OLLAMA_MAX_LOADED_MODELS": "2"},
        )
    if lanes.itself:
        yield Advice(
            "the server drafts by itself: tokens of its drafts come without log-probabilities",
            server.url,
            "leave it that: route native or plain; or unset LLAMA_ARG_SPEC_TYPE, and draft_num_predict = 0",
        )
    if not lanes.keeps:
        words = "prompts are read again by each request: rows cost a prompt each"
        yield Advice(words, server.url, "see that nothing else uses the model meanwhile; else leave the route lanes")
    other = found.best.route not in (Route.PLAIN, Route.LANES) and _gains(found.best)
    if (environment := _better_lanes(lanes, server)) and not other:
        slots = "works on one request at a time" if lanes.slots < 2 else f"works on {lanes.slots} requests at once"
        cache = "" if lanes.unified is None else ", its slots with a cache each" if not lanes.unified else ""
        do = "for the route lanes, which gains where 20 tokens in a pass cost little (a GPU, a large target)"
        yield Advice(f"{found.target} {slots}{cache}", server.url, do, environment=environment)


def _better_lanes(lanes: LanesFinding, server: ServerFinding) -> dict[str, str]:
    """Environment variables that let all rows of a round share a pass."""
    slots = {"OLLAMA_NUM_PARALLEL": str(LANES_AT_ONCE)} if lanes.slots < LANES_AT_ONCE / 2 else {}
    switchable = server.engine == "llama-server"
    unified = _UNIFIED if switchable and not lanes.unified else {}
    return {**slots, **unified}


def _routes(found: PairFindings) -> Iterator[Advice]:
    best = found.best
    known = {route.route: route for route in found.routes}
    chosen = known.get(found.route)
    if found.route is not Route.AUTO and _gains(best) and _slower(chosen, best):
        now = f", expected at {chosen.speedup:.2f}x," if chosen and chosen.speedup else ""
        yield Advice(
            f"route {found.route}{now} is set; {best.route} is expected at {best.speedup:.2f}x",
            dotted_key("pairs", found.name, "route"),
            f"set route = {_quoted(best.route)}, or leave it to auto",
            lines=(f"route = {_quoted(best.route)}",),
        )
    yield from _native(found, best)


def _native(found: PairFindings, best: RouteFinding) -> Iterator[Advice]:
    if best.route is Route.NATIVE and found.native and not found.native.running:
        route = "set the route" if found.name else f"give --route {Route.NATIVE}"
        do = f"start a second Ollama that speculates by itself, and {route}"
        models = f"--target {quote(found.target)} --draft {quote(found.draft)}"
        start = f"specollama native {quote(found.name) if found.name else models}"
        lines = (start, f"route = {_quoted(Route.NATIVE)}") if found.name else (start,)
        yield Advice(f"{found.target}'s own engine can draft: about {best.speedup:.2f}x", found.name, do, lines=lines)


def _worth_opening(found: PairFindings) -> bool:
    """Whether the target's server runs on this machine."""
    return found.target_server is not None and found.target_server.local


def _gains(route: RouteFinding) -> bool:
    return (route.speedup or 0) >= _GAIN


def _slower(chosen: RouteFinding | None, best: RouteFinding) -> bool:
    return chosen is None or (chosen.speedup or 1.0) * _GAIN < (best.speedup or 1.0)


def _quoted(route: Route) -> str:
    return f'"{route}"'
