"""What a benchmark asks: its own prompts, and those of a file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from specollama.errors import UsageError
from specollama.tools.bench.prompts import Prompt, built_in, load, pick_evenly

KINDS = ("code", "edit", "maths", "summary", "chat", "translation")


def body(prompt: Prompt) -> str:
    """What comes after the instruction."""
    return prompt.turns[0].partition("\n\n")[2]


def test_the_built_in_set_has_four_prompts_of_each_kind() -> None:
    prompts = built_in()

    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(KINDS, 4)
    assert len({prompt.id for prompt in prompts}) == 24
    assert len({prompt.turns for prompt in prompts}) == 24
    assert all(len(prompt.turns) == 1 for prompt in prompts)


def test_what_is_to_be_edited_or_summarised_has_the_length_of_real_work() -> None:
    lines = {p.id: len(body(p).splitlines()) for p in built_in() if p.category == "edit"}
    words = {p.id: len(body(p).split()) for p in built_in() if p.category == "summary"}

    assert all(20 <= count <= 60 for count in lines.values()), lines
    assert all(250 <= count <= 400 for count in words.values()), words


def test_a_limit_is_spread_over_the_kinds_and_keeps_the_order() -> None:
    assert [prompt.id for prompt in pick_evenly(built_in(), 2)] == ["code-1", "edit-1"]
    assert [prompt.id for prompt in pick_evenly(built_in(), 8)] == [
        *("code-1", "code-2", "edit-1", "edit-2", "maths-1", "summary-1", "chat-1", "translation-1")
    ]
    assert pick_evenly(built_in(), 100) == built_in()


def test_spec_bench_format_is_read_with_what_else_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["Write\u2028a poem.", "Shorter."], "reference": ["x"]},
        {"turns": ["Why?"]},
    ]
    file.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n", encoding="utf-8")

    assert load(file) == [Prompt("81", "writing", ("Write\u2028a poem.", "Shorter.")), Prompt("3", "all", ("Why?",))]


def test_the_id_nought_is_an_id(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('{"turns": ["a"]}\n{"question_id": 0, "turns": ["b"]}\n')

    assert [prompt.id for prompt in load(file)] == ["1", "0"]


@pytest.mark.parametrize("second", ['{"question_id": 1, "turns": ["b"]}', '{"question_id": "1", "turns": ["b"]}'])
def test_an_id_is_one_prompts_also_where_it_is_the_number_of_a_line(tmp_path: Path, second: str) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(f'{{"turns": ["a"]}}\n{second}\n')

    with pytest.raises(UsageError) as refused:
        load(file)
    assert str(refused.value) == f"--prompts {file}, line 2: the question_id 1 is line 1's already"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"turns": ["a"]', "Invalid JSON"),
        ('{"turns": []}', "turns: List should have at least 1 item"),
        ('{"turns": ["  "]}', "turns.0: String should have at least 1 character"),
        ('{"turns": "a"}', "turns: Input should be a valid array"),
        ('{"prompt": "a"}', "turns: Field required"),
        ("[1]", "Input should be an object"),
    ],
)
def test_a_malformed_line_is_refused_with_file_and_number(tmp_path: Path, line: str, fault: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f'{{"turns": ["fine"]}}\n\n{line}\n', encoding="utf-8")

    with pytest.raises(UsageError) as refused:
        load(file)
    assert str(refused.value).startswith(f"--prompts {file}, line 3: ")
    assert fault in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_text_is_a_prompt_a_line_and_a_folder_a_prompt_a_file(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("Why?\n\n How? \n", encoding="utf-8")
    (tmp_path / "a.md").write_text("Explain:\n\n1 + 1\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")

    assert load(tmp_path / "b.txt") == [Prompt("1", "all", ("Why?",)), Prompt("3", "all", ("How?",))]
    assert load(tmp_path) == [Prompt("a.md", "all", ("Explain:\n\n1 + 1",)), Prompt("b.txt", "all", ("Why?\n\n How?",))]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("grün".encode("latin-1"))
    (tmp_path / "empty.txt").touch()

    for name, fault in (
        ("none.jsonl", "No such file or directory"),
        ("latin.txt", "not UTF-8 (byte 2)"),
        ("empty.txt", "no prompts in it"),
    ):
        with pytest.raises(UsageError) as refused:
            load(tmp_path / name)
        assert str(refused.value) == f"--prompts {tmp_path / name}: {fault}"
