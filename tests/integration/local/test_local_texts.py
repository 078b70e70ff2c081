"""Route local: the text is the target's own, whatever is drafted."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from specollama.backends.llama_cpp.model import LoadOptions
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.backends.llama_cpp.target import LocalTarget, TokenSequence
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.errors import UnsupportedPair
from specollama.pairs.routes.local_models import LocalModels, load_models
from specollama.spec_decode.types import AcceptanceMethod, DoneReason, Draft, Route, SamplingOptions, Token
from tests.support.local_replies import COLD, reply, settings, turn
from tests.support.tiny_models import random_model

PROMPTS = (
    "Name the planets of the solar system in order.",
    "Repeat after me: the quick brown fox jumps over the lazy dog, and the lazy dog sleeps on.",
    "Write a haiku about rain.",
)
WARM = SamplingOptions(temperature=0.9, seed=11, num_predict=24)


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_at_temperature_zero_the_text_is_that_of_the_target_alone(real: LocalModels, prompt: str) -> None:
    alone, _, stats = await reply(real, turn(prompt), COLD, settings(0))
    assert (stats.rounds, stats.drafted, stats.route) == (0, 0, Route.LOCAL)
    assert stats.plain in (stats.eval_count, stats.eval_count - 1)  # the end is a token, too
    for lookahead in ("auto", 1, 4, 9):
        text, _, stats = await reply(real, turn(prompt), COLD, settings(lookahead))
        assert text == alone
    assert stats.drafted > 0


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_the_text_is_what_a_server_of_the_same_file_streams(
    real: LocalModels, embedded_url: str, prompt: str
) -> None:
    async with OllamaServer(embedded_url) as server:
        body = RequestTemplate("target", COLD).raw(turn(prompt), num_predict=32, seed=0)
        served = "".join([chunk.response async for chunk in server.stream_generate(body)])
    assert (await reply(real, turn(prompt)))[0] == served


@pytest.mark.parametrize("penalty", [1.0, 1.3])
async def test_with_a_seed_the_reply_is_the_same_whatever_is_drafted(real: LocalModels, penalty: float) -> None:
    sampling = replace(WARM, repeat_penalty=penalty)
    replies = {(await reply(real, turn(PROMPTS[0]), sampling, settings(length)))[0] for length in (0, 2, 5, "auto")}
    without_model = LocalModels(real.target, replace(real.drafters, drafts=[]), [])
    replies.add((await reply(without_model, turn(PROMPTS[0]), sampling, settings(5)))[0])
    assert len(replies) == 1
    other, _, _ = await reply(real, turn(PROMPTS[0]), replace(sampling, seed=12))
    assert other not in replies


async def test_lookup_alone_drafts_what_was_said_before(real: LocalModels) -> None:
    lookup = LocalModels(real.target, replace(real.drafters, drafts=[]), [])
    said = "one two three four five six seven eight nine ten, one two three four five six seven eight nine ten, one two"
    text, _, stats = await reply(lookup, said, COLD, settings(6))
    assert text == (await reply(lookup, said, COLD, settings(0)))[0]
    assert stats.accepted > 16
    assert stats.draft_duration < stats.score_duration


async def test_characters_of_several_tokens_come_whole(real: LocalModels) -> None:
    prompt = "🍎🍋🍇🍎🍋🍇🍎🍋🍇🍎🍋"
    alone, _, _ = await reply(real, prompt, COLD, settings(0))
    assert "\ufffd" not in alone
    assert len(alone) >= 8
    for lookahead in ("auto", 3):
        assert (await reply(real, prompt, COLD, settings(lookahead)))[0] == alone


async def test_a_draft_model_with_another_tokenizer_drafts_by_text(real: LocalModels, tmp_path: Path) -> None:
    other = random_model(tmp_path / "other.gguf", 3, writes=["a", "th", " the"])
    pair = await load_models(real.target.model.path, {"other": other}, LoadOptions(context_length=512), lookup=False)
    try:
        assert not pair.drafters.drafts[0].shares_tokenizer
        text, _, stats = await reply(pair, turn(PROMPTS[0]), COLD, settings(4))
    finally:
        await pair.close()
    assert text == (await reply(real, turn(PROMPTS[0]), COLD, settings(0)))[0]
    assert stats.drafted > 0


@pytest.mark.parametrize(
    ("drafted", "judged"),
    [(["Hel", "lo", " world"], 4), (["Hello", " wor", "ld"], 4), (["Hello", " world, hello", " world"], 2)],
)
async def test_by_rejection_drafted_texts_are_judged_as_far_as_they_are_the_targets_tokens(
    real: LocalModels, drafted: list[str], judged: int
) -> None:
    """One by one: that the target has a token for some of them together changes nothing of what is tested."""
    written, warm = TokenSequence(real.encode(turn("Hi"))), replace(WARM, seed=None)
    target = LocalTarget(
        real.target.model, real.target.vocabulary, written, Sampler(warm, 1), rule=AcceptanceMethod.REJECTION
    )
    scored = await target.score(Draft(tuple(map(Token, drafted))))
    assert scored.rows_requested == judged
    assert set(scored.rows) <= {0, *accumulate(len(text) for text in drafted[: judged - 1])}


async def test_a_lookahead_beyond_what_a_pass_takes_is_cut(real: LocalModels) -> None:
    text, _, _ = await reply(real, turn(PROMPTS[0]), COLD, settings(200))
    assert text == (await reply(real, turn(PROMPTS[0]), COLD, settings(0)))[0]
    speculation = real.make_decoder("Hi", COLD, settings(200))
    assert speculation.lookahead.max_draft_tokens() == 32


async def test_a_stop_string_inside_a_draft_ends_the_reply_where_it_begins(real: LocalModels) -> None:
    alone, _, _ = await reply(real, turn(PROMPTS[0]), COLD, settings(0))
    stop = alone[len(alone) // 2 :][:5]
    text, reason, _ = await reply(real, turn(PROMPTS[0]), replace(COLD, stop=(stop,)), settings(8))
    assert text == alone[: alone.index(stop)]
    assert reason is DoneReason.STOP


async def test_a_full_context_ends_the_reply_as_its_length_does(real: LocalModels) -> None:
    pair = await load_models(real.target.model.path, {}, LoadOptions(context_length=64), lookup=True)
    try:
        room = pair.context_length - len(pair.encode(turn("Count.")))
        unlimited = replace(COLD, num_predict=-1)
        text, reason, stats = await reply(pair, turn("Count."), unlimited, settings(6))
        alone, _, _ = await reply(pair, turn("Count."), unlimited, settings(0))
    finally:
        await pair.close()
    assert (text, reason) == (alone, DoneReason.LENGTH)
    assert room - 1 <= stats.eval_count <= room + 1
    assert stats.notices == [f"the context of {pair.context_length} tokens is full: give a larger num_ctx"]


async def test_the_prompt_is_kept_between_the_turns_of_a_chat(real: LocalModels) -> None:
    said, read = turn("Count from one to five."), list[int]()
    for _ in range(20):
        text, _, stats = await reply(real, said, replace(COLD, num_predict=8))
        read.append(stats.prompt_read)
        said += f"{text}<|im_end|>\n{turn('Go on.')}"
    assert max(read[1:]) < 24  # the new turn and the marker before it, though the conversation has grown to hundreds
    assert len(real.encode(said)) > 400


async def test_a_seed_and_the_rule_rejection_exclude_each_other(real: LocalModels) -> None:
    with pytest.raises(UnsupportedPair, match="depends on the draft"):
        await reply(real, turn(PROMPTS[0]), WARM, settings("auto", AcceptanceMethod.REJECTION))


async def test_by_rejection_at_temperature_zero_nothing_changes(real: LocalModels) -> None:
    alone, _, _ = await reply(real, turn(PROMPTS[2]), COLD, settings(0))
    assert (await reply(real, turn(PROMPTS[2]), COLD, settings("auto", AcceptanceMethod.REJECTION)))[0] == alone
