"""What is asked of the servers: exact bodies, how many, in which order, and nothing once a reply is closed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.target import ParallelTarget, StreamTarget
from specollama.config.settings import PairSettings
from specollama.errors import EndpointError
from specollama.pairs.pair import Pair
from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.events import Text
from specollama.spec_decode.retokenization import CountedPath, ExactPath
from specollama.spec_decode.types import AcceptanceMethod, Draft, Route, SamplingOptions, Token
from tests.support.pair_replies import QUESTION, ask, reply
from tests.support.serving import Answer, Exchange, Recorder, whole

Pairs = Callable[..., PairSettings]

OPTIONS = {"temperature": 0, "num_predict": 12, "num_ctx": 1024, "seed": 7, "stop": ["@@"], "top_k": 30}
SENT = {
    "temperature": 0,
    "top_k": 30,
    "top_p": 0.9,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "stop": [],
    "num_ctx": 1024,
}
"""What every raw request carries besides its length and its seed."""


def raw(model: str, prompt: str, num_predict: int, seed: int, *, stream: bool = False) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "raw": True,
        "stream": stream,
        "think": False,
        "truncate": False,
        "logprobs": True,
        "top_logprobs": 20,
        "keep_alive": "5m",
        "options": {**SENT, "num_predict": num_predict, "seed": seed},
    }


# Exact bodies


async def test_a_chat_is_rendered_by_the_target_with_the_load_time_options_alone(
    recorder: Recorder, pair_settings: Pairs
) -> None:
    await reply(pair_settings(keep_alive="5m"), ask(**OPTIONS))
    (rendered,) = recorder.asked("/api/chat")
    assert rendered.body == {
        "model": "target",
        "messages": [{"role": "user", "content": QUESTION}],
        "options": {"num_ctx": 1024},
        "keep_alive": "5m",
        "truncate": False,
        "stream": False,
        "_debug_render_only": True,
    }


async def test_rows_and_drafts_have_these_bodies(recorder: Recorder, pair_settings: Pairs) -> None:
    answer = await reply(pair_settings(keep_alive="5m"), ask(**OPTIONS))
    prompt = recorder.asked("/api/chat")[0].answer["_debug_info"]["rendered_template"]
    texts = [piece.text for piece in answer.pieces]
    assert answer.stats.extensions == 0
    assert len(texts) == 12

    places = {"".join([prompt, *texts[:place]]): place for place in range(len(texts) + 1)}
    for row in recorder.rows:
        place = places[row.body["prompt"]]
        assert row.body == raw("target", row.body["prompt"], 1, position_seed(7, place))
    assert {places[row.body["prompt"]] for row in recorder.rows} == set(range(12))

    for draft in recorder.drafts:
        place, seed = places[draft.body["prompt"]], draft.options["seed"]
        assert draft.body == raw("draft", draft.body["prompt"], min(4, 12 - place - 1), seed)
        assert 0 <= seed < 2**31
    seeds = [draft.options["seed"] for draft in recorder.drafts]
    assert len(set(seeds)) == len(seeds)


async def test_the_greedy_route_asks_the_target_for_one_plain_stream(recorder: Recorder, pair_settings: Pairs) -> None:
    await reply(pair_settings(keep_alive="5m", route=Route.GREEDY), ask(**OPTIONS))
    prompt = recorder.asked("/api/chat")[0].answer["_debug_info"]["rendered_template"]
    (stream,) = recorder.asked("/api/generate", "target")
    assert stream.body == raw("target", prompt, 12, 7, stream=True)


async def test_a_plain_reply_is_the_targets_own_chat_with_all_options_as_they_came(
    recorder: Recorder, pair_settings: Pairs
) -> None:
    await reply(pair_settings(keep_alive=60, route=Route.PLAIN, options={"top_k": 5}), ask(**OPTIONS))
    (chat,) = recorder.asked("/api/chat")
    assert chat.body == {
        "model": "target",
        "messages": [{"role": "user", "content": QUESTION}],
        "options": OPTIONS,  # of the reply, which win over the pair's
        "keep_alive": 60,
        "stream": True,
    }
    assert not recorder.asked("/api/generate")


async def test_every_call_of_both_models_has_the_pairs_load_time_options(
    recorder: Recorder, pair_settings: Pairs
) -> None:
    load = {"num_ctx": 1024, "num_batch": 64}
    conversation = ask("Repeat: 🌊🌊", num_predict=12, temperature=0)
    for route in (Route.LANES, Route.GREEDY, Route.PLAIN):
        await reply(pair_settings(route=route, options={**load, "top_k": 9}), conversation)
    asked = recorder.asked("/api/generate") + recorder.asked("/api/chat")
    assert {each.model for each in asked} == {"draft", "target"}
    for each in asked:
        assert {name: each.options.get(name) for name in load} == load
        assert "shift" not in each.body
        assert "keep_alive" not in each.body  # none was set: the server's own stands


async def test_without_a_seed_rows_have_position_seeds_of_a_fresh_base(
    recorder: Recorder, pair_settings: Pairs
) -> None:
    conversation = ask(temperature=0.9, top_k=5, num_predict=5)
    for _ in range(2):
        await reply(pair_settings(), conversation)
    first = recorder.asked("/api/chat")[0].answer["_debug_info"]["rendered_template"]
    started = [row.options["seed"] for row in recorder.rows if row.body["prompt"] == first]
    assert len(set(started)) == 2
    by_prompt: dict[str, set[int]] = {}
    for row in recorder.rows:
        by_prompt.setdefault(row.body["prompt"], set()).add(row.options["seed"])
    assert all(len(seeds) <= 2 for seeds in by_prompt.values())


async def test_an_extension_is_the_anchors_request_with_its_seed_and_more_tokens(
    recorder: Recorder, pair_settings: Pairs
) -> None:
    answer = await reply(pair_settings(), ask("Repeat: 東京東京東京", temperature=0, num_predict=16, seed=3))
    assert recorder.extensions
    assert answer.stats.extensions == len(recorder.extensions)
    rows = {(row.body["prompt"], row.options["seed"]) for row in recorder.rows}
    for extension in recorder.extensions:
        body = extension.body
        assert (body["prompt"], body["options"]["seed"]) in rows
        row = next(row for row in recorder.rows if row.body["prompt"] == body["prompt"])
        assert body == {**row.body, "options": {**row.options, "num_predict": body["options"]["num_predict"]}}
        assert 1 < body["options"]["num_predict"] <= 16


async def test_a_server_that_loses_a_token_is_asked_for_two(server: OllamaServer, recorder: Recorder) -> None:
    vocabularyless = RequestTemplate("target", SamplingOptions(temperature=0))
    target = ParallelTarget(
        server,
        vocabularyless,
        CountedPath("The sky is"),
        rule=AcceptanceMethod.GREEDY,
        seed=1,
        row_tokens=2,
    )
    scored = await target.score(Draft((Token(" a"),)))
    assert [each.options["num_predict"] for each in recorder.asked("/api/generate")] == [2, 2]
    assert scored.rows[0].sample
    assert recorder.exchanges[-1].answer["logprobs"][0]["token"] == scored.rows[0].sample.text


@pytest.mark.parametrize("place", [0, 2, 4])
async def test_a_row_that_was_refused_is_asked_once_more_with_the_same_body(
    recorder: Recorder, pair_settings: Pairs, place: int
) -> None:
    refused: list[Exchange] = []

    def busy(exchange: Exchange) -> Answer | None:
        if exchange.options.get("num_predict") != 1 or exchange.model != "target" or refused:
            return None
        if len(recorder.rows) - 1 < place:
            return None
        refused.append(exchange)
        return whole({"error": "server busy, please try again.  maximum pending requests exceeded"}, 503)

    plain = await reply(pair_settings(route=Route.PLAIN), ask(**OPTIONS))
    recorder.fault = busy
    answer = await reply(pair_settings(), ask(**OPTIONS))
    assert answer.text == plain.text
    again = [row for row in recorder.rows if row.body == refused[0].body]
    assert [row.status for row in again] == [503, 200]


async def test_when_a_row_fails_twice_the_rows_before_it_are_used(recorder: Recorder, pair_settings: Pairs) -> None:
    plain = await reply(pair_settings(route=Route.PLAIN), ask(**OPTIONS))
    longest: list[str] = []

    def broken(exchange: Exchange) -> Answer | None:
        if exchange.model != "target" or exchange.options.get("num_predict") != 1:
            return None
        if not longest:
            longest.append(exchange.body["prompt"])
        return (
            whole({"error": "no"}, 500) if exchange.body["prompt"] == longest[0] and len(recorder.rows) <= 6 else None
        )

    recorder.fault = broken
    answer = await reply(pair_settings(), ask(**OPTIONS))
    assert [row.status for row in recorder.rows].count(500) == 2
    assert answer.text == plain.text


async def test_when_the_first_row_fails_twice_the_reply_fails_with_what_the_server_said(
    recorder: Recorder, pair_settings: Pairs
) -> None:
    recorder.fault = lambda each: whole({"error": "no room"}, 500) if each in recorder.rows else None
    with pytest.raises(EndpointError, match="no room"):
        await reply(pair_settings(), ask(**OPTIONS))
    assert max(Counter(json.dumps(row.body, sort_keys=True) for row in recorder.rows).values()) == 2


# How many


@pytest.mark.parametrize("lookahead", [1, 4])
async def test_a_round_is_one_draft_request_and_at_most_one_row_more_than_was_drafted(
    recorder: Recorder, pair_settings: Pairs, lookahead: int
) -> None:
    answer = await reply(pair_settings(lookahead=lookahead), ask(temperature=0, num_predict=30))
    stats = answer.stats
    rounds = rounds_of(recorder)
    assert stats.draft_requests == len(recorder.drafts)
    assert stats.rows == len(recorder.rows)
    assert all(len(rows) <= lookahead + 1 for rows in rounds)
    assert len(rounds) == stats.rounds
    assert stats.draft_requests in (stats.rounds, stats.rounds - 1)  # the last token has no draft
    assert sum(len(rows) for rows in rounds) == stats.rows


def rounds_of(recorder: Recorder) -> list[list[Exchange]]:
    """The rows, round by round: those that were asked between two drafts. Rounds without a draft have one row."""
    rounds: list[list[Exchange]] = []
    drafted = False
    for each in recorder.asked("/api/generate"):
        if each.model == "draft":
            rounds.append([])
            drafted = True
        elif each.options["num_predict"] == 1:
            shorter = not rounds or (
                rounds[-1] and len(each.body["prompt"]) > max(len(r.body["prompt"]) for r in rounds[-1])
            )
            if not drafted or shorter:
                rounds.append([])
            rounds[-1].append(each)
    return rounds


async def test_rows_are_sent_longest_first_and_all_at_once(recorder: Recorder, pair_settings: Pairs) -> None:
    answer = await reply(pair_settings(), ask(temperature=0, num_predict=40))
    assert answer.stats.rounds > 2
    for rows in rounds_of(recorder):
        lengths = [len(row.body["prompt"]) for row in rows]
        assert lengths == sorted(lengths, reverse=True)
    full = [rows for rows in rounds_of(recorder) if len(rows) == 5]
    assert max(row.busy for rows in full for row in rows) > 1


async def test_drafts_are_asked_for_nothing_beyond_the_reply(recorder: Recorder, pair_settings: Pairs) -> None:
    answer = await reply(pair_settings(lookahead=8), ask(temperature=0, num_predict=5))
    assert answer.stats.eval_count == 5
    assert recorder.drafts[0].options["num_predict"] == 4
    assert len(recorder.rows) <= 5


# Closing


@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY, Route.PLAIN])
@pytest.mark.parametrize("pieces", [1, 5])
async def test_closing_a_reply_leaves_nothing_under_way(
    recorder: Recorder, pair_settings: Pairs, route: Route, pieces: int
) -> None:
    async with Pair(pair_settings(route=route), {}) as pair:
        async with aclosing(pair.reply(ask(temperature=0, num_predict=400))) as events:
            async for event in events:
                pieces -= isinstance(event, Text)
                if not pieces:
                    break
        asked = await recorder.quiet()
        await asyncio.sleep(0.3)
        assert len(recorder.exchanges) == asked
    if route is not Route.LANES:  # between two rounds of lanes nothing runs
        assert recorder.exchanges[-1].disconnected or any(each.disconnected for each in recorder.exchanges)


@pytest.mark.parametrize("model", ["draft", "target"])
async def test_cancelling_a_reply_disconnects_every_request_under_way(
    recorder: Recorder, pair_settings: Pairs, model: str
) -> None:
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    def watch(exchange: Exchange) -> Answer | None:
        under_way = [each for each in recorder.asked("/api/generate", model) if not each.done]
        if len(under_way) >= (1 if model == "draft" else 3):
            loop.call_soon_threadsafe(reached.set)
        return None

    recorder.fault = watch
    conversation = ask(" ".join(["Tell me about the sea."] * 120), temperature=0, num_predict=100)
    task = asyncio.create_task(reply(pair_settings(), conversation))
    async with asyncio.timeout(120):
        await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    asked = await recorder.quiet()
    await asyncio.sleep(0.3)
    assert len(recorder.exchanges) == asked
    assert any(each.disconnected for each in recorder.asked("/api/generate", model))


async def test_a_closed_continuation_closes_its_stream(server: OllamaServer, recorder: Recorder) -> None:
    requests = RequestTemplate("target", SamplingOptions(temperature=0))
    target = StreamTarget(server, requests, "One, two, three, four,", limit=None, seed=None)
    await target.score(Draft())
    await target.aclose()
    await recorder.quiet()
    assert [each.disconnected for each in recorder.exchanges] == [True]


async def test_a_closed_plain_rest_closes_its_stream(
    server: OllamaServer, recorder: Recorder, target_vocabulary: LlamaTokenizer
) -> None:
    prompt = "One, two, three, four,"
    requests = RequestTemplate("target", SamplingOptions(temperature=0))
    target = ParallelTarget(
        server, requests, ExactPath(prompt, target_vocabulary), rule=AcceptanceMethod.GREEDY, seed=1
    )
    async with aclosing(target.stream(None)) as rest:
        assert isinstance(await anext(rest), Token)
    await recorder.quiet()
    (stream,) = recorder.exchanges
    assert stream.disconnected
    assert stream.body["stream"] is True
    assert stream.options["seed"] == position_seed(1, 0)
