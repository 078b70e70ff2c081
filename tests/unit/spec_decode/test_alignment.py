"""Cuts: a text is sent again only where it is read as it was sampled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specollama.spec_decode.retokenization import CountedPath, CutPoint, ExactPath, retokenize_draft
from specollama.spec_decode.types import Token
from tests.support.draws import examples
from tests.support.toy_vocabulary import ToyVocabulary

VOCABULARY = ToyVocabulary()


def exact(prompt: str) -> ExactPath:
    return ExactPath(prompt, VOCABULARY)


def positions(cuts: list[CutPoint]) -> list[int]:
    return [cut.position for cut in cuts]


# the toy itself


def test_the_toy_reads_the_longest_piece_and_has_texts_that_are_not_distinct() -> None:
    assert [VOCABULARY.display_text(token) for token in VOCABULARY.encode("see http://abcd")] == [
        "see",
        " ",
        "http",
        "://",
        "abc",
        "d",
    ]
    assert {"ab", "é", "b", ":"} <= VOCABULARY.unambiguous_texts
    assert not {" ", "a", "", "<end>"} & VOCABULARY.unambiguous_texts


# with the target's own tokenizer


def test_every_cut_along_a_draft_on_the_path_may_be_asked() -> None:
    cursor = exact("x")
    assert cursor.cut_points(["ab", "x", "cd"]) == [
        CutPoint("x", 0),
        CutPoint("xab", 1),
        CutPoint("xabx", 2),
        CutPoint("xabxcd", 3),
    ]


def test_cuts_stop_at_the_first_that_is_read_otherwise() -> None:
    assert positions(exact("x").cut_points(["x", "a", "b", "x", "x"])) == [0, 1, 2]  # "ab" is one token


def test_a_cut_read_as_equally_many_other_tokens_is_not_good() -> None:
    # "ab" and "cd" are read as "abc" and "d": the number alone wouldn't show it
    assert VOCABULARY.encode("xabcd") != (*VOCABULARY.encode("x"), VOCABULARY.token("ab"), VOCABULARY.token("cd"))
    assert positions(exact("x").cut_points(["ab", "cd"])) == [0, 1]


def test_a_token_that_joins_the_prompts_last_one_leads_to_no_cut() -> None:
    assert positions(exact("xa").cut_points(["b"])) == [0]


def test_a_text_that_is_no_single_token_leads_to_no_cut() -> None:
    assert positions(exact("x").cut_points(["xyz"])) == [0]


class Fickle(ToyVocabulary):
    """Reads "abc" as "ab" and "c" at the very end, and as "a" and "bc" where more follows."""

    def encode(self, text: str) -> tuple[int, ...]:
        before, found, after = text.rpartition("abc")
        if not found or not after:
            return super().encode(text)
        return (*super().encode(before + "a"), *super().encode("bc"), *super().encode(after))


def test_a_token_that_changes_the_reading_of_those_before_it_leads_to_no_cut() -> None:
    cursor = ExactPath("-abc", Fickle(words=("ab", "bc"), fragments=()))
    assert cursor.prompt_tokens_at(cursor.anchor) == 3
    assert positions(cursor.cut_points(["x"])) == [0]  # one token more, and the last one right, but not the others


def test_a_marker_that_was_written_as_text_leads_to_no_cut() -> None:
    assert positions(exact("x").cut_points(["<end>"])) == [0]  # read as the control token


def test_a_text_that_begins_a_character_only_leads_to_no_cut() -> None:
    # the fragment b"a\xc3" prints as "a", and so does the token b"a": what is sent again is the latter
    cuts = exact("x").cut_points(["a"])
    assert VOCABULARY.encode(cuts[1].text)[-1] == VOCABULARY.token("a")


def test_the_reply_moves_the_anchor_along_the_path() -> None:
    cursor = exact("x")
    cursor.advance(["ab", "x"])
    assert cursor.anchor == CutPoint("xabx", 2)
    assert not cursor.is_stuck
    assert cursor.cut_points(["cd"])[-1] == CutPoint("xabxcd", 3)


def test_what_leaves_the_path_lies_beyond_the_anchor() -> None:
    cursor = exact("x")
    cursor.advance(["x", "a", "b", "c"])
    assert cursor.anchor == CutPoint("xxa", 2)
    assert cursor.pending == ["b", "c"]
    assert cursor.sampled == 2
    assert cursor.is_stuck


def test_stuck_means_that_only_the_anchor_may_be_asked() -> None:
    cursor = exact("x")
    cursor.advance(["a", "b"])
    assert cursor.cut_points([]) == [CutPoint("xa", 1)]


def test_a_text_that_is_never_read_as_it_was_sampled_again_has_no_cut_to_rejoin_at() -> None:
    cursor = exact("x")
    cursor.advance(["a", "b"])  # read as "ab", whatever follows
    assert cursor.resync(["b", "x", "y"], 3) is None
    assert (cursor.anchor, cursor.pending) == (CutPoint("xa", 1), ["b"])


class Lenient(ToyVocabulary):
    """Reads "ab" at the very end as one token, and as two where more follows, as pre-tokenizers do with spaces."""

    def encode(self, text: str) -> tuple[int, ...]:
        if not text.endswith("ab"):
            return super().encode(text)
        return (*super().encode(text[:-2]), len(self.pieces))

    def display_text(self, token: int) -> str:
        return "ab" if token == len(self.pieces) else super().display_text(token)


def lenient(*texts: str) -> ExactPath:
    cursor = ExactPath("-", Lenient(words=("abc",), fragments=()))
    cursor.advance(texts)
    return cursor


def test_rejoining_finds_the_earliest_good_cut() -> None:
    cursor = lenient("a", "b")
    assert cursor.anchor == CutPoint("-a", 1)
    assert cursor.count_to_first_aligned(["b", "x", "y"]) == 2
    assert cursor.is_stuck
    assert cursor.resync(["b", "x", "y"], 3) == 2
    assert cursor.anchor == CutPoint("-abx", 3)
    assert not cursor.is_stuck
    cursor.advance(["z"])
    assert cursor.anchor == CutPoint("-abxz", 4)


def test_what_follows_a_good_cut_does_not_move_it() -> None:
    for after in ([], ["y"], ["a"], ["a", "b"], ["a", "b", "y"]):
        cursor = lenient("a", "b")
        assert cursor.resync(["b", "x", *after], 2 + len(after)) == 2
        assert cursor.anchor == CutPoint("-abx", 3)


def test_rejoining_needs_a_token_beyond_what_the_reply_has() -> None:
    cursor = lenient("a", "b")
    assert cursor.resync(["b"], 1) is None
    assert cursor.is_stuck


def test_rejoining_asks_for_more_even_where_what_the_reply_has_is_on_the_path_again() -> None:
    cursor = lenient("a", "b", "x")
    assert cursor.pending == ["b", "x"]
    assert cursor.resync(["b", "x"], 2) is None
    assert cursor.resync(["b", "x", "y"], 3) == 3


def test_rejoining_passes_over_texts_that_are_read_as_equally_many_other_tokens() -> None:
    vocabulary = ToyVocabulary(words=("ab", "bc"), fragments=())
    cursor = ExactPath("-", vocabulary)
    assert cursor.resync(["a", "bc"], 2) == 1  # both together are read as "ab", "c"
    assert cursor.anchor == CutPoint("-a", 1)


class Ending(ToyVocabulary):
    """Reads "ab" as one token at the very end of a text only, as pre-tokenizers do with white space."""

    def __init__(self) -> None:
        super().__init__(words=("bc", "cd"), fragments=())

    def encode(self, text: str) -> tuple[int, ...]:
        return (*super().encode(text[:-2]), len(self.pieces)) if text.endswith("ab") else super().encode(text)

    def display_text(self, token: int) -> str:
        return "ab" if token == len(self.pieces) else super().display_text(token)


def test_a_text_that_is_read_as_as_many_other_tokens_as_were_sampled_is_no_cut_to_rejoin_at() -> None:
    cursor = ExactPath("-", Ending())
    cursor.advance(["a", "b"])
    assert (cursor.anchor, cursor.pending) == (CutPoint("-a", 1), ["b"])
    assert cursor.resync(["b", "cd"], 2) is None  # read as "bc", "d"
    assert cursor.resync(["b", "d"], 2) == 2


def test_a_cut_that_was_confirmed_for_another_reply_is_not_where_this_one_goes_on() -> None:
    cursor = CountedPath("p")
    assert cursor.confirm(CutPoint("p", 0), 1)
    assert cursor.confirm(CutPoint("pb", 1), 2)  # along a draft that was rejected
    cursor.advance(["a"])
    cursor.advance(["b"])
    assert (cursor.anchor, cursor.pending) == (CutPoint("p", 0), ["a", "b"])


def test_texts_that_had_hidden_tokens_among_them_are_checked_at_their_end_by_their_number() -> None:
    cursor = exact("x")
    texts = ["\u00ff", "b"]  # a character of two tokens, and a letter: three were sampled
    assert cursor.resync(texts, 3) == 2
    assert cursor.anchor == CutPoint("x\u00ffb", 3)
    assert cursor.prompt_tokens_at(cursor.anchor) == 1 + 3
    assert exact("x").resync(texts, 4) is None


def test_with_hidden_tokens_the_prompts_reading_must_stay() -> None:
    assert exact("xa").resync(["b\u00ff"], 2) is None


def test_a_cut_has_as_many_tokens_as_the_prompt_and_the_reply_so_far() -> None:
    cursor = exact("see http")
    assert cursor.prompt_tokens_at(cursor.anchor) == 3
    assert [cursor.prompt_tokens_at(cut) for cut in cursor.cut_points(["://", "x"])] == [3, 4, 5]


def test_no_count_of_the_server_refutes_a_cut_that_was_checked() -> None:
    cursor = exact("x")
    assert cursor.confirm(cursor.anchor, None)
    assert cursor.confirm(cursor.anchor, 999)


def test_a_place_stays_on_the_path_only_if_every_possible_token_does() -> None:
    cursor = exact("xa")
    here = cursor.anchor
    assert cursor.stays_aligned(here, [Token("x"), Token("cd"), Token("d")])
    assert not cursor.stays_aligned(here, [Token("x"), Token("b")])
    assert cursor.stays_aligned(here, [Token("x"), Token("")])  # a hidden one is never emitted there
    assert cursor.stays_aligned(CutPoint("xab", 2), [Token("x")])


def test_looking_for_a_good_cut_moves_nothing() -> None:
    cursor = exact("x")
    assert cursor.count_to_first_aligned(["a", "b"]) == 1
    assert cursor.count_to_first_aligned(["b\u00ff"]) is None
    assert (cursor.anchor, cursor.pending) == (CutPoint("x", 0), [])


words = st.sampled_from(sorted(VOCABULARY.unambiguous_texts))
texts = st.lists(st.sampled_from(["a", "b", "c", "d", " ", "/", "ab", "bc", "abc", "cd", " a", "é", "bé", "//"]))
prompts = st.text(alphabet="abcd /:é<", max_size=8)


@examples(150)
@given(prompts, texts)
def test_every_cut_that_is_offered_is_read_as_it_was_sampled(prompt: str, sampled: list[str]) -> None:
    path = VOCABULARY.encode(prompt)
    for cut in exact(prompt).cut_points(sampled):
        assert cut.text == prompt + "".join(sampled[: cut.position])
        assert VOCABULARY.encode(cut.text) == (*path, *map(VOCABULARY.token, sampled[: cut.position]))


@examples(150)
@given(prompts, texts, st.integers(0, 6))
def test_the_anchor_is_always_a_good_cut_and_nothing_gets_lost(prompt: str, sampled: list[str], burst: int) -> None:
    cursor = exact(prompt)
    done: list[str] = []
    while len(done) < len(sampled) and not cursor.is_stuck:
        step = sampled[len(done) : len(done) + 1 + burst]
        cursor.advance(step)
        done += step
    position = cursor.anchor.position
    path = (*VOCABULARY.encode(prompt), *map(VOCABULARY.token, sampled[:position]))
    assert VOCABULARY.encode(cursor.anchor.text) == path
    assert cursor.anchor.text + "".join(cursor.pending) == prompt + "".join(done)
    assert position + len(cursor.pending) == len(done)


@examples(150)
@given(prompts, st.lists(words, max_size=3), st.lists(words, min_size=1, max_size=5), st.lists(words, max_size=3))
def test_which_tokens_are_kept_does_not_depend_on_those_behind_the_cut(
    prompt: str, before: list[str], more: list[str], behind: list[str]
) -> None:
    cursor, further = exact(prompt), exact(prompt)
    cursor.advance(before)
    further.advance(before)
    written = cursor.pending + more
    used = cursor.resync(written, len(written))
    longer = further.resync(written + behind, len(written + behind))
    assert longer == used if used is not None else longer is None or longer > len(written)


@examples(150)
@given(prompts, st.lists(words, max_size=3), st.lists(words, min_size=1, max_size=5))
def test_rejoining_leads_to_a_good_cut_or_moves_nothing(prompt: str, before: list[str], more: list[str]) -> None:
    cursor = exact(prompt)
    cursor.advance(before)
    anchor, written = cursor.anchor, cursor.pending + more
    used = cursor.resync(written, len(written))
    if used is None:
        assert cursor.anchor == anchor
    else:
        assert cursor.anchor.text == anchor.text + "".join(written[:used])
        path = (*VOCABULARY.encode(anchor.text), *map(VOCABULARY.token, written[:used]))
        assert VOCABULARY.encode(cursor.anchor.text) == path


# with the server's counts alone


def counted() -> CountedPath:
    """At a prompt that the server reads as 10 tokens."""
    cursor = CountedPath("p")
    assert cursor.confirm(CutPoint("p", 0), 10)
    return cursor


def test_without_a_tokenizer_every_cut_is_offered() -> None:
    assert CountedPath("p").cut_points(["a", "b"]) == [CutPoint("p", 0), CutPoint("pa", 1), CutPoint("pab", 2)]


def test_the_prompts_tokens_are_known_once_the_server_told() -> None:
    assert CountedPath("p").prompt_tokens_at(CutPoint("pa", 1)) is None
    assert counted().prompt_tokens_at(CutPoint("pa", 1)) == 11


def test_the_servers_count_confirms_or_refutes_a_cut() -> None:
    cursor = counted()
    assert cursor.confirm(CutPoint("pa", 1), 11)
    assert not cursor.confirm(CutPoint("pab", 2), 11)
    assert not cursor.is_stuck  # the place where the reply stands is good


def test_a_server_that_does_not_count_refutes_nothing() -> None:
    cursor = CountedPath("p")
    assert cursor.confirm(CutPoint("p", 0), None)
    assert cursor.prompt_tokens_at(CutPoint("p", 0)) is None


def test_confirmed_cuts_that_the_reply_takes_move_the_anchor() -> None:
    cursor = counted()
    cursor.confirm(CutPoint("pa", 1), 11)
    cursor.advance(["a", "b"])
    assert cursor.anchor == CutPoint("pa", 1)
    assert cursor.pending == ["b"]
    assert not cursor.is_stuck
    assert cursor.cut_points(["c"]) == [CutPoint("pab", 2), CutPoint("pabc", 3)]


def test_the_anchor_moves_on_once_the_next_request_was_counted_right() -> None:
    cursor = counted()
    cursor.advance(["a"])
    assert cursor.anchor == CutPoint("p", 0)
    assert cursor.confirm(CutPoint("pa", 1), 11)
    cursor.advance(["b"])
    assert cursor.anchor == CutPoint("pa", 1)


def test_a_refuted_place_can_only_be_asked_from_the_anchor() -> None:
    cursor = counted()
    cursor.advance(["a"])
    assert not cursor.confirm(CutPoint("pa", 1), 10)
    assert cursor.is_stuck
    assert (cursor.anchor, cursor.pending) == (CutPoint("p", 0), ["a"])


def test_a_count_of_a_rejected_draft_says_nothing_of_the_text_that_came_instead() -> None:
    cursor = counted()
    for cut, count in zip(cursor.cut_points(["a", "b"])[1:], (11, 12), strict=True):
        assert cursor.confirm(cut, count)
    cursor.advance(["a", "x"])
    assert (cursor.anchor, cursor.pending) == (CutPoint("pa", 1), ["x"])
    assert not cursor.confirm(CutPoint("pax", 2), 11)
    assert cursor.is_stuck


def test_a_server_that_does_not_count_is_asked_from_where_the_reply_stands() -> None:
    # or what it draws there would be looked for in the draws of an earlier place
    cursor = CountedPath("p")
    cursor.advance(["a"])
    assert cursor.confirm(CutPoint("pa", 1), None)
    cursor.advance([])
    assert (cursor.anchor, cursor.pending) == (CutPoint("pa", 1), [])


def test_without_a_tokenizer_no_cut_is_known_to_be_good_before_it_is_asked() -> None:
    assert counted().count_to_first_aligned(["a", "b"]) is None


def test_rejoining_goes_on_until_a_count_is_right() -> None:
    cursor = counted()
    cursor.advance(["a"])
    cursor.confirm(CutPoint("pa", 1), 12)
    assert cursor.resync(["a", "b"], 2) == 2
    assert not cursor.is_stuck
    assert not cursor.confirm(CutPoint("pab", 2), 13)
    assert cursor.is_stuck
    assert cursor.resync(["a", "b", "c"], 3) == 3
    assert cursor.confirm(CutPoint("pabc", 3), 13)
    cursor.advance([])
    assert (cursor.anchor, cursor.pending, cursor.is_stuck) == (CutPoint("pabc", 3), [], False)


def test_tokens_without_text_count_towards_the_place() -> None:
    cursor = counted()
    assert cursor.resync(["\u00ff"], 2) == 1
    assert (cursor.pending, cursor.sampled) == (["\u00ff"], 2)
    assert cursor.cut_points(["b"]) == [CutPoint("p\u00ff", 2), CutPoint("p\u00ffb", 3)]
    cursor.advance(["b"])
    assert (cursor.pending, cursor.sampled) == (["\u00ff", "b"], 3)
    assert cursor.cut_points([]) == [CutPoint("p\u00ffb", 3)]


def test_a_cursor_can_begin_in_the_middle_of_a_reply() -> None:
    cursor = CountedPath("pabc", position=3)
    assert cursor.confirm(CutPoint("pabc", 3), 13)
    assert cursor.prompt_tokens_at(CutPoint("pabcd", 4)) == 14


# drafts of another tokenizer


def test_a_draft_is_put_into_the_targets_tokens_but_for_the_last() -> None:
    assert retokenize_draft("see http", "://abcb", VOCABULARY) == ["://", "abc"]  # "b" might go on


def test_a_draft_that_changes_how_the_text_before_is_read_is_dropped() -> None:
    assert retokenize_draft("xa", "bcd", VOCABULARY) == []
    assert retokenize_draft("xa", "bcbb", VOCABULARY) == []


def test_a_draft_ends_before_a_character_that_takes_several_tokens() -> None:
    assert retokenize_draft("x", "bc\u00ffb", VOCABULARY) == ["bc"]


def test_a_draft_ends_before_a_token_whose_text_another_one_prints_too() -> None:
    assert retokenize_draft("x", "bc bb", VOCABULARY) == ["bc"]


def test_an_empty_draft_stays_empty() -> None:
    assert retokenize_draft("x", "", VOCABULARY) == []


@examples(150)
@given(prompts, st.text(alphabet="abcd /:é\u00ff€<", max_size=12))
def test_a_draft_in_other_tokens_is_a_beginning_of_its_text_and_of_the_targets_own_reading(
    text: str, drafted: str
) -> None:
    written = retokenize_draft(text, drafted, VOCABULARY)
    assert drafted.startswith("".join(written))
    assert set(written) <= VOCABULARY.unambiguous_texts
    path = (*VOCABULARY.encode(text), *map(VOCABULARY.token, written))
    assert not written or VOCABULARY.encode(text + drafted)[: len(path)] == path
