"""Target and drafter on Ollama, round by round over real HTTP: what is asked, in which order, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.drafter import OllamaDrafter, RetokenizingDrafter
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.target import ParallelTarget, StreamTarget
from specollama.errors import Refused
from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.retokenization import CountedPath, ExactPath, TokenPath
from specollama.spec_decode.types import (
    AcceptanceMethod,
    DoneReason,
    Draft,
    Origin,
    OutputToken,
    SamplingOptions,
    TargetContinuation,
    Token,
    VerifyResult,
)
from tests.support.lanes import Drafting
from tests.support.serving import Answer, Stage, lines, read_body, send_answer, whole

PROMPT, SONG = "p", "abcdefgh"
GREEK = "".join(chr(ord("α") + place) for place in range(19))
WARM = SamplingOptions(temperature=0.9, top_k=1, top_p=1.0)
REQUESTS = RequestTemplate("target", WARM)
SEED = 7


class Letters:
    """A tokenizer of letters: every text is on the path."""

    unambiguous_texts = frozenset(PROMPT + SONG + GREEK)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def display_text(self, token: int) -> str:
        return chr(token)


class Pairs(Letters):
    """A tokenizer of letters that reads "ab" as one token."""

    unambiguous_texts = Letters.unambiguous_texts | {"ab"}

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text.replace("ab", "\x01")))

    def display_text(self, token: int) -> str:
        return "ab" if token == 1 else chr(token)


@dataclass
class Singer:
    """A server whose model sings a song, a letter a token, and says "." where it is off the tune.

    `instead`: answers to a prompt in place of its own, the first for the first time; None: its own. `asked`: the
    bodies in the order in which they came. A stream has a line a letter.
    """

    instead: dict[str, list[Answer | None]] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        body = json.loads(await read_body(receive))
        self.asked.append(body)
        left = self.instead.get(body["prompt"], [])
        await send_answer((left.pop(0) if left else None) or self.sung(body), send)

    def sung(self, body: dict[str, Any]) -> Answer:
        said, limit = body["prompt"], body["options"]["num_predict"]
        tune = PROMPT + SONG
        rest = tune[len(said) :] if tune.startswith(said) else "." * limit
        letters = list(rest if limit < 0 else rest[:limit])
        if body["stream"]:
            chunks = [{"response": each, "done": False} for each in letters]
            return lines(*chunks, reply([], said, count=len(letters) + (limit < 0), reason=ended(limit)))
        return whole(reply(letters, said))

    @property
    def prompts(self) -> list[str]:
        return [body["prompt"] for body in self.asked]


def ended(limit: int) -> str:
    return "stop" if limit < 0 else "length"


def listed(letter: str) -> list[dict[str, Any]]:
    """The most probable tokens, as many as a server shows: this letter, and Greek ones."""
    return [{"token": letter, "logprob": -0.1}, *({"token": other, "logprob": -6.0} for other in GREEK)]


def reply(letters: list[str], said: str, *, count: int | None = None, reason: str = "length", read: int = 0) -> Any:
    entries = [{"token": each, "logprob": -0.1, "top_logprobs": listed(each)} for each in letters]
    return {
        "response": "".join(letters),
        "logprobs": entries,
        "done": True,
        "done_reason": reason,
        "eval_count": len(letters) if count is None else count,
        "prompt_eval_count": read or len(said),
    }


HIDDEN = whole(reply([], PROMPT, count=1))
BUSY = whole({"error": "busy"}, 503)


@pytest.fixture
def singer(stage: Stage) -> Singer:
    stage.app = singer = Singer()
    return singer


@pytest_asyncio.fixture
async def server(singer: Singer, stage: Stage) -> AsyncIterator[OllamaServer]:
    async with OllamaServer(stage.url) as server:
        yield server


def exact() -> TokenPath:
    return ExactPath(PROMPT, Letters())


def lanes(server: OllamaServer, cursor: TokenPath | None = None, **more: Any) -> ParallelTarget:
    return ParallelTarget(server, REQUESTS, cursor or exact(), **{"rule": AcceptanceMethod.MATCH, "seed": SEED, **more})


def draft(text: str) -> Draft:
    return Draft(tuple(map(Token, text)))


def accepted(text: str) -> VerifyResult:
    return VerifyResult(tuple(OutputToken(Token(each), Origin.ACCEPTED) for each in text))


async def test_a_round_asks_the_longest_row_first_each_with_the_seed_of_its_place(
    server: OllamaServer, singer: Singer
) -> None:
    target = lanes(server)
    await target.score(draft("ab"))
    await target.commit(accepted("abc"), None)
    scored = await target.score(draft("dz"))
    assert singer.prompts == ["pab", "pa", "p", "pabcdz", "pabcd", "pabc"]
    assert [body["options"]["seed"] for body in singer.asked] == [
        position_seed(SEED, len(prompt) - 1) for prompt in singer.prompts
    ]
    samples = {offset: row.sample.text for offset, row in scored.rows.items() if row.sample}
    assert samples == {0: "d", 1: "e", 2: "."}


@pytest.mark.parametrize(
    ("letters", "response", "reason", "kind"),
    [
        ([], "", "stop", "end"),
        ([], "", "length", "hidden"),
        (["\ufffd"], "\ufffd", "length", "hidden"),
        (["\ufffd"], "\ufffd", "stop", "hidden"),  # of two tokens that were asked for the second was the end
        (["a"], "a", "length", "a"),
        (["a"], "a", "stop", "a"),
    ],
)
async def test_a_row_is_a_token_or_hidden_or_the_end(
    server: OllamaServer, singer: Singer, letters: list[str], response: str, reason: str, kind: str
) -> None:
    singer.instead[PROMPT] = [whole({**reply(letters, PROMPT, reason=reason), "response": response})]
    row = (await lanes(server).score(Draft())).rows[0]
    told = "end" if row.end else "hidden" if row.hidden else row.sample.text if row.sample else ""
    assert told == kind


async def test_no_row_is_asked_whose_prompt_would_fill_the_context(server: OllamaServer, singer: Singer) -> None:
    target = lanes(server, context_length=4)
    assert (await target.score(draft("abcd"))).rows_requested == 2
    assert sorted(singer.prompts, key=len) == ["p", "pa"]
    assert await target.commit(accepted("a"), None) == TargetContinuation()
    full = await target.commit(accepted("b"), None)
    assert (full.lost, full.reason) == (True, "the context is full")


async def test_a_row_that_the_server_read_otherwise_is_not_used_nor_any_behind_it(
    server: OllamaServer, singer: Singer
) -> None:
    singer.instead["pab"] = [whole(reply(["c"], "pab", read=2))]
    for cursor, rows in ((CountedPath(PROMPT), [0, 1]), (exact(), [0, 1, 2, 3])):
        singer.instead["pab"] = [whole(reply(["c"], "pab", read=2))]
        assert list((await lanes(server, cursor).score(draft("abc"))).rows) == rows


async def test_rows_begin_at_the_end_of_the_reply_though_the_anchor_lies_before_it(server: OllamaServer) -> None:
    target = lanes(server, CountedPath(PROMPT))
    await target.score(Draft())
    await target.commit(accepted("a"), None)
    assert list((await target.score(draft("bc"))).rows) == [0, 1, 2]


@pytest.mark.parametrize(("status", "times"), [(400, 1), (422, 1), (499, 1), (500, 2), (503, 2)])
async def test_a_request_that_was_refused_is_not_sent_again_and_one_that_failed_is_once(
    server: OllamaServer, singer: Singer, status: int, times: int
) -> None:
    singer.instead[PROMPT] = [whole({"error": "no"}, status)] * 3
    with pytest.raises(Refused, match="no"):
        await lanes(server).score(Draft())
    assert len(singer.asked) == times


async def test_a_row_that_failed_once_is_asked_for_again_and_used(server: OllamaServer, singer: Singer) -> None:
    singer.instead["pa"] = [BUSY]
    target = lanes(server)
    assert list((await target.score(draft("ab"))).rows) == [0, 1, 2]
    assert await target.commit(accepted("ab"), None) == TargetContinuation()


async def test_after_a_row_that_failed_twice_those_before_it_are_used_and_no_other_round_is_asked(
    server: OllamaServer, singer: Singer
) -> None:
    singer.instead["pa"] = [BUSY, BUSY]
    target = lanes(server)
    assert list((await target.score(draft("ab"))).rows) == [0]
    lost = await target.commit(accepted("a"), None)
    assert (lost.lost, lost.reason.startswith("a row failed twice: ")) == (True, True)


@pytest.mark.parametrize("row_tokens", [1, 2])
async def test_a_hidden_draw_is_seen_further_by_the_same_request_with_more_tokens(
    server: OllamaServer, singer: Singer, row_tokens: int
) -> None:
    """A server that loses its last token is asked for one more each time."""
    singer.instead[PROMPT] = [HIDDEN]
    target = lanes(server, row_tokens=row_tokens)
    scored = await target.score(Draft())
    assert scored.rows[0].hidden
    written = await target.commit(VerifyResult(hidden=True), None)
    assert written.tokens[0] == Token("a")
    assert [body["options"]["num_predict"] for body in singer.asked] == [row_tokens, 4 + row_tokens - 1]
    assert {body["options"]["seed"] for body in singer.asked} == {position_seed(SEED, 0)}


class Ending(Pairs):
    """Reads "ab" as one token at the very end of a text only, and a replacement mark as a letter."""

    def encode(self, text: str) -> tuple[int, ...]:
        return (*map(ord, text[:-2]), 1) if text.endswith("ab") else tuple(map(ord, text))


async def test_a_target_that_draws_otherwise_when_it_is_asked_again_is_told_of(
    server: OllamaServer, singer: Singer
) -> None:
    singer.instead["pa"] = [whole(reply(["x", "y", "z"], "pa"))]
    lost = await lanes(server, ExactPath(PROMPT, Ending())).commit(accepted("ab"), None)
    assert (lost.tokens, lost.lost) == ((), True)
    assert lost.reason == "the target answered the same request differently"


async def test_bytes_that_are_no_text_are_never_sent_again_though_a_token_prints_like_them(
    server: OllamaServer, singer: Singer
) -> None:
    singer.instead["pa"] = [whole(reply(["b", "\ufffd", "c"], "pa"))] * 9
    lost = await lanes(server, ExactPath(PROMPT, Ending())).commit(accepted("ab"), None)
    assert (lost.tokens, lost.lost) == ((), True)
    assert set(singer.prompts) == {"pa"}


@pytest.mark.parametrize("limit", [1, 3, None])
async def test_the_rest_of_a_reply_is_what_comes_behind_what_it_has(
    server: OllamaServer, singer: Singer, limit: int | None
) -> None:
    singer.instead["pa"] = [whole(reply(["b"], "pa", read=9))]  # never confirmed: the anchor stays behind
    target = lanes(server, CountedPath(PROMPT))
    await target.score(Draft())
    await target.commit(accepted("ab"), None)
    rest = [item async for item in target.stream(limit)]
    expected = SONG[2:] if limit is None else SONG[2 : 2 + limit]
    assert [item.text for item in rest if isinstance(item, Token)] == list(expected)
    assert rest[-1] == TargetContinuation(end=DoneReason.STOP if limit is None else DoneReason.LENGTH)
    assert singer.asked[-1]["prompt"] in ("p", "pa", "pab")


async def test_the_rest_after_the_anchor_has_as_many_tokens_more_as_the_reply_has_behind_it(
    server: OllamaServer, singer: Singer
) -> None:
    target = lanes(server, ExactPath(PROMPT, Pairs()))
    await target.commit(accepted("ab"), None)
    rest = [item async for item in target.stream(3)]
    assert [item.text for item in rest if isinstance(item, Token)] == list("cde")
    assert (singer.asked[-1]["prompt"], singer.asked[-1]["options"]["num_predict"]) == ("pa", 4)


async def test_where_the_rest_does_not_begin_with_what_the_reply_has_it_is_asked_for_anew_from_there(
    server: OllamaServer, singer: Singer
) -> None:
    singer.instead["pa"] = [lines({"response": "x", "done": False}, reply([], PROMPT, count=1))]
    cursor = ExactPath(PROMPT, Pairs())
    cursor.advance(["a", "b"])
    rest = [item async for item in lanes(server, cursor).stream(2)]
    assert [item.text for item in rest if isinstance(item, Token)] == ["c", "d"]
    assert singer.prompts == ["pa", "pab"]


async def test_tokens_without_text_in_the_rest_are_counted(server: OllamaServer, singer: Singer) -> None:
    for reason, hidden in (("stop", 2), ("length", 3)):
        singer.instead[PROMPT] = [
            lines({"response": "a", "done": False}, reply([], PROMPT, count=4, reason=reason)),
        ]
        rest = [item async for item in lanes(server).stream(None)]
        assert rest == [Token("a"), TargetContinuation(sampled=hidden, end=DoneReason(reason))]


def drafter(server: OllamaServer, rule: AcceptanceMethod, **more: Any) -> OllamaDrafter:
    return OllamaDrafter(server, replace(REQUESTS, model="draft"), rule=rule, seed=SEED, vocabulary=Letters(), **more)


async def test_each_draft_is_drawn_with_a_seed_of_its_own(server: OllamaServer, singer: Singer) -> None:
    drafting = drafter(server, AcceptanceMethod.REJECTION)
    for _ in range(3):
        await drafting.propose(PROMPT, 2)
    seeds = [body["options"]["seed"] for body in singer.asked]
    assert seeds == [position_seed(SEED, number) for number in (1, 2, 3)]


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_draft_has_as_many_tokens_as_were_asked_for(server: OllamaServer, singer: Singer, lost: int) -> None:
    draft = await drafter(server, AcceptanceMethod.MATCH, row_tokens=1 + lost).propose(PROMPT, 3)
    assert draft.text == "abc"
    assert singer.asked[0]["options"]["num_predict"] == 3 + lost


@pytest.mark.parametrize(
    ("rule", "options", "expected"),
    [
        (AcceptanceMethod.MATCH, WARM, (0, 1)),
        (AcceptanceMethod.GREEDY, WARM, (0, 1)),
        (AcceptanceMethod.REJECTION, WARM, (0.9, 1)),
        (AcceptanceMethod.REJECTION, replace(WARM, top_k=0), (0.9, 20)),
        (AcceptanceMethod.REJECTION, replace(WARM, top_k=64), (0.9, 20)),
    ],
)
async def test_by_rejection_a_draft_is_sampled_so_that_its_distribution_shows_else_it_is_the_best_guess(
    server: OllamaServer, singer: Singer, rule: AcceptanceMethod, options: SamplingOptions, expected: tuple[float, int]
) -> None:
    drafting = OllamaDrafter(server, RequestTemplate("draft", options), rule=rule, seed=SEED, vocabulary=Letters())
    draft = await drafting.propose(PROMPT, 2)
    [body] = singer.asked
    assert (body["options"]["temperature"], body["options"]["top_k"]) == expected
    assert [q is not None for q in draft.q] == [rule is AcceptanceMethod.REJECTION] * 2


@pytest.mark.parametrize("rule", [AcceptanceMethod.MATCH, AcceptanceMethod.REJECTION])
@pytest.mark.parametrize("garbled", ["", "\ufffd", "b\ufffd"])
async def test_a_draft_ends_before_a_token_without_a_text_of_its_own(
    server: OllamaServer, singer: Singer, garbled: str, rule: AcceptanceMethod
) -> None:
    singer.instead[PROMPT] = [whole(reply(["a", garbled, "c"], PROMPT))]
    assert (await drafter(server, rule).propose(PROMPT, 3)).text == "a"


async def test_by_rejection_a_draft_ends_before_a_character_of_several_tokens(
    server: OllamaServer, singer: Singer
) -> None:
    """Its entry has the row of its last part: what was drawn at this place was another token."""
    told = reply(["a", "b", "c"], PROMPT)
    told["logprobs"][1]["logprob"] = -2.5  # not that of the "b" in its list
    singer.instead[PROMPT] = [whole(told), whole(told)]
    assert (await drafter(server, AcceptanceMethod.REJECTION).propose(PROMPT, 3)).text == "a"
    assert (await drafter(server, AcceptanceMethod.MATCH).propose(PROMPT, 3)).text == "abc"


async def test_a_draft_of_another_tokenizer_is_asked_for_one_token_more_of_which_the_last_is_left_out() -> None:
    counts = list[int]()

    class Counting(Drafting):
        async def propose(self, text: str, count: int) -> Draft:
            counts.append(count)
            return await super().propose(text, count)

    drafting = RetokenizingDrafter(Counting(SONG), Letters())
    assert [token.text for token in (await drafting.propose(PROMPT, 3)).tokens] == list("abc")
    burst = RetokenizingDrafter(Drafting(["abcdef", "g"]), Letters())
    assert [token.text for token in (await burst.propose(PROMPT, 2)).tokens] == list("ab")
    assert counts == [4]


@pytest.mark.parametrize(
    ("drafted", "rows"), [("", "a"), ("ab", "abc"), ("ax", "ab"), ("aa", "ab"), ("abcdefgh", "abcdefgh")]
)
async def test_the_greedy_route_compares_its_stream_with_the_draft_place_by_place(
    server: OllamaServer, drafted: str, rows: str
) -> None:
    target = StreamTarget(server, REQUESTS, PROMPT, limit=None, seed=None)
    scored = await target.score(draft(drafted))
    samples = [(offset, row.sample.text) for offset, row in scored.rows.items() if row.sample]
    assert samples == list(enumerate(rows))
    assert [offset for offset, row in scored.rows.items() if row.end] == ([8] if rows == SONG else [])
    await target.aclose()


async def test_the_greedy_route_does_not_take_its_limit_for_an_end(server: OllamaServer) -> None:
    target: Any = StreamTarget(server, REQUESTS, PROMPT, limit=2, seed=None)
    scored = await target.score(draft("abcd"))
    assert [row.end for row in scored.rows.values()] == [False, False]
    assert await target.commit(accepted("ab"), 0) == TargetContinuation(end=DoneReason.LENGTH)
    await target.aclose()
