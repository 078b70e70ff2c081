"""Counters for Prometheus, under the names that vLLM's users know, and how requests went."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specollama.server.proxy.request_record import RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class Metrics:
    """One server's counters, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        prefix = "spec_decode_num"
        self._drafts = self._counter(f"{prefix}_drafts", "Rounds in which tokens were drafted.", "pair")
        self._drafted = self._counter(f"{prefix}_draft_tokens", "Tokens drafted.", "pair")
        self._accepted = self._counter(f"{prefix}_accepted_tokens", "Drafted tokens that were accepted.", "pair")
        self._at = self._counter(
            f"{prefix}_accepted_tokens_per_pos", "Accepted tokens by place in the draft.", "pair", "position"
        )
        self._requests = self._counter("specollama_requests", "Requests answered.", "route", "status")
        self._aborted = self._counter("specollama_requests_aborted", "Requests whose client left.", "route")
        self._tokens = self._counter("specollama_generated_tokens", "Tokens of the replies for pairs.", "route")
        self._lost_lines = self._counter("specollama_log_lines_lost", "Lines of the log that couldn't be written.")
        self._running = Gauge("specollama_requests_running", "Requests under way.", registry=self._registry)
        self._duration = self._histogram("specollama_request_duration_seconds", "From request to end of the answer.")
        self._first = self._histogram("specollama_time_to_first_token_seconds", "From request to first text.")

    def request_started(self) -> None:
        self._running.inc()

    def request_ended(self, record: RequestRecord) -> None:
        """Count a request, and what was drafted for it."""
        self._running.dec()
        route = record.route
        self._requests.labels(route, str(record.status)).inc()
        self._duration.labels(route).observe(record.seconds)
        if record.aborted:
            self._aborted.labels(route).inc()
        if record.first_byte is not None:
            self._first.labels(route).observe(record.first_byte)
        if record.stats is None or record.pair is None:
            return
        stats, pair = record.stats, record.pair
        self._tokens.labels(route).inc(stats.eval_count)
        self._drafts.labels(pair).inc(stats.rounds)
        self._drafted.labels(pair).inc(stats.drafted)
        self._accepted.labels(pair).inc(stats.accepted)
        for position, count in enumerate(stats.accepted_at):
            self._at.labels(pair, str(position)).inc(count)

    def log_line_lost(self) -> None:
        self._lost_lines.inc()

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(name, meaning, ("route",), registry=self._registry, buckets=_SECONDS)
