"""Route scoring over real HTTP: the text is what the engine writes alone, whatever is drafted, on each engine."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from specollama.backends.engines.detect import CLIENTS
from specollama.backends.engines.token_texts import TokenTexts
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.schema import Message, ShowReply
from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PromptLookup
from specollama.errors import AnotherModel, BrokenReply, ModelMissing, Refused, Unreachable, UnsupportedPair
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput, CompletionInput
from specollama.pairs.routes.scoring import ScoringRoute
from specollama.pairs.routes.scoring_models import ScoringModels
from specollama.pairs.routes.scoring_prompt import prompt_for
from specollama.spec_decode.events import Done, Text
from specollama.spec_decode.sampler_support import resolve_sampling
from specollama.spec_decode.types import AcceptanceMethod, DoneReason, Draft, Route, SamplingOptions, ServerApi, Token
from tests.support import toy
from tests.support.fake_engines import FAKES, NAME, FakeLlamaServer, FakeSGLang, FakeTensorRTLLM, FakeVLLM, events
from tests.support.scoring_replies import CHAT, COLD, fakes, reply, settings, told
from tests.support.serving import Answer, serving, whole
from tests.support.toy import STORY, Toy

ENGINES = sorted(FAKES)
RENDERING = ["llama-server", "vllm"]  # the others count the prompt of a chat, and don't show it
RAW = CompletionInput("Once.<|assistant|>", options=COLD, raw=True)
WARM = {"temperature": 0.7, "num_predict": 40}


@pytest.mark.parametrize("api", ENGINES)
async def test_the_text_is_the_targets_own_and_drafts_are_accepted(api: str) -> None:
    plain, alone, off = await told(FAKES[api](), api, RAW, route=Route.PLAIN)
    text, stats, on = await told(FAKES[api](), api, RAW)
    assert text == plain == STORY
    assert (alone.route, alone.drafted, off) == (Route.PLAIN, 0, "speculation: off (route plain was asked for)")
    assert stats.route is Route.SCORING
    assert on.startswith("speculation: on (scoring, ")
    assert stats.accepted > 8
    assert stats.rows < stats.drafted + stats.eval_count + 1
    assert stats.eval_count == alone.eval_count


@pytest.mark.parametrize("api", ENGINES)
async def test_a_character_of_several_tokens_comes_whole(api: str) -> None:
    parts = [toy.IDS[b"\xf0\x9f"], toy.IDS[b"\x99\x82"], toy.IDS[b"."], toy.IDS[b"\xc3"], toy.IDS[b"\xa9"]]
    text, stats, _ = await told(FAKES[api](Toy(parts=parts)), api, RAW)
    assert text == STORY + "🙂.é"
    if api == "tensorrt-llm":
        [notice] = stats.notices
        assert "what a character of several tokens prints" in notice
    else:
        assert not stats.notices


@pytest.mark.parametrize("api", ENGINES)
async def test_a_reply_ends_at_its_limit_and_at_a_stop(api: str) -> None:
    text, stats, _ = await told(FAKES[api](), api, replace(RAW, options={"temperature": 0, "num_predict": 7}))
    assert (text, stats.eval_count) == (" The cat sat on the mat.", 7)
    text, _, _ = await told(FAKES[api](), api, replace(RAW, options={**COLD, "stop": [" dog"]}))
    assert text == STORY[: STORY.index(" dog")]


@pytest.mark.parametrize("api", ENGINES)
@pytest.mark.parametrize("ask", [RAW, CHAT])
async def test_without_a_limit_a_reply_goes_on_to_its_end(api: str, ask: ChatInput | CompletionInput) -> None:
    """Completions of vLLM would stop after 16 tokens, and SGLang's after 128."""
    long = STORY * 6
    text, _, _ = await told(FAKES[api](Toy(long)), api, replace(ask, options={"temperature": 0}), route=Route.PLAIN)
    assert text == long


