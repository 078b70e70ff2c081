"""The target's tokenizer, rebuilt from /api/show: the same tokens as with the model's own file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from specollama.backends.llama_cpp import tokenizer
from specollama.backends.llama_cpp.draft_compatibility import first_difference
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.errors import MissingPackage, RunError
from specollama.pairs.pair import Pair
from specollama.server.embedded.default_models import default_models
from tests.support.sentencepiece import BYTES, PIECES, sentencepiece
from tests.support.serving import Recorder

TEXTS = [
    "",
    " ",
    "  ",
    "   three",
    "\n",
    "\n\n\n",
    "\t\ttabs\t",
    " \n \t mixed \r\n",
    "trailing ",
    "a" * 300,
    "Hello, world!",
    "It's they're we'll I'd 'quoted'",
    "don't stop... really?!",
    "see http://example.org/a/b?c=d&e=f#g",
    "http:",
    "http:/",
    "http://",
    "mail@example.org",
    "C:\\path\\to\\file.txt",
    "/usr/local/bin",
    "1234567890",
    "3.14159 -2e10 0x1F 1_000 1,234.56",
    "2+2=4",
    "x² ≥ 0, ∀x∈ℝ",
    "½ ⅔ ①②③",
    "def f(x):\n    return x + 1\n",
    "for (int i = 0; i < 10; ++i) { sum += a[i]; }",
    '<html><body class="a">&nbsp;</body></html>',
    '{"name": "x", "list": [1, 2.5, null, true]}',
    "SELECT * FROM t WHERE a = 'b' -- comment",
    "#!/bin/sh\nset -e\necho \"$1\" | sed 's/a/b/g'",
    "```python\nprint('hi')\n```",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "- one\n- two\n  - three",
    "# Title\n\n**bold** _italic_ `code`",
    "camelCaseWords snake_case_words SCREAMING_CASE",
    "ünïcödé façade naïve Ångström",
    "e\u0301 combining, \u00e9 composed",
    "Привет, как дела?",
    "Γειά σου Κόσμε",
    "مرحبا بالعالم",
    "שלום עולם",
    "नमस्ते दुनिया",
    "ภาษาไทย",
    "東京は日本の首都です。",
    "你好，世界",
    "안녕하세요 세계",
    "Việt Nam",
    "🌊",
    "🌊🌳⭐ 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "a🌊b",
    "zero\u200bwidth\u200djoin",
    "no\u00a0break\u2009thin\u3000wide",
    "line\u2028sep\u2029para\u0085next",
    "\ufeffbom",
    "\ufffd replaced",
    "\x00\x01\x07\x1b[0m",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "￼private\ue000use",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>",
    "<|im_end|>x<|im_end|>",
    "<|endoftext|>",
    " <|im_start|> spaced <|im_end|> ",
    "<|im_star|> no marker",
    "<s>no marker here</s>",
    "<repo_name>a<file_sep>b",
    "A" + " " * 50 + "B",
    "ab" * 200 + "\n" * 20,
    "…—–“”‘’«»",
    "$€£¥₿",
]


@pytest.mark.parametrize("model", ["target", "draft"])
async def test_its_tokens_are_those_of_the_models_own_file(embedded_url: str, tmp_path: Path, model: str) -> None:
    async with OllamaServer(embedded_url) as server:
        show = await server.show(model, verbose=True)
    tokenizer.write_vocabulary_file(show.model_info, tmp_path / "rebuilt.gguf")
    rebuilt, own = LlamaTokenizer(tmp_path / "rebuilt.gguf"), LlamaTokenizer(default_models()[model])
    try:
        assert len(TEXTS) >= 70
        assert {text: rebuilt.encode(text) for text in TEXTS} == {text: own.encode(text) for text in TEXTS}
        assert rebuilt.all_texts() == own.all_texts()
        assert rebuilt.unambiguous_texts == own.unambiguous_texts
        assert rebuilt.bos_text == own.bos_text
        assert rebuilt.adds_begin_marker == own.adds_begin_marker
    finally:
        rebuilt.close()
        own.close()


def test_what_the_tokens_print_is_the_text_again(target_vocabulary: LlamaTokenizer) -> None:
    for text in ("Hello, world!", "def f(x):\n    return x", "naïve façade", "  two spaces"):
        assert "".join(target_vocabulary.display_text(token) for token in target_vocabulary.encode(text)) == text


def test_markers_and_fragments_of_characters_print_nothing_of_their_own(target_vocabulary: LlamaTokenizer) -> None:
    (marker,) = target_vocabulary.encode("<|im_start|>")
    assert target_vocabulary.display_text(marker) == ""
    fragments = target_vocabulary.encode("🌊")
    assert len(fragments) > 1
    assert "".join(target_vocabulary.display_text(token) for token in fragments) != "🌊"


def test_distinct_texts_are_those_of_exactly_one_whole_token(target_vocabulary: LlamaTokenizer) -> None:
    shown = target_vocabulary.all_texts()
    assert "" not in target_vocabulary.unambiguous_texts
    assert {" the", "\n", "://"} <= target_vocabulary.unambiguous_texts
    assert all(shown.count(text) == 1 for text in (" the", "\n", "://"))
    assert all("\ufffd" not in text for text in target_vocabulary.unambiguous_texts)


async def test_the_default_pairs_tokenizers_are_the_same(
    embedded_url: str, tmp_path: Path, target_vocabulary: LlamaTokenizer
) -> None:
    async with OllamaServer(embedded_url) as server:
        tokenizer.write_vocabulary_file((await server.show("draft", verbose=True)).model_info, tmp_path / "draft.gguf")
    draft = LlamaTokenizer(tmp_path / "draft.gguf")
    assert first_difference(draft.all_texts(), target_vocabulary.all_texts()) is None
    draft.close()


# A vocabulary of another kind, made up: SentencePiece, with a begin marker that the tokenizer adds


def opened(info: dict[str, Any], path: Path) -> LlamaTokenizer:
    tokenizer.write_vocabulary_file(info, path)
    return LlamaTokenizer(path)


def test_a_sentencepiece_vocabulary_works(tmp_path: Path) -> None:
    vocabulary = opened(sentencepiece(), tmp_path / "spm.gguf")
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
    assert vocabulary.adds_begin_marker
    assert vocabulary.bos_text == "<s>"
    assert vocabulary.encode("ab") == (1, tokens.index("▁ab"))
    assert vocabulary.encode("the")[:1] == (1,)
    assert vocabulary.display_text(tokens.index("▁ab")) == " ab"
    assert vocabulary.display_text(1) == ""
    assert vocabulary.display_text(tokens.index("<0xC3>")) == ""
    assert "é" in vocabulary.unambiguous_texts
    assert "A" not in vocabulary.unambiguous_texts  # the byte token prints it too
    vocabulary.close()


def test_a_piece_that_others_come_before_has_no_space_of_a_beginning(tmp_path: Path) -> None:
    vocabulary = opened(sentencepiece(), tmp_path / "spm.gguf")
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
    assert vocabulary.encode_fragment("ab") == [tokens.index("▁ab")]
    assert vocabulary.encode_continuation("ab") == [tokens.index("ab")]
    assert vocabulary.encode_continuation(" ab") == [tokens.index("▁ab")]
    assert vocabulary.encode_continuation("") == []
    vocabulary.close()


def test_without_add_bos_the_tokenizer_adds_none(tmp_path: Path) -> None:
    vocabulary = opened(sentencepiece(**{"tokenizer.ggml.add_bos_token": False}), tmp_path / "spm.gguf")
    assert not vocabulary.adds_begin_marker
    assert vocabulary.encode("ab")[0] != 1
    vocabulary.close()


def test_the_control_tokens_of_a_chat_are_told() -> None:
    vocabulary = LlamaTokenizer(default_models()["draft"])
    assert vocabulary.control_tokens_in("<|im_start|>user\nHello<|im_end|>\n") == ("<|im_start|>", "<|im_end|>")
    vocabulary.close()


def test_closing_twice_is_no_matter(tmp_path: Path) -> None:
    vocabulary = opened(sentencepiece(), tmp_path / "spm.gguf")
    vocabulary.close()
    vocabulary.close()


# Kept by digest, whole or not at all


async def test_a_pair_asks_for_the_vocabulary_once_and_keeps_it_by_digest(
    recorder: Recorder, pair_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.pair_replies import ask, reply

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        answer = await reply(pair_settings(), ask(num_predict=2, temperature=0))
        assert answer.text
    verbose = [each.model for each in recorder.asked("/api/show") if each.body.get("verbose")]
    assert sorted(verbose) == ["draft", "target"]
    async with Pair(pair_settings(), {}) as pair:
        digests = {model.digest for model in await pair.target_server.tags()}
        folder = tokenizer.cache_path(pair.target_server.url, "x").parent
    assert {path.stem for path in folder.iterdir()} == digests
    assert {path.suffix for path in folder.iterdir()} == {".gguf"}


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    info = sentencepiece(**{"tokenizer.ggml.scores": [object()] * 3})
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the package raises
        tokenizer.write_vocabulary_file(info, tmp_path / "spm.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_write_over_an_older_file_replaces_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "spm.gguf"
    path.write_bytes(b"cut short")
    opened(sentencepiece(), path).close()
    assert list(tmp_path.iterdir()) == [path]


# What is missing is said in one line


def test_a_server_that_keeps_the_vocabulary_to_itself_is_told(tmp_path: Path) -> None:
    for tokens in (None, []):
        with pytest.raises(RunError, match="doesn't give the model's vocabulary"):
            tokenizer.write_vocabulary_file(sentencepiece(**{"tokenizer.ggml.tokens": tokens}), tmp_path / "none.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a GGUF at all"])
def test_a_file_that_is_none_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(RunError, match="can't read the vocabulary") as caught:
        LlamaTokenizer(path)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.write_vocabulary_file(sentencepiece(), tmp_path / "spm.gguf")
    for module, package in (("gguf", "gguf"), ("llama_cpp", "llama-cpp-python")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(MissingPackage) as caught:
                opened(sentencepiece(), tmp_path / "spm.gguf")
        assert str(caught.value) == f"{package} isn't installed: `pip install 'specollama[local]'`"


async def test_without_the_package_cuts_are_checked_by_counts_and_the_status_says_so(
    pair_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specollama.spec_decode.events import Event, Status
    from specollama.tools.bench import collect_reply
    from tests.support.pair_replies import ask

    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    seen: list[Event] = []
    async with Pair(pair_settings(), {}) as pair:
        answer = await collect_reply(pair.reply(ask(num_predict=8, temperature=0)), seen.append)
    (status,) = [str(event) for event in seen if isinstance(event, Status)]
    assert status.startswith("speculation: on (lanes, lookahead 4; cuts checked by token counts alone")
    assert "pip install" in status
    assert answer.stats.accepted
