"""Target and drafter of route local over a real file whose probabilities are written down: what a round asks and gives.

Its text has characters of several tokens, so that rows are hidden, and it may end anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specollama.backends.llama_cpp import model_thread
from specollama.backends.llama_cpp.drafter import LocalDrafter
from specollama.backends.llama_cpp.model import LlamaModel, LoadOptions
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.backends.llama_cpp.target import LocalTarget, TokenSequence, most_probable
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Done, Text
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import (
    AcceptanceMethod,
    DoneReason,
    Draft,
    SamplingOptions,
    TargetContinuation,
    Token,
    VerifyResult,
)
from tests.support.scripted_runs import events, reply
from tests.support.tiny_models import END, bigram_model, random_model

PROMPT = "ab"
FIRST, SECOND = "é".encode()  # a character of two tokens
TARGET = {
    "": {"a": 0.4, "b": 0.25, bytes([FIRST]): 0.25, END: 0.1},
    bytes([FIRST]): {bytes([SECOND]): 1.0},
    "b": {"a": 0.6, "b": 0.2, bytes([FIRST]): 0.2},
}
WARM = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, num_predict=8)
NARROW = replace(WARM, top_k=8)  # few enough for a distribution to be written out
COLD = replace(WARM, temperature=0.0)


class Model:
    """A file opened as a model, with its vocabulary. `passes`: the tokens of each pass so far."""

    def __init__(self, path: Path, context_length: int = 64) -> None:
        self.model = LlamaModel(path, LoadOptions(context_length=context_length, threads=1))
        self.vocabulary = LlamaTokenizer(path)
        self.passes = list[list[int]]()
        passing = self.model._decode

        def noting(tokens: list[int], count: int) -> None:
            self.passes.append(list(tokens))
            passing(tokens, count)

        self.model._decode = noting  # type: ignore[method-assign]

    def close(self) -> None:
        self.model.close()
        self.vocabulary.close()

    def written(self, text: str = PROMPT) -> TokenSequence:
        return TokenSequence(list(self.vocabulary.encode(text)))

    def target(
        self, options: SamplingOptions = WARM, seed: int = 1, rule: AcceptanceMethod = AcceptanceMethod.MATCH
    ) -> LocalTarget:
        return LocalTarget(self.model, self.vocabulary, self.written(), Sampler(options, seed), rule)

    def draft(self, *texts: str) -> Draft:
        return Draft(tuple(Token(text, None, self.vocabulary.id_by_text[text]) for text in texts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bigrams")


@pytest.fixture(scope="module")
def bigrams(folder: Path) -> Iterator[Model]:
    model = Model(bigram_model(folder / "target.gguf", TARGET))
    yield model
    model.close()


@pytest.fixture(scope="module")
def same(folder: Path, bigrams: Model) -> Iterator[Model]:
    """The target's file, opened once more to draft with."""
    model = Model(folder / "target.gguf")
    yield model
    model.close()


class Pace:
    """Goes on as long as it is asked to; reads so much of a long text."""

    def __init__(self, window: int = 1000) -> None:
        self._window = window

    def should_extend(self, draft: Draft) -> bool:
        return True

    def prefill_window(self, name: str) -> int:
        return self._window


