"""What is decided before anything is asked: whether it pays, how many rows, which replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from specollama.backends.engines import sglang, tensorrt_llm, vllm
from specollama.backends.engines.base import (
    Capabilities,
    DrawSettings,
    EngineInfo,
    PromptPosition,
    SampledToken,
    ScoringRequest,
)
from specollama.backends.engines.replicas import Replicas
from specollama.backends.llama_cpp.profiling import ModelProfile
from specollama.errors import BrokenReply, EndpointError, Refused, Unreachable
from specollama.pairs.routes.scoring_feasibility import max_rows, needs_request_per_row, why_not_faster
from specollama.spec_decode.calibration import MAX_DRAFT_TOKENS
from specollama.spec_decode.types import SamplingOptions

COLD, WARM = SamplingOptions(temperature=0), SamplingOptions(temperature=0.8)
FLAT = ModelProfile(passes={1: 0.1, 8: 0.12, 16: 0.15}, reading=0.001, plain=0.09)  # seconds: a GPU
STEEP = ModelProfile(passes={1: 0.1, 2: 0.25, 8: 0.9}, reading=0.001, plain=0.09)  # rows that don't share a pass


def test_rows_that_share_a_pass_pay_and_others_do_not() -> None:
    anything, eight = EngineInfo("m"), EngineInfo("m", slots=8)
    assert why_not_faster(FLAT, Capabilities(), anything, 100, COLD) == ""
    reason = why_not_faster(STEEP, Capabilities(), eight, 100, COLD)
    assert reason == "it doesn't pay here: a request for 2 places costs 2.8 steps of the engine's own stream"


def test_a_prompt_that_each_slot_would_have_to_read_first_is_counted() -> None:
    eight = EngineInfo("m", slots=8)
    assert why_not_faster(FLAT, Capabilities(), eight, 500, COLD) == ""
    reason = why_not_faster(FLAT, Capabilities(), eight, 2000, COLD)
    assert reason == "8 slots would read the prompt of 2000 tokens for 14.0 s first"
    assert why_not_faster(FLAT, Capabilities(), EngineInfo("m"), 2000, COLD) == ""  # blocks of one cache serve all rows


def test_no_more_rows_are_asked_for_than_there_are_slots_for() -> None:
    eight = EngineInfo("m", slots=8)
    assert max_rows(Capabilities(), eight, COLD) == 8
    assert max_rows(Capabilities(), EngineInfo("m"), COLD) == MAX_DRAFT_TOKENS + 1
    assert max_rows(Capabilities(one_pass=True), eight, COLD) == MAX_DRAFT_TOKENS + 1  # one pass is one request
    assert max_rows(Capabilities(one_pass=True), eight, WARM) == 8


def test_rows_with_seeds_are_requests_of_their_own() -> None:
    seeded = SamplingOptions(temperature=0.8, seed=3)
    assert not needs_request_per_row(Capabilities(), WARM)
    assert needs_request_per_row(Capabilities(), seeded)
    assert needs_request_per_row(Capabilities(needs_seed=True), WARM)
    assert not needs_request_per_row(Capabilities(needs_seed=True), SamplingOptions(temperature=0, seed=3))
    seeds = [DrawSettings(seeded, 3).seed_at(position) for position in range(100)]
    assert len(set(seeds)) == 100


@pytest.mark.parametrize("sampling", [vllm.sampling_body, sglang.sampling_body, tensorrt_llm.sampling_body])
def test_penalties_that_look_back_on_no_token_are_not_sent(
    sampling: Callable[[SamplingOptions], dict[str, Any]],
) -> None:
    penalties = {"repeat_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    assert sampling(replace(WARM, repeat_last_n=0, **penalties)) == sampling(WARM)
    assert (
        sampling(replace(WARM, **penalties)).items()
        >= {
            "repetition_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
        }.items()
    )


@dataclass
class Server:
    """An engine that answers, or fails."""

    url: str
    error: EndpointError | None = None
    asked: list[ScoringRequest] = field(default_factory=list)
    capabilities = Capabilities()

    async def info(self) -> EngineInfo:
        return EngineInfo("m", slots=4, context_length=100)

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        if self.error:
            raise self.error
        return [1, 2, 3]

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        self.asked.append(request)
        if self.error:
            raise self.error
        return [SampledToken(len(place.tokens)) for place in request.positions()]

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        raise NotImplementedError

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        raise NotImplementedError

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        raise NotImplementedError

    def stream(self, place: PromptPosition, limit: int | None, draws: DrawSettings) -> Any:
        raise NotImplementedError

    def chat(self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings) -> Any:
        raise NotImplementedError


DOWN = Unreachable("down", url="b")
ROWS = ScoringRequest(PromptPosition([7, 8], 0), [1, 2, 3, 4, 5])


async def test_rows_are_given_to_all_servers_in_order_and_slots_add_up() -> None:
    servers = [Server("a"), Server("b"), Server("c")]
    replicas = Replicas(servers)
    facts = await replicas.info()
    assert (facts.slots, facts.context_length) == (12, 100)
    rows = await replicas.score_positions(ROWS, DrawSettings(COLD))
    assert [row.token for row in rows if row] == [2, 3, 4, 5, 6, 7]
    assert sorted((each.first, each.end) for server in servers for each in server.asked) == [(0, 2), (2, 4), (4, 6)]


async def test_rows_that_are_asked_one_by_one_are_spread_as_well() -> None:
    servers = [Server("a"), Server("b"), Server("c")]
    replicas = Replicas(servers)
    for row in range(6):
        [drawn] = await replicas.score_positions(replace(ROWS, first=row, end=row + 1), DrawSettings(COLD))
        assert drawn == SampledToken(2 + row)
    assert [[each.first for each in server.asked] for server in servers] == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("down", url="a"),
        Refused("Loading model", url="a", status=503),
        BrokenReply("the connection broke", url="a"),
    ],
)
async def test_a_server_that_is_not_well_at_first_is_left_out(error: EndpointError) -> None:
    failing = Server("a", error=error)
    replicas = Replicas([failing, Server("b")])
    assert (await replicas.info()).slots == 4
    assert len(await replicas.score_positions(ROWS, DrawSettings(COLD))) == 6
    assert failing.asked == []


async def test_a_failed_server_rests_and_is_tried_again_later() -> None:
    now = 0.0
    well, failing = Server("a"), Server("b")
    replicas = Replicas([well, failing], clock=lambda: now)
    await replicas.info()
    failing.error = DOWN
    assert len(await replicas.score_positions(ROWS, DrawSettings(COLD))) == 6
    assert len(failing.asked) == 1
    await replicas.score_positions(ROWS, DrawSettings(COLD))
    assert len(failing.asked) == 1  # left out
    now, failing.error = 6.0, None
    await replicas.score_positions(ROWS, DrawSettings(COLD))
    assert len(failing.asked) == 2
    now, failing.error = 7.0, DOWN
    await replicas.score_positions(ROWS, DrawSettings(COLD))
    await replicas.score_positions(ROWS, DrawSettings(COLD))
    assert len(failing.asked) == 3


async def test_where_all_have_failed_the_last_error_is_told() -> None:
    servers = [Server("a", error=DOWN), Server("b", error=DOWN)]
    with pytest.raises(Unreachable, match="down"):
        await Replicas(servers).info()


async def test_what_one_refuses_the_others_are_not_asked_for() -> None:
    refusing = Server("a", error=Refused("too long", url="a", status=400))
    other = Server("b")
    replicas = Replicas([refusing, other])
    with pytest.raises(Refused, match="too long"):
        await replicas.info()