@pytest.mark.parametrize("api", ["llama-server", "sglang", "vllm"])
@pytest.mark.parametrize("wanted", [-1, 1000])
@pytest.mark.parametrize("route", [Route.PLAIN, Route.SCORING])
async def test_a_reply_ends_where_the_context_does_whatever_was_asked_for(api: str, wanted: int, route: Route) -> None:
    """No engine is asked for more than fits: vLLM and SGLang refuse it, SGLang also what fills the last place."""
    room = 15
    fake = FAKES[api](context=len(toy.tokens(RAW.prompt)) + room + (api == "sglang"))
    ask = replace(RAW, options={"temperature": 0, "num_predict": wanted})
    with serving(fake) as url:
        async with Pair(settings(api, url, route=route), os.environ) as pair:
            seen = [event async for event in pair.reply(ask)]
    text = "".join(event.text for event in seen if isinstance(event, Text))
    assert text == toy.text(toy.tokens(STORY)[:room])
    assert isinstance(seen[-1], Done)
    assert (seen[-1].reason, seen[-1].stats.eval_count) == (DoneReason.LENGTH, room)


async def test_one_post_scores_all_drafted_tokens_on_vllm() -> None:
    fake = FakeVLLM()
    await told(fake, "vllm", RAW)
    rows = [body for body in fake.bodies("/v1/completions") if "stream" not in body]
    assert max(len(body["prompt"]) for body in rows) == 5
    context = toy.tokens(RAW.prompt)
    assert rows[0] == {
        "model": NAME,
        "prompt": [context],
        "max_tokens": 1,
        "logprobs": 2,
        "return_tokens_as_token_ids": True,
        "temperature": 0,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    for body in rows:
        first, *longer = body["prompt"]
        assert all(ids[: len(first)] == first for ids in longer)
        assert [len(ids) for ids in body["prompt"]] == list(range(len(first), len(first) + len(body["prompt"])))


async def test_one_pass_scores_all_drafted_tokens_on_sglang() -> None:
    fake = FakeSGLang()
    await told(fake, "sglang", RAW)
    written = toy.tokens(RAW.prompt + STORY)
    for body in fake.bodies("/generate"):
        start = body["logprob_start_len"]  # the last token of the context: the radix cache serves those before
        assert written[: start + 1] == body["input_ids"][: start + 1]
        assert (body["return_logprob"], body["top_logprobs_num"]) == (True, 2)
        assert body["sampling_params"]["max_new_tokens"] == 1
    assert max(len(body["input_ids"]) - body["logprob_start_len"] for body in fake.bodies("/generate")) == 5


@pytest.mark.parametrize(
    ("api", "options", "rows"),
    [
        ("sglang", {"temperature": 0}, set()),  # all in one pass
        ("sglang", WARM, {1, 2, 4, 8, 16}),
        ("vllm", WARM, {1, 2, 4, 8, 16}),
        ("vllm", {**WARM, "seed": 5}, {1}),
        ("tensorrt-llm", WARM, {1}),
    ],
)
async def test_costs_are_measured_by_such_requests_as_score_the_reply(
    api: str, options: dict[str, Any], rows: set[int]
) -> None:
    fake = FAKES[api]()
    with serving(fake) as url:
        async with Pair(settings(api, url, lookahead="auto"), os.environ) as pair:
            await reply(pair, replace(RAW, options={**options, "num_predict": 2}))
            costs = await opened(pair)
            assert costs.known_profile(resolve_sampling(options, {}, SamplingOptions())) is not None
    path, key = ("/generate", "input_ids") if api == "sglang" else ("/v1/completions", "prompt")
    asked = [body for body in fake.bodies(path) if "stream" not in body]
    assert {len(body[key]) for body in asked if isinstance(body[key][0], list)} == rows
    assert len(asked) > 12


async def test_costs_of_one_pass_are_not_taken_for_those_of_a_prompt_for_each_place() -> None:
    cold, warm = SamplingOptions(temperature=0), SamplingOptions(temperature=0.7)
    with serving(FakeSGLang()) as url:
        async with Pair(settings("sglang", url, lookahead="auto"), os.environ) as pair:
            await reply(pair, RAW)
            costs = await opened(pair)
            known = costs.known_profile(cold)
            assert (known is None, costs.known_profile(warm)) == (False, None)
            await reply(pair, replace(RAW, options=WARM))
            assert costs.known_profile(warm) is not None
            assert costs.known_profile(cold) is known, "measured once"


async def opened(pair: Pair) -> ScoringModels:
    route = await pair.scoring_route()
    assert route is not None
    return await route.open_models(pair.settings)


async def test_log_probabilities_that_are_off_by_one_are_not_taken() -> None:
    fake = FakeSGLang()
    fake.shift = 1
    with pytest.raises(BrokenReply, match="aren't those of the drafted tokens"):
        await told(fake, "sglang", RAW)


async def test_a_tie_is_left_to_the_engine_to_draw() -> None:
    class Tied(Toy):
        def logprobs(self, context):  # type: ignore[no-untyped-def]
            return [(toy.IDS[b"?"], -0.7), (self.next(context), -0.7)]

    text, stats, _ = await told(FakeSGLang(Tied()), "sglang", RAW)
    assert text == STORY
    assert stats.accepted == 0


@pytest.mark.parametrize("api", ENGINES)
async def test_a_chat_goes_through_the_engines_own_template(api: str) -> None:
    text, stats, status = await told(FAKES[api](), api)
    assert text == STORY
    if api in RENDERING:
        assert stats.route is Route.SCORING
        assert stats.prompt_eval_count == len(toy.tokens("<|user|>Tell me.<|assistant|>"))
    else:
        assert stats.route is Route.PLAIN
        assert "doesn't tell what prompt it makes of a chat" in status


@pytest.mark.parametrize("api", ["sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("<|user|>Tell me.<|assistant|>", ""),
        (
            "<|user|>Tell me. <|assistant|>",
            "makes a prompt of 10 tokens of the chat, the draft model's template one of 11",
        ),
        (None, "doesn't tell what prompt it makes of a chat, and the draft has no template to do it"),
    ],
)
async def test_the_drafts_template_is_taken_only_if_the_engine_counts_the_same(
    api: str, written: str | None, reason: str
) -> None:
    async def template(messages: object) -> str | None:
        return written

    with serving(FAKES[api]()) as url:
        async with CLIENTS[ServerApi(api)](url, model=NAME) as engine:
            prompted = await prompt_for(CHAT, engine, "E", template)
    assert prompted.reason.removeprefix("E ") == reason
    assert list(prompted.tokens) == ([] if reason else toy.tokens(written or ""))


async def test_where_tokens_may_be_printed_without_their_space_nothing_is_drafted() -> None:
    class DummyPrefix(FakeTensorRTLLM):
        """Puts a space before each text, as SentencePiece does for some models."""

        def tokenize(self, body: dict[str, Any]) -> Answer:
            return super().tokenize({**body, "prompt": f" {body['prompt']}" if body["prompt"] else ""})

    text, stats, _ = await told(DummyPrefix(), "tensorrt-llm", RAW)
    assert (text, stats.drafted) == (STORY, 0)
    assert stats.reason == "TensorRT-LLM prints this model's tokens without their leading spaces"


@pytest.mark.parametrize("api", ENGINES)
async def test_above_temperature_zero_each_row_is_the_engines_own_draw(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dots are drawn where no draft has them: the rows of one request share no seed."""
    monkeypatch.setattr(secrets, "randbits", Random(3).getrandbits)  # one reply in forty is without any
    fake = FAKES[api]()
    text, stats, _ = await told(fake, api, replace(RAW, options=WARM))
    assert stats.drafted > 0
    assert "!" in text
    rows = [body for path in ("/v1/completions", "/generate", "/completion") for body in fake.bodies(path)]
    rows = [body for body in rows if "stream" not in body]
    seeds = [body["seed"] for body in rows if "seed" in body]
    if api == "tensorrt-llm":  # without a seed each of its requests would be drawn alike
        assert len(seeds) == len(rows)
        assert all(len(body["prompt"]) == 1 for body in rows)
    else:  # llama-server's word for another one each time: without it its own would be that of all rows
        assert seeds == ([-1] * len(rows) if api == "llama-server" else [])


@pytest.mark.parametrize("api", ["vllm", "tensorrt-llm", "llama-server"])
async def test_with_a_seed_the_reply_does_not_depend_on_what_was_drafted(api: str) -> None:
    ask = replace(RAW, options={**WARM, "seed": 5})
    texts = {(await told(FAKES[api](), api, ask, lookahead=lookahead))[0] for lookahead in (1, 3, 6)}
    assert len(texts) == 1
    assert "!" in texts.pop()


@pytest.mark.parametrize(
    ("api", "options", "reason"),
    [
        ("sglang", {"seed": 3, "temperature": 0.7}, "a seed: SGLang takes none for a request"),
        ("vllm", {"repeat_penalty": 1.1}, "penalties: vLLM doesn't count a reply's tokens"),
        ("tensorrt-llm", {"presence_penalty": 0.5}, "penalties: TensorRT-LLM doesn't count"),
    ],
)
async def test_what_cannot_be_kept_exact_runs_plain_and_says_why(
    api: str, options: dict[str, float], reason: str
) -> None:
    _, stats, status = await told(FAKES[api](), api, replace(RAW, options={**COLD, **options}))
    assert (stats.route, stats.drafted) == (Route.PLAIN, 0)
    assert status.startswith(f"speculation: off ({reason}")
    assert stats.reason.startswith(reason)


async def test_a_server_with_one_slot_is_left_to_write_alone() -> None:
    fake = FakeLlamaServer()
    fake.slots = 1
    _, stats, status = await told(fake, "llama-server", RAW)
    assert stats.route is Route.PLAIN
    assert "llama-server works on one request at a time" in status


@pytest.mark.parametrize(
    ("ask", "given", "says"),
    [
        (ChatInput(CHAT.messages, tools=[{"type": "function"}]), {}, "tools isn't passed on to vLLM"),
        (ChatInput(CHAT.messages, format="json"), {}, "format isn't passed on"),
        (CompletionInput("a", suffix="b"), {}, "suffix isn't passed on"),
        (replace(RAW, options={"typical_p": 0.5}), {}, r"vLLM has no typical_p \(= 0.5 here\)"),
        (replace(RAW, options=WARM), {"rule": AcceptanceMethod.REJECTION}, "rule rejection can't be kept lossless"),
    ],
)
async def test_what_an_engine_is_not_asked_for_is_refused_in_a_line(ask: object, given: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UnsupportedPair, match=says):
        await told(FakeVLLM(), "vllm", ask, **given)


@pytest.mark.parametrize("api", ENGINES)
async def test_which_engine_it_is_is_found_out_where_nobody_says(api: str) -> None:
    with serving(FAKES[api]()) as url:
        async with Pair(settings(None, url), os.environ) as pair:
            text, stats, _ = await reply(pair, RAW)
    assert (text, stats.route) == (STORY, Route.SCORING)


@pytest.mark.parametrize("api", ENGINES)
async def test_a_wrong_model_name_is_told_with_those_that_are_there(api: str) -> None:
    with serving(FAKES[api]()) as url:
        wrong = settings(api, url)
        wrong = replace(wrong, target=replace(wrong.target, model="toy-8b"))  # type: ignore[arg-type]
        async with Pair(wrong, os.environ) as pair:
            with pytest.raises(ModelMissing, match=rf"{url} has no model 'toy-8b' \(there: {NAME}"):
                await reply(pair, RAW)


async def test_an_engine_that_is_not_there_is_one_line_with_what_to_do() -> None:
    async with Pair(settings("vllm", "http://127.0.0.1:1"), os.environ) as pair:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 .*is vLLM running there\? \(`vllm serve MODEL`\)"):
            await reply(pair, RAW)


@pytest.mark.parametrize(
    ("api", "path", "answer", "error", "says"),
    [
        (
            "vllm",
            "/v1/completions",
            whole({"error": {"message": "max_logprobs\nis 1"}}, 400),
            Refused,
            "max_logprobs is 1",
        ),
        ("vllm", "/v1/completions", whole({"choices": []}), BrokenReply, "0 answers to 1 prompts"),
        ("vllm", "/v1/completions", whole("no"), BrokenReply, "isn't what vLLM sends"),
        ("llama-server", "/completion", whole([]), BrokenReply, "0 answers to 1 prompts"),
        ("sglang", "/detokenize", whole({"text": ["x"]}), BrokenReply, "1 texts for"),
        (
            "tensorrt-llm",
            "/_internal/tokenize",
            whole({"detail": "Not Found"}, 404),
            Refused,
            "has no /_internal/tokenize",
        ),
        ("tensorrt-llm", "/v1/models", whole({"detail": "no key"}, 401), Refused, "no key .a token is sent when"),
    ],
)
async def test_an_answer_that_is_none_is_one_line_with_the_url(
    api: str, path: str, answer: object, error: type[Exception], says: str
) -> None:
    fake = FAKES[api](faults={path: answer})  # type: ignore[dict-item]
    with pytest.raises(error, match=says) as raised:
        await told(fake, api, RAW)
    assert "\n" not in str(raised.value)
    assert "http://127.0.0.1" in str(raised.value)


async def test_token_texts_in_place_of_ids_are_not_taken() -> None:
    shown = {"tokens": [" The"], "token_logprobs": [0.0], "top_logprobs": None}
    choice = {"index": 0, "text": " The", "finish_reason": "length", "logprobs": shown}
    with pytest.raises(BrokenReply, match="a token is shown as ' The', not as token_id:N"):
        await told(FakeVLLM(faults={"/v1/completions": whole({"choices": [choice]})}), "vllm", RAW)


@pytest.mark.parametrize("api", ENGINES)
async def test_a_stream_that_breaks_off_is_no_whole_reply(api: str) -> None:
    path = {"sglang": "/generate", "llama-server": "/completion"}.get(api, "/v1/completions")
    piece = {"text": " The", "content": " The", "choices": [{"index": 0, "text": " The"}]}
    fake = FAKES[api](faults={path: events(piece)})
    with pytest.raises(BrokenReply, match="the reply ended before its last event"):
        await told(fake, api, RAW, route=Route.PLAIN)


@pytest.mark.parametrize("api", ENGINES)
async def test_a_draft_of_another_tokenizer_is_put_into_the_targets_tokens(api: str) -> None:
    """TensorRT-LLM has no call that tells what a token prints: only a draft in as many pieces can be taken there."""
    fake, client = FAKES[api](), CLIENTS[ServerApi(api)]
    with serving(fake) as url:
        async with client(url, model=NAME) as engine:
            lexicon = TokenTexts(engine)
            other = await lexicon.retokenize(Draft((Token(" The c"), Token("at s"), Token("at"), Token(" on"))))
            same = await lexicon.retokenize(Draft((Token(" dog"), Token(" and"))))
            asked = len(fake.asked)
            learnt = await lexicon.retokenize(Draft((Token(" cat"), Token(" on"))))
    if api != "tensorrt-llm":
        assert other == [(toy.IDS[word.encode()], word) for word in (" The", " cat", " sat", " on")]
        assert len(fake.asked) == asked
        assert learnt == [(toy.IDS[b" cat"], " cat"), (toy.IDS[b" on"], " on")]
    assert same == [(toy.IDS[b" dog"], " dog"), (toy.IDS[b" and"], " and")]


async def test_a_draft_model_that_cannot_be_asked_is_told_of_while_lookup_drafts() -> None:
    small = ModelRef("small", Endpoint("http://127.0.0.1:9", "a test"))
    text, _, status = await told(FakeVLLM(), "vllm", RAW, drafts=(small,))
    assert text == STORY
    assert "lookahead 4; the draft's server: can't reach http://127.0.0.1:9" in status


async def test_a_draft_model_whose_server_comes_later_drafts_from_then_on() -> None:
    route = ScoringRoute(os.environ)
    with serving(FakeVLLM()) as url:
        async with OllamaServer("http://127.0.0.1:9") as server:
            assert (await route.open_models(settings("vllm", url))).served_draft is None
            small = ModelInfo("small", server, (0, 33, 0), ShowReply())
            assert (await route.open_models(settings("vllm", url), small)).served_draft is small
        await route.close()


async def test_thinking_that_the_engine_takes_out_of_a_chat_is_told_of() -> None:
    deltas = {"reasoning_content": "Hm."}, {"content": "Yes."}
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    said = events(*({"choices": [{"delta": delta}]} for delta in deltas), end)
    text, stats, _ = await told(FakeSGLang(faults={"/v1/chat/completions": said}), "sglang", CHAT)
    assert text == "Yes."
    assert stats.notices == ["SGLang takes the thinking out of its replies: it isn't shown"]


async def test_rows_are_spread_over_several_servers_of_the_model() -> None:
    with ExitStack() as stack:
        servers, urls = fakes("vllm", 2, stack)
        async with Pair(settings("vllm", *urls), os.environ) as pair:
            text, stats, _ = await reply(pair, RAW)
    assert text == STORY
    assert stats.accepted > 8
    asked = [sum(len(body["prompt"]) for body in server.bodies("/v1/completions")) for server in servers]
    assert min(asked) > 0.3 * sum(asked)


async def test_a_server_that_fails_is_left_out_and_the_reply_goes_on() -> None:
    with ExitStack() as stack:
        servers, urls = fakes("vllm", 2, stack)
        async with Pair(settings("vllm", *urls), os.environ) as pair:
            await reply(pair, RAW)
            servers[0].faults["/v1/completions"] = whole({"error": {"message": "out of memory"}}, 500)
            before = len(servers[0].asked)
            text, stats, _ = await reply(pair, RAW)
            assert (text, stats.route) == (STORY, Route.SCORING)
            assert 1 <= len(servers[0].asked) - before <= 3
            servers[1].faults["/v1/completions"] = servers[0].faults["/v1/completions"]
            with pytest.raises(Refused, match="out of memory"):
                await reply(pair, RAW)


async def test_a_server_of_another_model_is_not_taken_for_a_replica() -> None:
    with ExitStack() as stack:
        servers, urls = fakes("vllm", 2, stack)
        servers[1].faults["/tokenize"] = whole({"tokens": [7]})
        async with Pair(settings("vllm", *urls), os.environ) as pair:
            with pytest.raises(AnotherModel, match="serves another model than the pair's other servers"):
                await reply(pair, RAW)


async def test_the_route_is_for_engines_and_not_for_an_ollama(embedded_url: str) -> None:
    given = settings(None, embedded_url)
    given = replace(given, target=replace(given.target, model="target"))  # type: ignore[arg-type]
    async with Pair(given, os.environ) as pair:
        with pytest.raises(UnsupportedPair, match="Ollama's API can't score given tokens"):
            await reply(pair, ChatInput([Message(role="user", content="Hi")]))


async def test_a_reply_that_was_cut_says_so() -> None:
    short = replace(RAW, options={"temperature": 0, "num_predict": 4})
    with serving(FakeTensorRTLLM()) as url:
        async with Pair(settings("tensorrt-llm", url, drafts=(PromptLookup.LOOKUP,)), os.environ) as pair:
            done = [event async for event in pair.reply(short)][-1]
    assert done.reason is DoneReason.LENGTH  # type: ignore[union-attr]