class Babbling:
    """Drafts the same words every time."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    async def propose(self, text: str, count: int) -> Draft:
        return self._draft.first(count)

    def learn(self, verdict: VerifyResult) -> None: ...


def drafter(
    target: LocalTarget, by: Model, rule: AcceptanceMethod = AcceptanceMethod.MATCH, pace: Pace | None = None
) -> LocalDrafter:
    path, sampler = target.sequence, target.sampler
    return LocalDrafter(
        by.model, by.vocabulary, lambda text: path.tokens, sampler, pace or Pace(), "draft", rule, path.prompt_tokens
    )


def speculation(target: LocalTarget, drafting: LocalDrafter | Babbling, lookahead: int = 3) -> SpeculativeDecoder:
    options = target.sampler.options
    return SpeculativeDecoder(PROMPT, target, drafting, FixedLookahead(lookahead), target.rule, options, Stats())


async def alone(model: Model, options: SamplingOptions, seed: int) -> tuple[str, DoneReason, int]:
    target = model.target(options, seed)
    run = speculation(target, Babbling(Draft()))
    told = [event async for event in run.plain_events("a test")]
    done = told[-1]
    assert isinstance(done, Done)
    return "".join(event.text for event in told if isinstance(event, Text)), done.reason, done.stats.eval_count


@pytest.mark.parametrize("options", [WARM, COLD, replace(WARM, repeat_penalty=1.5, frequency_penalty=0.5)])
@pytest.mark.parametrize("drafted", [(), ("a",), ("a", "b"), ("b", "b", "a")])
async def test_rounds_give_what_the_target_writes_alone_with_the_same_seed(
    bigrams: Model, options: SamplingOptions, drafted: tuple[str, ...]
) -> None:
    for seed in range(10):
        told = await events(speculation(bigrams.target(options, seed), Babbling(bigrams.draft(*drafted))))
        found = reply(told)
        assert (found.text, found.reason, found.eval_count) == await alone(bigrams, options, seed)


@pytest.mark.parametrize("rule", [AcceptanceMethod.MATCH, AcceptanceMethod.GREEDY])
async def test_a_draft_model_that_is_the_target_is_always_right(
    bigrams: Model, same: Model, rule: AcceptanceMethod
) -> None:
    drafted = 0
    for seed in range(10):
        target = bigrams.target(WARM if rule is AcceptanceMethod.MATCH else COLD, seed, rule)
        told = await events(speculation(target, drafter(target, same, rule)))
        done = told[-1]
        assert isinstance(done, Done)
        assert done.stats.accepted == done.stats.tested
        drafted += done.stats.drafted
    assert drafted > 10


async def test_no_more_is_drafted_than_was_asked_for_and_nothing_hidden(bigrams: Model, same: Model) -> None:
    lengths = set[int]()
    for seed in range(40):
        target = bigrams.target(WARM, seed)
        draft = await drafter(target, same).propose(PROMPT, 3)
        assert set(draft.text) <= {"a", "b"}
        assert len(draft.tokens) == len(draft.confidence) == len(draft.q) <= 3
        assert len(draft.step_seconds) in (len(draft.tokens), len(draft.tokens) + 1)
        lengths.add(len(draft.tokens))
    assert lengths == {0, 1, 2, 3}


async def test_a_draft_has_the_targets_ids_only_where_the_two_have_one_tokenizer(bigrams: Model, same: Model) -> None:
    drafting = drafter(bigrams.target(COLD, 1, AcceptanceMethod.GREEDY), same)
    for alike, token in ((True, bigrams.vocabulary.id_by_text["a"]), (False, None)):
        draft = await replace(drafting, shares_tokenizer=alike).propose(PROMPT, 2)
        assert [(each.text, each.id) for each in draft.tokens] == [("a", token)] * 2


async def test_a_token_that_ends_a_reply_is_not_drafted_though_it_has_a_text(bigrams: Model, same: Model) -> None:
    """In some files such a token isn't marked as a control token, and prints."""

    class Ending:
        def is_end(self, token: int) -> bool:
            return token == bigrams.vocabulary.id_by_text["b"] or bigrams.vocabulary.is_end(token)

        def __getattr__(self, name: str) -> object:
            return getattr(bigrams.vocabulary, name)

    drafts = list[str]()
    for seed in range(30):
        drafting = replace(drafter(bigrams.target(WARM, seed), same), vocabulary=Ending())
        drafts.append((await drafting.propose(PROMPT, 3)).text)
    assert set("".join(drafts)) == {"a"}


async def test_a_reply_ends_at_its_limit_though_that_is_inside_a_character(bigrams: Model) -> None:
    for limit in range(1, 6):
        options = replace(WARM, num_predict=limit)
        for seed in range(8):
            told = await events(speculation(bigrams.target(options, seed), Babbling(bigrams.draft("a", "b"))))
            found = reply(told)
            assert found.eval_count <= limit
            assert found.reason is DoneReason.STOP or found.eval_count == limit
            assert (found.text, found.reason, found.eval_count) == await alone(bigrams, options, seed)


