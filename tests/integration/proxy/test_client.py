"""The Python clients: ollama's own in all but the requests for a pair."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

import specollama
from specollama import AsyncClient, Client
from specollama.config.loading import load_config
from specollama.errors import ConfigError
from tests.support.configured import written
from tests.support.misbehaving import Cut, Hanging, Misbehaving
from tests.support.scripted_ollama import ScriptedOllama, song

COLOURS = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0, "num_predict": 24}
SING = [{"role": "user", "content": "Sing."}]
AT_0 = {"temperature": 0}

Up = Callable[[Any], str]


@pytest.fixture(scope="module")
def engine(engine_config: Path) -> Iterator[Client]:
    with Client(config=engine_config) as client:
        yield client


@pytest.fixture
def client(scripted: ScriptedOllama, up: Up, tmp_path: Path) -> Iterator[Client]:
    with Client(config=written(tmp_path, up(scripted))) as client:
        yield client


def test_a_chat_of_a_pair_is_the_targets_own_text_with_its_counters(engine: Client, embedded_url: str) -> None:
    with ollama.Client(embedded_url) as direct:
        plain = direct.chat("target", COLOURS, options=GREEDY)
    told = engine.chat("duo", COLOURS, options=GREEDY)
    assert isinstance(told, ollama.ChatResponse)
    assert told.message.content == plain.message.content
    assert (told.eval_count, told.prompt_eval_count) == (plain.eval_count, plain.prompt_eval_count)
    assert told.specollama["accepted"] > 0
    assert told["model"] == "duo"


def test_a_stream_joins_to_the_whole_and_only_its_last_part_has_the_counters(engine: Client) -> None:
    parts = list(engine.chat("duo", COLOURS, stream=True, options=GREEDY))
    whole = engine.chat("duo", COLOURS, options=GREEDY)
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [part.specollama is not None for part in parts] == [part.done for part in parts]


def test_a_completion_of_a_pair_is_the_targets_own_with_its_context(engine: Client, embedded_url: str) -> None:
    with ollama.Client(embedded_url) as direct:
        plain = direct.generate("target", "The sky is", options=GREEDY)
    told = engine.generate("duo", "The sky is", options=GREEDY)
    assert isinstance(told, ollama.GenerateResponse)
    assert (told.response, told.context) == (plain.response, plain.context)
    assert told.specollama["route"] == "lanes"


def test_all_else_is_inherited(engine: Client) -> None:
    assert [model.model for model in engine.list().models] == ["draft:latest", "target:latest"]
    assert engine.show("target").modelinfo
    other = engine.chat("draft", COLOURS, options=GREEDY)
    assert other.message.content
    assert other.specollama is None


async def test_the_asynchronous_client_does_the_same(engine_config: Path, engine: Client) -> None:
    async with AsyncClient(config=engine_config) as client:
        whole = await client.chat("duo", COLOURS, options=GREEDY)
        parts = [part async for part in await client.chat("duo", COLOURS, stream=True, options=GREEDY)]
        completed = await client.generate("duo", "The sky is", options=GREEDY)
        other = await client.chat("draft", COLOURS, options=GREEDY)
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert whole.message.content == engine.chat("duo", COLOURS, options=GREEDY).message.content
    assert completed.specollama["route"] == "lanes"
    assert other.specollama is None


def test_one_asynchronous_client_works_in_one_loop_after_another(
    scripted: ScriptedOllama, up: Up, tmp_path: Path, song_text: str
) -> None:
    client = AsyncClient(config=written(tmp_path, up(scripted)))

    async def sing() -> str:
        try:
            reply = await client.chat("duo", SING, options=AT_0)
        finally:
            await client._pools[asyncio.get_running_loop()].__aexit__(None, None, None)
        return str(reply.message.content)

    assert [asyncio.run(sing()) for _ in range(2)] == [song_text] * 2
    asyncio.run(client.close())


async def test_the_synchronous_client_works_where_a_loop_runs_already(client: Client, song_text: str) -> None:
    """As in a notebook."""
    assert asyncio.get_running_loop()
    assert client.chat("duo", SING, options=AT_0).message.content == song_text


def test_many_threads_share_one_client(client: Client, song_text: str) -> None:
    texts: list[str] = []

    def sing() -> None:
        texts.append(str(client.chat("duo", SING, options=AT_0).message.content))

    threads = [threading.Thread(target=sing) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [song_text] * 4


def test_leaving_a_stream_early_ends_the_work_for_it(misbehaving: Callable[..., Misbehaving], tmp_path: Path) -> None:
    server = misbehaving()
    with Client(config=written(tmp_path, server.url)) as client:
        for number, _ in enumerate(client.chat("duo", SING, stream=True, options=AT_0)):
            if number == 2:
                break
        asked = len(server.calls)
        assert server.busy == 0
        assert client.list().models
    assert len(server.calls) == asked + 1, "only the list was asked for since"


async def test_leaving_an_asynchronous_stream_early_ends_the_work_for_it(
    misbehaving: Callable[..., Misbehaving], tmp_path: Path
) -> None:
    server = misbehaving()
    async with AsyncClient(config=written(tmp_path, server.url)) as client:
        stream = await client.chat("duo", SING, stream=True, options=AT_0)
        async for _ in stream:
            break
        await stream.aclose()
        asked = len(server.calls)
        await client.list()
    assert len(server.calls) == asked + 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_model_that_is_missing_is_ollamas_own_error(up: Up, tmp_path: Path, stream: bool) -> None:
    with Client(config=written(tmp_path, up(song(models={})))) as client, pytest.raises(ollama.ResponseError) as told:
        list(client.chat("duo", SING, stream=stream))
    assert (told.value.status_code, told.value.error) == (404, "model 'target' not found")


def test_a_server_that_is_not_there_is_a_connection_error(tmp_path: Path) -> None:
    with Client(config=written(tmp_path, "http://127.0.0.1:9")) as client, pytest.raises(ConnectionError) as told:
        client.chat("duo", SING)
    assert str(told.value).startswith("can't reach http://127.0.0.1:9")


def test_a_stream_that_breaks_off_is_an_error_after_what_came(
    misbehaving: Callable[..., Misbehaving], tmp_path: Path
) -> None:
    server = misbehaving(Cut(lambda call: call.path == "/api/chat" and not call.renders, -200, "end"))
    options = {**AT_0, "specollama": {"off": True}}
    with Client(config=written(tmp_path, server.url)) as client:
        stream = client.chat("duo", SING, stream=True, options=options)
        first = next(stream)
        with pytest.raises(ollama.ResponseError, match=r"ended before its last line|isn't what Ollama sends"):
            list(stream)
    assert first.message.content == "The"


def test_a_server_that_says_nothing_is_given_up(misbehaving: Callable[..., Misbehaving], tmp_path: Path) -> None:
    server = misbehaving(Hanging(lambda call: call.generates))
    with (
        Client(config=written(tmp_path, server.url, idle=0.3)) as client,
        pytest.raises(ConnectionError, match="no byte"),
    ):
        client.chat("duo", SING, options=AT_0)


def test_what_a_request_can_not_say_is_a_response_error(client: Client) -> None:
    with pytest.raises(ollama.ResponseError, match=r"options\.specollama") as told:
        client.chat("duo", SING, options={"specollama": 3})
    assert told.value.status_code == 400


def test_a_wrong_configuration_shows_when_the_client_is_made(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[pairs.duo]\n")
    for kind in (Client, AsyncClient):
        with pytest.raises(ConfigError, match=r"pairs\.duo\.target: missing"):
            kind(config=file)


def test_a_configuration_may_be_given_loaded(scripted: ScriptedOllama, up: Up, tmp_path: Path, song_text: str) -> None:
    with Client(config=load_config(written(tmp_path, up(scripted)))) as client:
        assert client.generate("duo", "<|im_start|>assistant\n", raw=True, options=AT_0).response == song_text


def test_importing_the_package_alone_imports_no_client() -> None:
    code = "import sys, specollama; print(sorted({'ollama', 'httpx', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    folder = Path(str(specollama.__file__)).parent
    assert (folder / "py.typed").exists()
    with pytest.raises(AttributeError, match="no attribute 'Sever'"):
        _ = specollama.Sever


def test_a_type_checker_knows_what_comes_back(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from specollama import AsyncClient, Client\n"
        "reply = Client().chat('duo', [{'role': 'user', 'content': 'Hi'}], options={'temperature': 0})\n"
        "reveal_type(reply.specollama)\n"
        "for part in Client().generate('duo', 'Hi', stream=True):\n"
        "    reveal_type(part)\n"
        "async def main() -> None:\n"
        "    reveal_type(await AsyncClient().chat('duo'))\n"
    )
    root = Path(str(specollama.__file__)).parents[1]
    environ = {**os.environ, "MYPYPATH": str(root)}
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path / "cache"),
        str(program),
    ]
    told = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path).stdout
    assert re.findall(r'Revealed type is "(.*)"', told) == [
        "dict[str, Any] | None",
        "specollama.client.GenerateResponse",
        "specollama.client.ChatResponse",
    ]
    assert " error: " not in told


def test_the_program_of_the_readme_runs(
    scripted: ScriptedOllama, up: Up, tmp_path: Path, song_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    file = written(tmp_path, up(scripted), pair="[pairs.duo.options]\ntemperature = 0")
    file.write_text(file.read_text(encoding="utf-8").replace("pairs.duo", "pairs.coder"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECOLLAMA_CONFIG", str(file))
        exec(program, {})
    assert capsys.readouterr().out == f"{song_text} 0.8\n"


@pytest.mark.parametrize("stream", [True, False])
def test_a_program_that_closes_nothing_ends_all_the_same(
    scripted: ScriptedOllama, up: Up, tmp_path: Path, stream: bool
) -> None:
    asked = f"Client().chat('duo', {SING!r}, options={AT_0!r}, stream={stream})"
    code = (
        f"from specollama import Client\nreply = {asked}\nprint((next(reply) if {stream} else reply).message.content)"
    )
    environ = {**os.environ, "SPECOLLAMA_CONFIG": str(written(tmp_path, up(scripted)))}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("The")
