"""Files that can't be opened, and replies that are given up: one line each, and nothing left behind."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from specollama.backends.llama_cpp.model import LlamaModel, LoadOptions
from specollama.backends.ollama.schema import Message
from specollama.config.settings import FileRef, PairSettings, PromptLookup
from specollama.errors import RunError, UnsupportedPair, UsageError
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput, CompletionInput
from specollama.pairs.routes.local_models import LocalModels, load_models
from specollama.server.embedded.default_models import packaged_model
from specollama.spec_decode.events import Done, Status, Text
from specollama.spec_decode.types import Route
from tests.support.local_replies import COLD, reply, settings, turn
from tests.support.tiny_models import random_model


async def refusal(path: Path, options: LoadOptions | None = None) -> str:
    with pytest.raises(RunError) as caught:
        await load_models(path, {}, options or LoadOptions(context_length=256), lookup=True)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_file_that_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    assert await refusal(tmp_path / "no.gguf") == f"{tmp_path / 'no.gguf'}: No such file or directory"


async def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.gguf"
    file.write_text("not a model")
    assert await refusal(file) == f"{file}: it isn't a GGUF file"


async def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    shutil.copyfile(packaged_model(), file)
    with file.open("r+b") as stream:
        stream.truncate(20_000_000)
    assert await refusal(file) == (
        f"{file}: llama.cpp can't open it: it is damaged, or of an architecture that it doesn't know"
    )


async def test_an_architecture_that_llama_cpp_does_not_know_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "new.gguf"
    writer = gguf.GGUFWriter(file, "from-the-future")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert "of an architecture that it doesn't know" in await refusal(file)


async def test_a_context_that_does_not_fit_into_memory_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = iter([2**40, 2**20])  # for the file, and then for the context
    monkeypatch.setattr("specollama.backends.llama_cpp.model.free_memory", lambda: next(free))
    words = await refusal(packaged_model(), LoadOptions(context_length=2_000_000_000))
    assert "its context of 8192 tokens needs" in words, "no longer than it was trained for"
    assert words.endswith("of memory are free: give a smaller num_ctx")


async def test_a_cache_type_that_is_none_is_refused() -> None:
    assert "llama.cpp knows no cache type 'q99'" in await refusal(packaged_model(), LoadOptions(kv_type="q99"))


def pair_settings(target: Path, *drafts: Path, **options: object) -> PairSettings:
    chosen = tuple(FileRef(draft) for draft in drafts) or (PromptLookup.LOOKUP,)
    given = {"temperature": 0, "num_predict": 12, "num_ctx": 256, **options}
    return PairSettings(None, FileRef(target), chosen, options=given, requantize=False)


def asked(text: str = "Say hello.") -> ChatInput:
    return ChatInput([Message(role="user", content=text)])


async def events(chosen: PairSettings, conversation: ChatInput) -> list[object]:
    async with Pair(chosen, {}) as pair, aclosing(pair.reply(conversation)) as told:
        return [event async for event in told]


async def test_a_file_needs_no_server() -> None:
    told = await events(pair_settings(packaged_model(), packaged_model()), asked())
    assert str(told[0]).startswith("speculation: on (local, lookahead 0-32; near-ties: gaps below ")
    assert isinstance(told[-1], Done)
    assert told[-1].stats.route is Route.LOCAL


def _recurrent(folder: Path) -> Path:
    """A model that can't take back what it has read, as `unfit` has llama.cpp say of it."""
    return random_model(folder / "recurrent.gguf", 3)


def _cut(folder: Path) -> Path:
    file = random_model(folder / "cut.gguf", 3)
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 2)
    return file


UNFIT = {
    "gone": (lambda folder: folder / "gone.gguf", "No such file or directory"),
    "damaged": (_cut, "llama.cpp can't open it: it is damaged"),
    "recurrent": (_recurrent, "is a recurrent model: it can't take back what it has read"),
}