async def test_what_is_written_alone_is_one_character_and_no_token_beyond_the_limit(bigrams: Model) -> None:
    half = 0
    for seed in range(40):
        target = bigrams.target(WARM, seed)
        [first, second] = [await target.commit(VerifyResult(hidden=True), limit) for limit in (1, None)]
        assert first.sampled <= 1
        if first.end is DoneReason.LENGTH:
            half += 1
            assert (first.tokens, second.tokens) == ((), (Token("\ufffd"),)), "the second half alone"
        elif first.end is None:
            assert first.tokens in ((Token("a"),), (Token("b"),))
    assert half > 3


async def test_rows_go_as_far_as_the_target_draws_the_drafted_tokens_itself(bigrams: Model) -> None:
    seen = set[int]()
    for seed in range(40):
        scored = await bigrams.target(WARM, seed).score(bigrams.draft("a", "a", "b"))
        samples = [scored.rows[offset].sample for offset in sorted(scored.rows)]
        agreed = [sample.text if sample else "" for sample in samples]
        assert agreed[:-1] == ["a", "a", "b"][: len(agreed) - 1]
        assert len(agreed) == 4 or agreed[-1] != ["a", "a", "b"][len(agreed) - 1]
        assert scored.rows_requested == 4
        seen.add(len(agreed))
    assert seen == {1, 2, 3, 4}


async def test_a_drafted_text_is_scored_as_far_as_the_targets_tokens_spell_it(bigrams: Model) -> None:
    """Some tokenizers put a space before a piece of text: what they make of a draft may be another text."""

    class Spaced:
        def __init__(self, add: str) -> None:
            self._add = add

        def encode_continuation(self, text: str) -> list[int]:
            return bigrams.vocabulary.encode_continuation(self._add + text)

        def __getattr__(self, name: str) -> object:
            return getattr(bigrams.vocabulary, name)

    for add, asked in (("", 4), ("b", 1)):
        target = replace(bigrams.target(COLD, 1, AcceptanceMethod.GREEDY), vocabulary=Spaced(add))
        assert (await target.score(Draft((Token("ab"), Token("a"))))).rows_requested == asked


async def test_by_rejection_each_place_has_its_row_and_the_distribution_of_the_visible_tokens(bigrams: Model) -> None:
    for seed in range(10):
        scored = await bigrams.target(NARROW, seed, AcceptanceMethod.REJECTION).score(bigrams.draft("a", "b"))
        assert sorted(scored.rows) == [0, 1, 2]
        after = [row.p for _, row in sorted(scored.rows.items()) if not row.end]
        for p in after:
            assert p is not None
            assert sum(p.values()) == pytest.approx(1)
        first = scored.rows[0].p  # after "b"
        assert first is None or [first[text] for text in "ab"] == pytest.approx([0.6 / 0.8, 0.2 / 0.8])


async def test_a_penalty_counts_the_drafted_tokens_before_a_place(bigrams: Model) -> None:
    options = replace(NARROW, frequency_penalty=2.0)
    target = bigrams.target(options, 1, AcceptanceMethod.REJECTION)
    scored = await target.score(bigrams.draft("a", "a"))
    row = np.log(np.array([0.4, 0.25]))  # of a and b, after a
    times = np.array([3, 1])  # a of the prompt and both drafted ones, b of the prompt
    weights = np.exp(row - 2.0 * times)
    p = scored.rows[2].p
    assert p is not None
    assert p["a"] / p["b"] == pytest.approx(weights[0] / weights[1])


async def test_a_character_that_the_end_cuts_is_shown_as_a_server_shows_it(folder: Path) -> None:
    cut = Model(bigram_model(folder / "cut.gguf", {"": {bytes([FIRST]): 1.0}, bytes([FIRST]): {END: 1.0}}))
    written = [item async for item in cut.target().stream(None)]
    assert written == [Token("\ufffd"), TargetContinuation(sampled=0, end=DoneReason.STOP)]
    cut.close()


