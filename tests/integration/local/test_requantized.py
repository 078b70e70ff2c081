"""A draft model is opened as a copy in quicker weights where that was seen to be quicker, and as it is otherwise."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import time

import pytest

from specollama.backends.llama_cpp import profiling, requantize
from specollama.backends.llama_cpp.model import LlamaModel, LoadOptions
from specollama.backends.timings import DOUBTED_FOR
from specollama.errors import RunError
from specollama.pairs.routes.local_models import LocalModels, load_models
from specollama.server.embedded.default_models import default_models
from tests.support.local_replies import reply, settings

OPTIONS = LoadOptions(context_length=256)
MODELS = default_models()  # before the cache is another one
PROMPT = "The three primary colours are"


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A draft model of this test alone, with a cache and a state of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Path(shutil.copy(MODELS["draft"], tmp_path / "draft.gguf"))


@asynccontextmanager
async def opened(draft: Path, **given: bool) -> AsyncIterator[LocalModels]:
    pair = await load_models(MODELS["draft"], {"draft": draft}, OPTIONS, lookup=False, **{"requantize": True, **given})
    try:
        yield pair
    finally:
        await pair.close()


def known(draft: Path, steps: Mapping[str, float]) -> None:
    """As if these had been measured before: seconds of a step, as the file is and as its copy."""
    key, target = profiling.model_key(draft, OPTIONS), profiling.model_key(MODELS["draft"], OPTIONS)
    kept = {target: profiling.ModelProfile(passes={1: 0.02, 8: 0.04}, reading=0.001)} | {
        key + suffix: profiling.ModelProfile(passes={1: step}, reading=0.001) for suffix, step in steps.items()
    }
    assert profiling.save(profiling.SavedProfile(models=kept), profiling.profile_file(target, key)) == ""


async def test_the_quicker_copy_drafts_and_the_text_stays_the_same(draft: Path) -> None:
    known(draft, {"": 1.0, "-requantized": 0.4})
    async with opened(draft) as pair:
        copy = requantize.copy_path(draft)
        assert pair.drafts[0].model.path == copy
        assert pair.drafts[0].shares_tokenizer
        [line] = pair.pop_notices()
        assert line == f"draft drafts 2.5 times as fast from a copy in 4 bits, kept in {copy.parent}"
        text, _, stats = await reply(pair, PROMPT, chosen=settings(4))
    assert stats.accepted > 0
    async with opened(draft, requantize=False) as pair:
        assert pair.drafts[0].model.path == draft
        assert (await reply(pair, PROMPT))[0] == text


async def test_a_copy_is_made_once(draft: Path) -> None:
    known(draft, {"": 1.0, "-requantized": 0.4})
    async with opened(draft):
        made = requantize.copy_path(draft).stat()
    async with opened(draft) as pair:
        assert pair.pop_notices() == ()
        assert requantize.copy_path(draft).stat() == made


async def test_a_copy_that_was_damaged_is_made_anew(draft: Path) -> None:
    known(draft, {"": 1.0, "-requantized": 0.4})
    async with opened(draft):
        whole = requantize.copy_path(draft).stat().st_size
    requantize.copy_path(draft).write_bytes(b"GGUF and no more")
    async with opened(draft) as pair:
        assert pair.drafts[0].model.path == requantize.copy_path(draft)
    assert requantize.copy_path(draft).stat().st_size == whole


async def test_a_copy_that_was_damaged_before_it_was_ever_timed_is_made_anew(
    draft: Path, weighed: Callable[[list[float], list[float]], None]
) -> None:
    weighed([0.010, 0.010], [0.004, 0.004])
    copy = requantize.copy_path(draft)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"GGUF and no more")
    async with opened(draft) as pair:
        assert pair.drafts[0].model.path == copy
        assert not any("no quicker copy" in line for line in pair.pop_notices())


async def test_a_copy_that_memory_does_not_suffice_for_stays(draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(draft, {"": 1.0, "-requantized": 0.4})
    async with opened(draft):
        copy = requantize.copy_path(draft)
    free = iter([2**40, 2**40, 2**20])  # for the target's file and context, and then
    monkeypatch.setattr("specollama.backends.llama_cpp.model.free_memory", lambda: next(free))
    async with opened(draft) as pair:
        assert pair.drafts == []
        [notice] = pair.pop_notices()
    assert notice.startswith("draft doesn't draft: ")
    assert "of memory" in notice
    assert copy.exists()


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float], list[float]], None]:
    """Says what the looks at a step of the draft model and of its copy find, from now on."""

    def say(steps: list[float], copied: list[float]) -> None:
        monkeypatch.setattr(profiling, "steps_in_turn", lambda models, texts, looks: [steps, copied])

    return say


def kept_steps(draft: Path) -> dict[str, float]:
    """Seconds of a step that are kept: of the file (""), and of its copy."""
    key, target = profiling.model_key(draft, OPTIONS), profiling.model_key(MODELS["draft"], OPTIONS)
    models = profiling.load(profiling.profile_file(target, key))[0].models
    return {name.removeprefix(key): models[name].passes[1] for name in models if name.startswith(key)}


async def test_a_copy_that_is_not_quicker_is_thrown_away_and_not_made_again(
    draft: Path, weighed: Callable[[list[float], list[float]], None]
) -> None:
    weighed([0.010, 0.010], [0.0095, 0.0095])
    for _ in range(2):
        async with opened(draft) as pair:
            assert pair.drafts[0].model.path == draft
            assert pair.pop_notices() == ()
        assert not requantize.copy_path(draft).exists()


async def test_a_step_that_was_timed_another_day_is_timed_anew_beside_the_copys(draft: Path) -> None:
    known(draft, {"": 0.793})  # in a bad moment: 79.3 times a copy's 10 ms
    async with opened(draft):
        pass
    assert kept_steps(draft).keys() == {"", "-requantized"}
    assert kept_steps(draft)[""] != 0.793


@pytest.mark.parametrize(
    ("copied", "says"),
    [
        ([0.004, 0.020, 0.020], "draft drafts from a copy in 4 bits, kept in "),
        ([0.011, 0.050, 0.050], "draft drafts as it is, not from its copy in 4 bits: "),
    ],
)
async def test_a_weighing_in_a_bad_moment_stands_for_minutes_and_boasts_of_nothing(
    draft: Path,
    weighed: Callable[[list[float], list[float]], None],
    monkeypatch: pytest.MonkeyPatch,
    copied: list[float],
    says: str,
) -> None:
    weighed([0.010, 0.010, 0.010], copied)
    async with opened(draft) as pair:
        [line] = pair.pop_notices()
        assert line.startswith(says)
        assert "timed in a busy moment, measured anew in 10 minutes" in line
        assert "times as fast" not in line
    assert requantize.copy_path(draft).exists(), "it isn't made anew for the next look"
    weighed([0.010, 0.010, 0.010], [0.002, 0.002, 0.002])
    async with opened(draft) as pair:
        assert pair.pop_notices() == ()
    later = time() + DOUBTED_FOR + 1
    monkeypatch.setattr(profiling, "time", lambda: later)
    async with opened(draft) as pair:
        assert pair.pop_notices() == (
            f"draft drafts 5.0 times as fast from a copy in 4 bits, kept in {requantize.copy_path(draft).parent}",
        )


async def test_where_no_copy_can_be_made_the_file_itself_drafts(draft: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    async with opened(draft) as pair:
        [line] = pair.pop_notices()
        assert line.startswith("no quicker copy of draft: ")
        assert line.endswith(" (`requantize = false` in the pair asks for none)")
        assert pair.drafts[0].model.path == draft
        assert (await reply(pair, PROMPT))[0]


def test_a_file_that_is_no_model_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and no more")
    with pytest.raises(RunError, match=r"can't write broken\.gguf in other types"):
        requantize.write_copy(broken, tmp_path / "copies" / "copy.gguf")
    assert list((tmp_path / "copies").iterdir()) == []


def test_only_what_a_processor_runs_in_other_types_is_copied(draft: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    requantize.write_copy(draft, copy)
    assert requantize.source_path(copy).read_text() == str(draft)
    for path, useful in ((draft, True), (copy, False)):
        model = LlamaModel(path, OPTIONS)
        assert requantize.may_help(model, OPTIONS) is useful
        model.close()
