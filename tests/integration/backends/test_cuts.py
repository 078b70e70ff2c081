"""Replies whose text can't be sent again everywhere: characters of several tokens, merges at a cut, lone spaces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.events import Text
from specollama.spec_decode.retokenization import CountedPath, ExactPath, TokenPath
from specollama.spec_decode.types import DoneReason, Origin
from tests.support.lanes import Drafting, plain, speculated
from tests.support.serving import Answer, Recorder, Stage, lines, replayed, whole

MakeCursor = Callable[[str], TokenPath]


@pytest.fixture(params=["exact", "counted"])
def cursor(request: pytest.FixtureRequest, target_vocabulary: LlamaTokenizer) -> MakeCursor:
    if request.param == "exact":
        return lambda prompt: ExactPath(prompt, target_vocabulary)
    return CountedPath


def turn(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


MANY_TOKENS = {
    "waves": turn("Repeat after me: 🌊🌊🌊🌊 🐱🐶🐱🐶"),
    "japanese": turn("Translate to Japanese: I live in Tokyo. 東京に住んでいます。"),
    "chinese": turn("Repeat: 東京東京東京東京東京"),
    "mixed": "Weather: London 🌧️ rain, Paris ☀️ sun, Tokyo 🌧️ rain, Madrid ☀️ sun, Oslo ❄️ snow, Rome",
    "math": "∀x∈ℝ: x²≥0, ∀x∈ℝ: x²≥0, ∀x∈",
}


@pytest.mark.parametrize("name", MANY_TOKENS)
async def test_characters_of_several_tokens_give_the_text_of_the_target_alone(
    server: OllamaServer, recorder: Recorder, cursor: MakeCursor, name: str
) -> None:
    prompt = MANY_TOKENS[name]
    alone = await plain(server, prompt)
    recorder.exchanges.clear()
    reply = await speculated(server, prompt, cursor(prompt))
    assert reply.text == alone
    assert "\ufffd" not in reply.text
    asked = recorder.asked("/api/generate", "target")
    streams = [each for each in asked if each.body["stream"]]
    assert bool(streams) == bool(reply.stats.notices)
    assert reply.stats.rows + reply.stats.extensions == len(asked) - len(streams)
    assert reply.stats.extensions


async def test_tokens_without_text_of_their_own_are_counted(server: OllamaServer, cursor: MakeCursor) -> None:
    prompt = MANY_TOKENS["chinese"]
    reply = await speculated(server, prompt, cursor(prompt), length=20)
    assert reply.stats.eval_count == 20
    assert reply.reason is DoneReason.LENGTH


@pytest.mark.parametrize("length", [1, 2, 5])
async def test_a_limit_inside_a_character_ends_where_the_target_alone_ends(
    server: OllamaServer, cursor: MakeCursor, length: int
) -> None:
    prompt = MANY_TOKENS["waves"]
    reply = await speculated(server, prompt, cursor(prompt), length=length)
    assert reply.text == await plain(server, prompt, length)
    assert reply.reason is DoneReason.LENGTH


async def test_what_the_target_wrote_alone_is_told_from_what_was_drafted(
    server: OllamaServer, target_vocabulary: LlamaTokenizer
) -> None:
    prompt = MANY_TOKENS["chinese"]
    reply = await speculated(server, prompt, ExactPath(prompt, target_vocabulary))
    assert reply.stats.plain == sum(piece.origin is Origin.PLAIN for piece in reply.pieces)
    assert all(isinstance(piece, Text) for piece in reply.pieces)


def rows_on_path(recorder: Recorder, prompt: str, vocabulary: LlamaTokenizer) -> bool:
    """Whether the server read every row as so many tokens as its place in the reply says."""
    start = len(vocabulary.encode(prompt))
    places = {position_seed(11, place): place for place in range(200)}
    return all(row.answer["prompt_eval_count"] == start + places[row.options["seed"]] for row in recorder.rows)


async def test_C04_a_text_that_ends_in_a_colon_goes_on_as_the_target_alone_goes_on(
    server: OllamaServer, recorder: Recorder, cursor: MakeCursor, target_vocabulary: LlamaTokenizer
) -> None:
    prompt = "Links: http://a.example, http://b.example, http://c.example, see http"
    alone = await plain(server, prompt)
    assert alone.startswith("://")
    assert len(target_vocabulary.encode("see http://")) < len(target_vocabulary.encode("see http:")) + 1
    recorder.exchanges.clear()
    letters = Drafting(lambda text: list((prompt + alone)[len(text) :]))  # ":" "/" "/": never the target's tokens
    reply = await speculated(server, prompt, cursor(prompt), drafter=letters)
    assert reply.text == alone
    if isinstance(cursor(prompt), ExactPath):
        assert rows_on_path(recorder, prompt, target_vocabulary)


async def test_C05_a_space_at_the_end_of_the_prompt_stays_and_derails_nothing(
    server: OllamaServer, recorder: Recorder, cursor: MakeCursor, target_vocabulary: LlamaTokenizer
) -> None:
    prompt = "One, two, three, "  # no near-ties
    alone = await plain(server, prompt)
    recorder.exchanges.clear()
    reply = await speculated(server, prompt, cursor(prompt))
    assert reply.text == alone
    assert all(row.body["prompt"].startswith(prompt) for row in recorder.rows)
    if isinstance(cursor(prompt), ExactPath):
        assert rows_on_path(recorder, prompt, target_vocabulary)


async def test_C05_a_draft_of_lone_spaces_changes_nothing(server: OllamaServer, cursor: MakeCursor) -> None:
    prompt = turn("Name three colours.")
    alone = await plain(server, prompt, 8)

    def halves(text: str) -> list[str]:
        rest = (prompt + alone)[len(text) :]
        return [" ", rest[1:4]] if rest.startswith(" ") else [rest[:2], " "]

    reply = await speculated(server, prompt, cursor(prompt), length=8, drafter=Drafting(halves))
    assert reply.text == alone


async def test_C06_the_begin_marker_is_once_in_every_prompt_and_only_what_was_accepted_is_added(
    server: OllamaServer, recorder: Recorder, target_vocabulary: LlamaTokenizer
) -> None:
    prompt = turn("Count from one to twelve.")
    reply = await speculated(server, prompt, ExactPath(prompt, target_vocabulary))
    assert reply.stats.rounds >= 3
    for each in recorder.asked("/api/generate"):
        assert each.body["prompt"].startswith(prompt)
        assert each.body["prompt"].count("<|im_start|>") == prompt.count("<|im_start|>")
    assert rows_on_path(recorder, prompt, target_vocabulary)
    drafts = [each.answer["prompt_eval_count"] for each in recorder.drafts]
    assert max(drafts) < len(target_vocabulary.encode(prompt)) + reply.stats.eval_count


async def test_C19_a_wrong_draft_is_read_and_rejected(server: OllamaServer, cursor: MakeCursor) -> None:
    prompt = "1+1=2\n3+3=6\n2+2="
    reply = await speculated(server, prompt, cursor(prompt), length=1, drafter=Drafting(["5"]))
    assert reply.text == "4"
    reply = await speculated(server, prompt, cursor(prompt), length=2, drafter=Drafting(["5"]))
    assert reply.text == await plain(server, prompt, 2)
    assert reply.text.startswith("4")
    assert reply.stats.acceptance_rate == 0


async def test_C19_whatever_is_drafted_the_text_is_the_targets(server: OllamaServer, cursor: MakeCursor) -> None:
    prompt = turn("Name the planets of the solar system in order.")
    alone = await plain(server, prompt, 10)
    reply = await speculated(server, prompt, cursor(prompt), length=10, drafter=Drafting([" zebra", " crossing"]))
    assert reply.text == alone
    assert reply.stats.acceptance_rate == 0
    assert reply.stats.mean_accepted_length == 1


async def test_a_draft_of_one_token_that_the_target_would_write_as_two_is_no_obstacle(
    server: OllamaServer, cursor: MakeCursor
) -> None:
    prompt = turn("Name the planets of the solar system in order.")
    alone = await plain(server, prompt, 8)
    burst = Drafting(lambda text: [(prompt + alone)[len(text) :][:9]])
    reply = await speculated(server, prompt, cursor(prompt), length=8, drafter=burst)
    assert reply.text == alone


async def test_a_draft_that_is_empty_leaves_the_target_to_write(server: OllamaServer, cursor: MakeCursor) -> None:
    prompt = turn("Name the planets of the solar system in order.")
    reply = await speculated(server, prompt, cursor(prompt), length=6, drafter=Drafting([]))
    assert reply.text == await plain(server, prompt, 6)
    assert (reply.stats.drafted, reply.stats.rounds, reply.stats.plain) == (0, 0, 6)


async def test_a_reply_runs_up_to_the_end_of_the_context_and_past_it_as_the_target_alone_does(
    server: OllamaServer, cursor: MakeCursor, target_vocabulary: LlamaTokenizer
) -> None:
    """With the context believed to be short, the rest comes from one plain stream."""
    prompt = MANY_TOKENS["math"]
    size = len(target_vocabulary.encode(prompt)) + 9
    reply = await speculated(server, prompt, cursor(prompt), context_length=size)
    assert reply.text == await plain(server, prompt)
    assert reply.stats.notices == ["the context is full"]


async def test_a_prompt_that_fills_the_context_is_left_to_the_target(
    server: OllamaServer, target_vocabulary: LlamaTokenizer
) -> None:
    prompt = turn("Name three colours.")
    size = len(target_vocabulary.encode(prompt))
    cursor = ExactPath(prompt, target_vocabulary)
    reply = await speculated(server, prompt, cursor, context_length=size)
    assert reply.text == await plain(server, prompt)


def drawn(tokens: list[str], *, count: int | None = None, prompt_tokens: int = 3, reason: str = "length") -> Answer:
    entries = [
        {"token": token, "logprob": -0.1, "top_logprobs": [{"token": token, "logprob": -0.1}]} for token in tokens
    ]
    return whole(
        {
            "response": "".join(tokens),
            "logprobs": entries,
            "done": True,
            "done_reason": reason,
            "eval_count": len(tokens) if count is None else count,
            "prompt_eval_count": prompt_tokens,
        }
    )


async def test_a_target_that_draws_otherwise_the_second_time_is_told_and_goes_on_plain(stage: Stage) -> None:
    stage.app = replayed(
        generate=[
            drawn(["a"]),  # the row at the prompt
            drawn(["b"], prompt_tokens=3),  # read as 3 tokens where 4 were sampled: another tokenisation
            drawn(["x", "y", "z"], count=4),  # the extension says otherwise than "a"
            lines({"response": "b", "done": False}, {"response": "", "done": True, "done_reason": "stop"}),
        ]
    )
    async with OllamaServer(stage.url) as server:
        reply = await speculated(server, "p", CountedPath("p"), drafter=Drafting([]))
    assert reply.text == "ab"
    assert reply.stats.notices == ["the target answered the same request differently"]