async def test_a_draft_that_does_not_fit_into_the_context_is_cut_and_a_full_one_ends_the_reply(folder: Path) -> None:
    """llama.cpp refuses a pass that goes beyond it."""
    model = Model(bigram_model(folder / "letters.gguf", {"": {"a": 1.0}}), context_length=256)
    size, prompt = model.model.context_length, "a" * 250
    path = model.written(prompt)
    target = LocalTarget(model.model, model.vocabulary, path, Sampler(COLD, 1), AcceptanceMethod.GREEDY)
    room = size - len(path.tokens)
    scored = await target.score(model.draft(*["a"] * 20))
    assert scored.rows_requested == room + 1 < 20
    options = replace(COLD, num_predict=-1)
    run = SpeculativeDecoder(
        prompt,
        target,
        Babbling(model.draft(*["a"] * 20)),
        FixedLookahead(20),
        AcceptanceMethod.GREEDY,
        options,
        Stats(),
    )
    found = reply(await events(run))
    assert found.reason is DoneReason.LENGTH
    assert room <= found.eval_count == len(found.text) <= room + 1
    model.close()


async def test_what_is_read_already_is_not_read_again(bigrams: Model) -> None:
    target = bigrams.target(COLD, 1, AcceptanceMethod.GREEDY)
    target.sequence.tokens += bigrams.vocabulary.encode_fragment("ababab")
    length = len(target.sequence.tokens)
    await model_thread.run_on_model_thread(lambda stopped: bigrams.model.logits(bigrams.written("b").tokens, 1))
    bigrams.passes.clear()
    scored = await target.score(bigrams.draft("a", "a", "b"))
    assert scored.prefilled_tokens == length - 2  # the begin marker is known, and the last token is asked for anyway
    again = await target.score(bigrams.draft("b"))
    assert again.prefilled_tokens == 0
    assert [len(tokens) for tokens in bigrams.passes] == [length - 1 + 3, 1 + 1]


async def test_of_a_shorter_text_all_is_known(bigrams: Model) -> None:
    tokens = bigrams.written("abababab").tokens
    await model_thread.run_on_model_thread(lambda stopped: bigrams.model.logits(tokens, 1))
    assert [bigrams.model.cached_tokens(tokens[:length]) for length in (1, 4, len(tokens))] == [1, 4, len(tokens)]


async def test_of_a_long_text_a_draft_model_reads_the_first_tokens_and_the_end(bigrams: Model, same: Model) -> None:
    target = bigrams.target()
    target.sequence.tokens += bigrams.vocabulary.encode_fragment("a" * 30)
    await model_thread.run_on_model_thread(lambda stopped: same.model.logits(same.written("b").tokens, 1))
    same.passes.clear()
    drafting = drafter(target, same, pace=Pace(8))
    assert drafting.uncached_tokens("") == 4 + 8 - 1, "the begin marker is known"
    await drafting.propose("", 1)
    [first, *_] = same.passes
    assert first == [*target.sequence.tokens[1:4], *target.sequence.tokens[-8:]]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_the_most_probable_tokens_come_best_first_and_leave_the_row_as_it_is(count: int) -> None:
    row = np.array([0.5, 3.0, -1.0, 2.0, 7.0, 1.0], dtype=np.float32)
    kept = row.copy()
    assert most_probable(row, count) == [4, 1, 3, 5, 0][:count]
    assert (row == kept).all()


async def test_a_distribution_is_written_out_unless_it_is_too_wide(folder: Path) -> None:
    wide = Model(random_model(folder / "wide.gguf", 3))
    assert wide.model.size > 256
    target = wide.target(replace(WARM, top_k=20), 1, AcceptanceMethod.REJECTION)
    found = [(await target.score(wide.draft("a"))).rows[0].p]
    target = wide.target(WARM, 1, AcceptanceMethod.REJECTION)
    found.append((await target.score(wide.draft("a"))).rows[0].p)
    wide.close()
    assert found[1] is None
    assert found[0] is None or 1 < len(found[0]) <= 20


@pytest.mark.parametrize(("rule", "different"), [(AcceptanceMethod.REJECTION, True), (AcceptanceMethod.MATCH, False)])
async def test_a_place_that_is_drafted_again_is_drawn_anew_by_rejection_alone(
    bigrams: Model, same: Model, rule: AcceptanceMethod, different: bool
) -> None:
    """By rejection old noise would tell the planner what it is going to draft; by match it is the position's own."""
    drafting = drafter(bigrams.target(WARM, 1, rule), same, rule)
    drafts = {(await drafting.propose(PROMPT, 3)).text for _ in range(30)}
    assert (len(drafts) > 1) is different
