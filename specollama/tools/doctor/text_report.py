"""Findings about a pair as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from specollama.tools.doctor.findings import LanesFinding, PairFindings, RouteFinding, ServerFinding


def server_line(server: ServerFinding) -> str:
    """A server in a line."""
    loaded = ", ".join(f"{model.name} ({_place(model.on_gpu)})" for model in server.loaded)
    trip = f", {_milliseconds(server.round_trip)} away" if server.round_trip is not None else ""
    return f"{server.url}, Ollama {server.version} ({server.engine}){trip}{'; loaded: ' if loaded else ''}{loaded}"


def _place(on_gpu: float | None) -> str:
    if on_gpu is None:
        return "where, it doesn't say"
    return "CPU" if on_gpu == 0 else "GPU" if on_gpu == 1 else f"{on_gpu:.0%} on the GPU"


def pair_lines(found: PairFindings) -> Iterator[tuple[str, str]]:
    """Label and text of each line."""
    for role, model, server in (
        ("target", found.target, found.target_server),
        ("draft", found.draft, found.draft_server),
    ):
        yield role, f"{model} at {server_line(server)}" if server else model or "none"
    if found.target_server and found.target_server.known_faults:
        yield "version", "; ".join(found.target_server.known_faults)
    if found.draft_server:
        yield "tokenizers", found.tokenizers
        yield "chat", f"templates {found.templates}; delimiters {found.delimiters}; {found.thinking}"
    if any(found.context_lengths):
        yield "contexts", " and ".join(f"{length} tokens" if length else "unknown" for length in found.context_lengths)
    if isinstance(found.lanes, LanesFinding):
        yield "server", _lanes(found.lanes)
        rows = ", ".join(f"{count}: {_milliseconds(took)}" for count, took in found.lanes.rows.items())
        yield "rows", f"1: {_milliseconds(found.lanes.step)}, {rows}"
        step, request = _milliseconds(found.lanes.draft_step), _milliseconds(found.lanes.draft_overhead)
        yield "drafting", f"{step} a token, {request} a request"
    if not isinstance(found.local, str):
        passes = ", ".join(f"{size}: {_milliseconds(took)}" for size, took in sorted(found.local.passes.items()))
        step = f"; draft {_milliseconds(found.local.draft_step)} a token" if found.local.draft_step else ""
        yield "in process", f"{passes}{step}"
    if found.acceptance:
        assumed = (
            f"assumed: real prompts told nothing: {found.unasked}" if found.unasked else "assumed: --measure tells"
        )
        rested = f"of {found.acceptance.tested} tokens" if found.acceptance.is_measured else assumed
        yield "acceptance", f"{found.acceptance.rate:.0%} ({rested})"
    for place, route in enumerate(found.routes):
        yield "" if place else "routes", _route(route)
    yield "best", _best(found.best)


def _lanes(lanes: LanesFinding) -> str:
    at_once = "one request at a time" if lanes.slots < 2 else f"at least {lanes.slots} requests at once"
    cache = {None: "", True: ", one cache for all slots", False: ", a cache for each slot"}[lanes.unified]
    kept = "prompts are kept" if lanes.keeps else "prompts are read again each time"
    both = "both models stay loaded" if lanes.resident else "the models evict each other"
    itself = "; it drafts by itself" if lanes.itself else ""
    told = "" if lanes.logprobs else "; no log-probabilities"
    return f"{at_once}{cache}; {kept}; {both}{itself}{told}"


def _route(route: RouteFinding) -> str:
    if route.speedup is None:
        return f"{route.route}: {route.why}"
    how = f", at most {route.lookahead} drafted" if route.lookahead else ""
    sure = f" while the draft is {route.threshold:.0%} sure" if route.threshold else ""
    return f"{route.route}: {route.speedup:.2f}x expected{how}{sure}"


def _best(best: RouteFinding) -> str:
    if not best.lookahead:
        return str(best.route)
    return f"{best.route}, expected {best.speedup:.2f}x: `specollama bench` measures it"


def _milliseconds(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