@pytest.fixture
def unfit(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A draft model's file that can't be used, and why."""
    make, why = UNFIT[request.param]
    check = LlamaModel._check_memory

    def say_recurrent(model: LlamaModel, options: LoadOptions) -> None:
        if model.path.name == "recurrent.gguf":
            raise RunError(f"{model.path.name} {why}")
        check(model, options)

    monkeypatch.setattr(LlamaModel, "_check_memory", say_recurrent)
    return make(tmp_path), why


@pytest.mark.parametrize("unfit", UNFIT, indirect=True)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another draft"])
async def test_a_draft_that_can_not_be_used_is_left_out_with_its_name_and_the_reason(
    unfit: tuple[Path, str], beside: bool, tmp_path: Path
) -> None:
    """Prompt lookup, and the other draft, go on."""
    file, why = unfit
    target = random_model(tmp_path / "target.gguf", 1)
    others = (random_model(tmp_path / "other.gguf", 2),) if beside else ()
    plain = await events(replace(pair_settings(target), route=Route.PLAIN), asked())
    told = await events(pair_settings(target, file, *others), asked())
    assert str(told[0]).startswith("speculation: on (local, ")
    assert f"{file.name} doesn't draft: " in str(told[0])
    assert why in str(told[0])
    assert isinstance(told[-1], Done)
    assert _said(told) == _said(plain) != ""


async def test_where_no_draft_can_be_used_the_reply_is_plain_and_says_why(tmp_path: Path) -> None:
    target = random_model(tmp_path / "target.gguf", 1)
    told = await events(pair_settings(target, tmp_path / "one.gguf", tmp_path / "two.gguf"), asked())
    assert str(told[0]).startswith("speculation: off (no draft model can be used; one.gguf doesn't draft: ")
    assert "two.gguf doesn't draft: " in str(told[0])
    assert isinstance(told[-1], Done)


def _said(told: list[object]) -> str:
    return "".join(event.text for event in told if isinstance(event, Text))


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (ChatInput([], tools=[{"type": "function"}]), "tools"),
        (ChatInput([], think=False), "think"),
        (CompletionInput("def f(", suffix="return x"), "suffix"),
        (CompletionInput("And then?", context=[1, 2]), "context"),
        (ChatInput([], {"num_predict": 0}), "num_predict 0"),
    ],
)
async def test_what_only_a_server_can_do_is_refused(ask: ChatInput | CompletionInput, what: str) -> None:
    with pytest.raises(UnsupportedPair, match=f"opened without a server, which {what} would need"):
        await events(pair_settings(packaged_model()), ask)


async def test_a_prompt_that_fills_the_context_is_refused_with_what_to_do() -> None:
    with pytest.raises(RunError, match=r"fills the context of 256: give a larger num_ctx"):
        await events(pair_settings(packaged_model()), asked("word " * 400))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.8, "repeat_penalty": 0}, "repeat_penalty is 0"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0"),  # at temperature 0, too
        ({"repeat_last_n": -2}, "repeat_last_n is -2"),
    ],
)
async def test_options_under_which_nothing_can_be_computed_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(UnsupportedPair, match=f"^no reply can be computed under these options: {words}$"):
        await events(pair_settings(packaged_model()), ChatInput(asked().messages, options))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e39, "hot"])
async def test_a_request_with_an_option_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"^the option temperature must be a number, not "):
        await events(pair_settings(packaged_model()), ChatInput(asked().messages, {"temperature": value}))


def _damage(folder: Path) -> None:
    for file in folder.rglob("*.json"):
        file.write_text("{")


async def test_a_damaged_state_is_told_once_and_measured_anew(places: Path) -> None:
    chosen = pair_settings(packaged_model(), num_ctx=300)
    await events(chosen, asked())
    _damage(places)
    first, second = str((await events(chosen, asked()))[0]), str((await events(chosen, asked()))[0])
    assert "is damaged: measured anew" in first
    assert second.startswith("speculation: on (local, lookahead 0-32; near-ties: gaps below ")
    assert "damaged" not in second


async def test_a_reply_that_is_given_up_leaves_the_pair_ready(real: LocalModels) -> None:
    alone = await reply(real, turn("Count to ten."), COLD, settings(0))
    for taken in range(1, 6):
        run = real.make_decoder(turn("Tell a long story."), COLD, settings(4))
        async with aclosing(run.events()) as told:
            seen = 0
            async for event in told:
                seen += isinstance(event, Text)
                if seen == taken:
                    break
    assert (await reply(real, turn("Count to ten."), COLD, settings("auto")))[:2] == alone[:2]


async def test_a_cancel_takes_effect_while_a_long_prompt_is_read(real: LocalModels) -> None:
    long = "word " * 900
    task = asyncio.create_task(reply(real, long, COLD, settings(4)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    text, _, _ = await reply(real, turn("Hi."), COLD, settings(0))
    assert text
    assert real.target.model.cached_tokens(real.encode(long)) < 900


async def test_all_models_are_asked_in_one_thread(real: LocalModels) -> None:
    """Another thread would have its own set of llama.cpp's, and both sets would be slow from then on."""
    await reply(real, turn("Hi."), COLD, settings(2))
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("specollama-llama")]
    assert len(names) == 1


async def test_a_status_is_told_before_the_text() -> None:
    told = await events(pair_settings(packaged_model()), asked())
    assert [type(event) for event in told[:2]] == [Status, Text]
