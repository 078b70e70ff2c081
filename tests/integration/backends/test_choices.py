"""Whether a reply is speculated, and by which rule; the reason is always one that a user can act on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.model_name import full_name
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import Message, ModelDetails
from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PairSettings
from specollama.errors import ModelMissing, RunError, Unreachable, UnsupportedPair
from specollama.pairs.feasibility import ReplyContext, may_double_bos, near_tie_text, why_plain
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.pairs.routing import acceptance_method
from specollama.pairs.tokenizers import TokenizerMatch, compare_tokenizers
from specollama.spec_decode.events import Status
from specollama.spec_decode.types import AcceptanceMethod, Route, SamplingOptions
from tests.support.made_up_models import model
from tests.support.pair_replies import ask, reply
from tests.support.serving import Recorder

Pairs = Callable[..., PairSettings]

HELLO = ChatInput([Message(role="user", content="Hello")])


def why(settings: PairSettings, conversation: ChatInput = HELLO, **show: Any) -> str | None:
    target = model(**show)
    return why_plain(ReplyContext(settings, conversation, target), target)


@pytest.mark.parametrize(
    ("quantisation", "words"),
    [
        ("BF16", "near-ties: gaps below 0.08 (BF16)"),
        ("F32", "near-ties: gaps below 0.08 (F32)"),
        ("Q4_K_M", "near-ties: gaps below about 0.2, at most 0.38 (Q4_K_M)"),
        ("IQ3_XXS", "near-ties: gaps below about 0.2, at most 0.38 (IQ3_XXS)"),
        ("MXFP4", "near-ties: gaps below about 0.2, at most 0.38 (MXFP4)"),
        ("Q8_0", "near-ties: gaps below 0.08 to 0.38 (Q8_0)"),
        ("", ""),
        ("unknown", ""),
    ],
)
def test_the_near_tie_bound_is_that_of_the_targets_quantisation(quantisation: str, words: str) -> None:
    assert near_tie_text(quantisation) == words


def test_nothing_stands_against_an_ordinary_model(pair_settings: Pairs) -> None:
    for route in (Route.AUTO, Route.LANES, Route.GREEDY):
        assert why(pair_settings(route=route), capabilities=["completion"]) is None


@pytest.mark.parametrize(
    ("settings", "show", "reason"),
    [
        ({"route": Route.PLAIN}, {}, "route plain was asked for"),
        ({"lookahead": 0}, {}, "lookahead is 0"),
        ({}, {"name": "big:cloud"}, "big:cloud is a cloud model"),
        ({}, {"details": ModelDetails(format="safetensors")}, "m runs on the MLX engine"),
        ({}, {"modelfile": "FROM x\nDRAFT y"}, "m is speculated by its own server"),
        ({}, {"version": "0.11.4"}, "the target's server can't render a chat"),
        ({}, {"capabilities": ["thinking"]}, "m doesn't mark its thinking with <think>"),
    ],
)
def test_each_reason_to_run_plain_is_told(
    pair_settings: Pairs, settings: dict[str, Any], show: dict[str, Any], reason: str
) -> None:
    told = why(pair_settings(**settings), **show)
    assert told is not None
    assert told.startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"format": "json"}, "format"),
        ({"format": {"type": "object"}}, "format"),
        ({"messages": [Message(role="user", content="What is it?", images=["aGk="])]}, "images"),
    ],
)
def test_what_only_the_targets_own_chat_can_do_runs_plain(
    pair_settings: Pairs, change: dict[str, Any], reason: str
) -> None:
    assert why(pair_settings(), replace(HELLO, **change)) == reason


SAMPLED = SamplingOptions(temperature=0.8)


def method(
    requested: AcceptanceMethod,
    sampling: SamplingOptions,
    target: ModelInfo,
    draft: ModelInfo | None,
    tokenizers: TokenizerMatch,
) -> AcceptanceMethod:
    settings = PairSettings(None, ModelRef("t", Endpoint("http://t", "a test")), rule=requested)
    options = {name: value for name, value in asdict(sampling).items() if value is not None}
    return acceptance_method(ReplyContext(settings, ChatInput([], options)), target, draft, tokenizers)


@pytest.fixture
def same(target_vocabulary: LlamaTokenizer) -> TokenizerMatch:
    return TokenizerMatch(target_vocabulary, same=True)


def test_at_temperature_0_the_rule_is_greedy_whatever_was_asked(same: TokenizerMatch) -> None:
    for asked in (AcceptanceMethod.AUTO, AcceptanceMethod.MATCH, AcceptanceMethod.REJECTION):
        assert method(asked, SamplingOptions(temperature=0), model(), model(), same) is AcceptanceMethod.GREEDY


def test_above_it_is_rejection_where_that_is_exact(same: TokenizerMatch) -> None:
    assert method(AcceptanceMethod.AUTO, SAMPLED, model(), model(), same) is AcceptanceMethod.REJECTION
    assert method(AcceptanceMethod.REJECTION, SAMPLED, model(), model(), same) is AcceptanceMethod.REJECTION
    assert method(AcceptanceMethod.MATCH, SAMPLED, model(), model(), same) is AcceptanceMethod.MATCH


@pytest.mark.parametrize(
    ("change", "show", "reason"),
    [
        ({"seed": 1}, {}, "a seed asks"),
        ({"repeat_penalty": 1.1}, {}, "penalties"),
        ({"presence_penalty": 0.5}, {}, "penalties"),
        ({"frequency_penalty": 0.5}, {}, "penalties"),
        ({}, {"version": "0.24.0"}, "the target's sampler"),
        ({}, {"model_info": {"general.sampling.temp": 1.0}}, "the target's sampler"),
    ],
)
def test_where_rejection_is_not_exact_the_rule_is_match_or_a_refusal(
    same: TokenizerMatch, change: dict[str, Any], show: dict[str, Any], reason: str
) -> None:
    options = replace(SAMPLED, **change)
    assert method(AcceptanceMethod.AUTO, options, model(**show), model(), same) is AcceptanceMethod.MATCH
    with pytest.raises(UnsupportedPair, match=f"can't be kept lossless here: {reason}.*use `match` or `auto`"):
        method(AcceptanceMethod.REJECTION, options, model(**show), model(), same)


def test_without_equal_and_known_tokenizers_the_rule_is_match_or_a_refusal(target_vocabulary: LlamaTokenizer) -> None:
    for tokenizers, reason in (
        (TokenizerMatch(why_not_exact="gguf isn't installed"), "gguf isn't installed"),
        (TokenizerMatch(target_vocabulary, difference="token 139 differs"), "different tokenizers"),
    ):
        assert method(AcceptanceMethod.AUTO, SAMPLED, model(), model(), tokenizers) is AcceptanceMethod.MATCH
        with pytest.raises(UnsupportedPair, match=reason):
            method(AcceptanceMethod.REJECTION, SAMPLED, model(), model(), tokenizers)


# Through a pair


async def statuses(settings: PairSettings, **options: Any) -> list[str]:
    async with Pair(settings, {}) as pair:
        conversation = ask(num_predict=3, temperature=0, **options)
        return [str(event) async for event in pair.reply(conversation) if isinstance(event, Status)]


async def test_the_status_is_one_line_either_way(pair_settings: Pairs) -> None:
    assert await statuses(pair_settings()) == ["speculation: on (lanes, lookahead 4; near-ties: gaps below 0.08 (F32))"]
    assert await statuses(pair_settings(lookahead=0)) == ["speculation: off (lookahead is 0)"]


async def test_a_refused_rule_is_told_before_anything_is_generated(recorder: Recorder, pair_settings: Pairs) -> None:
    with pytest.raises(UnsupportedPair, match="a seed asks"):
        await reply(pair_settings(rule=AcceptanceMethod.REJECTION), ask(temperature=0.8, seed=1))
    assert not recorder.asked("/api/generate")


def elsewhere(settings: PairSettings, **refs: ModelRef) -> PairSettings:
    return replace(settings, **refs)


async def test_a_draft_whose_server_is_down_leaves_the_reply_plain(pair_settings: Pairs) -> None:
    nowhere = ModelRef("draft", Endpoint("http://127.0.0.1:9", "a test"))
    (status,) = await statuses(elsewhere(pair_settings(), drafts=(nowhere,)))
    assert status.startswith("speculation: off (the draft")
    assert "http://127.0.0.1:9" in status
    assert "\n" not in status


async def test_a_target_whose_server_is_down_fails_in_one_line(pair_settings: Pairs) -> None:
    nowhere = ModelRef("target", Endpoint("http://127.0.0.1:9", "--target"))
    with pytest.raises(Unreachable, match=r"can't reach http://127.0.0.1:9 \(from --target\)"):
        await statuses(elsewhere(pair_settings(), target=nowhere))


async def test_a_missing_target_is_told_with_near_names(pair_settings: Pairs) -> None:
    settings = pair_settings()
    wrong = ModelRef("targte", settings.target.endpoint)
    with pytest.raises(ModelMissing, match=r"has no model 'targte' \(there: target:latest.*`ollama pull targte`"):
        await statuses(elsewhere(settings, target=wrong))


def test_a_draft_whose_sampler_is_not_known_is_judged_by_match(same: TokenizerMatch) -> None:
    for old in (model(version="0.29.0"), model(model_info={"general.sampling.top_k": 3})):
        assert method(AcceptanceMethod.AUTO, SAMPLED, model(), old, same) is AcceptanceMethod.MATCH
        with pytest.raises(UnsupportedPair, match="the draft's sampler"):
            method(AcceptanceMethod.REJECTION, SAMPLED, model(), old, same)


def test_a_draft_without_a_vocabulary_leaves_the_target_its_own(target_vocabulary: LlamaTokenizer) -> None:
    known = compare_tokenizers(target_vocabulary, RunError("the server doesn't give the model's vocabulary"))
    assert known.target is target_vocabulary
    assert not known.same
    assert "the server doesn't give" in known.difference


def test_a_target_without_a_vocabulary_says_why() -> None:
    assert compare_tokenizers(RunError("gguf isn't installed"), RunError("x")).why_not_exact == "gguf isn't installed"


@pytest.mark.parametrize("marker", ["<s>", "<bos>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>"])
def test_a_begin_marker_that_the_server_may_add_once_more_is_noticed(marker: str) -> None:
    assert may_double_bos(marker + "hi", model())
    assert may_double_bos(marker + "hi", model(model_info={"tokenizer.ggml.add_bos_token": True}))
    assert not may_double_bos(marker + "hi", model(model_info={"tokenizer.ggml.add_bos_token": False}))
    assert not may_double_bos("hi" + marker, model())


@pytest.mark.parametrize("name", ["Qwen2.5:0.5B", "library/qwen2.5:0.5b", "registry.ollama.ai/library/qwen2.5:0.5b"])
def test_a_model_has_one_name_in_full(name: str) -> None:
    assert full_name(name) == "qwen2.5:0.5b"
    assert full_name("library/target") == "target:latest"


@pytest.mark.parametrize("zero", [0, 0.0, "0", "0s", "0m", "0.0h"])
def test_a_keep_alive_of_zero_unloads_after_the_reply_not_after_each_row(zero: float | str) -> None:
    requests = RequestTemplate("m", SAMPLED, keep_alive=zero)
    assert "keep_alive" not in requests.raw("p", num_predict=1, seed=1)
    assert "keep_alive" not in requests.load_only()
    assert requests.unloads
    assert requests.unload() == {"model": "m", "prompt": "", "keep_alive": 0}


@pytest.mark.parametrize("kept", ["30m", "1h30m", -1, 10, 0.5, "10s", "0.5h"])
def test_any_other_keep_alive_goes_with_each_request(kept: float | str) -> None:
    requests = RequestTemplate("m", SAMPLED, keep_alive=kept)
    assert not requests.unloads
    assert requests.raw("p", num_predict=1, seed=1)["keep_alive"] == kept
