"""`specollama pairs` and `run` with files."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from specollama.backends.llama_cpp import model_thread
from specollama.backends.llama_cpp.model import LlamaModel, LoadOptions
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import fetch_model_info
from specollama.backends.ollama.schema import Message
from specollama.config.endpoints import Endpoint
from specollama.config.settings import FileRef, ModelRef, PairSettings, PromptLookup
from specollama.errors import RunError
from specollama.pairs.feasibility import ReplyContext
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.pairs.routes import local_models
from specollama.pairs.routes.local import LocalPlan, LocalRoute
from specollama.pairs.routes.local_models import load_models
from specollama.server.embedded.default_models import default_models
from specollama.tools.bench import collect_reply


def call(*words: str, state: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specollama", *words]
    environ = {**os.environ, "XDG_STATE_HOME": str(state), "OLLAMA_HOST": "127.0.0.1:1"}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)


def context(settings: PairSettings, options: dict[str, int]) -> ReplyContext:
    return ReplyContext(settings, ChatInput([], options))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    models = default_models()
    file = tmp_path / "c.toml"
    file.write_text(
        f'[pairs.both]\ntarget = {{ path = "{models["target"]}" }}\n'
        f'draft = ["lookup", {{ path = "{models["draft"]}" }}]\n'
        f'[pairs.gone]\ntarget = {{ path = "gone.gguf" }}\ndraft = "lookup"\n'
        f"[pairs.both.options]\ntemperature = 0\nnum_predict = 8\nnum_ctx = 256\n"
    )
    return file


def test_files_are_looked_at_without_a_server(config: Path, places: Path) -> None:
    done = call("pairs", "--config", str(config), "--json", state=places)
    assert done.returncode == 0, done.stderr
    both, gone = json.loads(done.stdout)
    assert (both["route"], both["target"]["there"], both["draft"]["there"]) == ("local", True, True)
    assert (gone["route"], gone["reason"]) == ("none", f"{config.parent / 'gone.gguf'}: No such file or directory")


def test_a_pair_of_files_answers_without_a_server(config: Path, places: Path) -> None:
    done = call("run", "both", "Say hello.", "--config", str(config), "--stats", state=places)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "speculation: on (local, lookahead 0-32" in done.stderr


def test_a_file_that_is_gone_is_told_in_one_line(config: Path, places: Path) -> None:
    done = call("run", "gone", "Say hello.", "--config", str(config), state=places)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {config.parent / 'gone.gguf'}: No such file or directory\n"


def test_a_file_can_not_be_run_on_a_servers_route(places: Path) -> None:
    done = call("run", "--target", "x.gguf", "--draft", "lookup", "--route", "lanes", "Hi", state=places)
    assert done.returncode == 2
    assert done.stderr == 'error: --route = "lanes": a file is opened in process: auto, local or plain\n'


async def test_a_target_that_its_server_holds_as_well_is_told_of_once(embedded_url: str) -> None:
    async with OllamaServer(embedded_url) as server:
        await server.generate({"model": "target", "prompt": "", "stream": False})  # loads it
        model, route = await fetch_model_info(server, "target"), LocalRoute({})
        [line] = await route.loaded_twice_notice(model)
        assert await route.loaded_twice_notice(model) == []
    assert line.startswith(f"{embedded_url} holds target")
    assert line.endswith("for rendering): `keep_alive = 0` in the pair frees it")


async def test_other_options_of_loading_open_the_pair_anew() -> None:
    models = default_models()
    settings = PairSettings(None, FileRef(models["draft"]), (PromptLookup.LOOKUP,), options={"temperature": 0})
    said = [Message(role="user", content="Count to ten.")]
    async with Pair(settings, {}) as pair:
        texts, rooms = set[str](), list[int | None]()
        for options in ({"num_ctx": 256}, {"num_ctx": 256, "top_k": 3}, {"num_ctx": 512}):
            asked = ChatInput(said, {"num_predict": 8, **options})
            async with aclosing(pair.reply(asked)) as events:
                texts.add((await collect_reply(events)).text)
            rooms.append(await pair.context_length())
        assert (len(texts), rooms) == (1, [256, 256, 512])


async def test_a_pair_that_was_closed_meanwhile_fails_in_one_line() -> None:
    models, route = default_models(), LocalRoute({})
    settings = PairSettings(None, FileRef(models["draft"]), (PromptLookup.LOOKUP,))
    opened = await route.open_models(context(settings, {"num_ctx": 256}))
    assert not isinstance(opened, str)
    assert await route.open_models(context(settings, {"num_ctx": 128})) is not opened
    with pytest.raises(RunError, match="was closed: other options were asked for"):
        opened.encode("a")
    await route.close()


async def test_a_request_given_up_while_the_pair_is_opened_anew_leaves_no_closed_one() -> None:
    models, route = default_models(), LocalRoute({})
    settings = PairSettings(None, FileRef(models["draft"]), (PromptLookup.LOOKUP,))
    await route.open_models(context(settings, {"num_ctx": 256}))
    anew = asyncio.create_task(route.open_models(context(settings, {"num_ctx": 128})))
    await asyncio.sleep(0)  # the old one is being closed
    anew.cancel()
    opened = await route.open_models(context(settings, {"num_ctx": 256}))
    assert not isinstance(opened, str)
    assert opened.encode("a")
    await route.close()


async def test_what_is_opened_when_nobody_waits_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    models, closed, close = default_models(), list[Path](), LlamaModel.close
    begun, unreadable = list[Path](), local_models.refuse_unreadable
    monkeypatch.setattr(local_models, "refuse_unreadable", lambda path: (begun.append(path), unreadable(path)))
    monkeypatch.setattr(LlamaModel, "close", lambda model: (closed.append(model.path), close(model)))
    opening = asyncio.create_task(
        load_models(models["target"], {"draft": models["draft"]}, LoadOptions(context_length=256), lookup=False)
    )
    while not begun:  # noqa: ASYNC110  (nothing tells)
        await asyncio.sleep(0.001)
    opening.cancel()
    await model_thread.run_on_model_thread(lambda stopped: None)  # after it, in the one thread
    assert set(closed) == {models["target"], models["draft"]}


async def test_a_served_draft_model_that_is_not_there_is_told_of_where_the_target_is_a_file() -> None:
    models = default_models()
    nowhere = ModelRef("small", Endpoint("http://127.0.0.1:9", "a test"))
    settings = PairSettings(None, FileRef(models["draft"]), (nowhere,), options={"num_predict": 2, "num_ctx": 256})
    async with Pair(settings, {"OLLAMA_MODELS": "/nowhere"}) as pair:
        plan = await pair.make_plan(ChatInput([Message(role="user", content="Hi.")]))
        assert isinstance(plan, LocalPlan)
        assert plan.notices[0].startswith("the draft's server: can't reach http://127.0.0.1:9")
