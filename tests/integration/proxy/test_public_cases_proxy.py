"""Cases that people reported of other systems, by their number, through the proxy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from specollama.server.embedded.serve import RunningServer
from tests.support.misbehaving import Changed, Misbehaving
from tests.support.scripted_ollama import Call, ScriptedModel, ScriptedOllama, pieces
from tests.support.waiting import until

Through = Callable[..., httpx.Client]
Up = Callable[[Any], str]
GREEDY = {"temperature": 0, "num_predict": 24}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
JOKE = {
    "model": "target",
    "messages": [{"role": "user", "content": "Tell a short joke."}],
    "think": True,
    "stream": False,
}


@pytest.fixture
def engine(engine_proxy: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine_proxy, timeout=120, trust_env=False) as client:
        yield client


@pytest.fixture
def narrow(small: RunningServer, through: Through, tmp_path: Path) -> tuple[httpx.Client, httpx.Client]:
    """A server whose slots hold 64 tokens, and a proxy in front of it."""
    more = '[pairs.narrow]\ntarget = { model = "small", endpoint = "server" }\n'
    more += 'draft = { model = "small", endpoint = "server" }\nroute = "lanes"\nlookahead = 3'
    return httpx.Client(base_url=small.url, timeout=60, trust_env=False), through(small.url, more=more)


def told(response: httpx.Response) -> dict[str, Any]:
    """What an answer says, without times and our own object."""
    body = response.json()
    return {key: body.get(key) for key in ("message", "response", "thinking", "done_reason", "error", "eval_count")}


def test_C31_a_prompt_whose_head_is_cut_off_is_the_targets_matter_and_the_headers_say_so(narrow: Any) -> None:
    direct, proxy = narrow
    prompt = "The code word is BLUEBIRD. " + "Sand and shells. " * 16 + "The code word is"
    asked = {"model": "small", "prompt": prompt, "raw": True, "stream": False}
    plain, through = direct.post("/api/generate", json=asked), proxy.post("/api/generate", json=asked)
    direct.close()
    assert told(through) == told(plain)
    assert through.json()["specollama"]["route"] == through.headers["x-specollama-route"] == "plain"
    assert "context" in through.headers["x-specollama-reason"]


def test_C32_a_reply_that_reaches_the_end_of_the_window_ends_where_the_target_alone_does(narrow: Any) -> None:
    direct, proxy = narrow
    options = {"num_predict": -1, "stop": [], "temperature": 0}
    asked = {"model": "small", "prompt": "One two three four", "raw": True, "options": options, "stream": False}
    asked["shift"] = False
    plain, through = direct.post("/api/generate", json=asked), proxy.post("/api/generate", json=asked)
    direct.close()
    assert told(through) == told(plain)
    assert through.json()["done_reason"] == "length"


def test_C33_after_ten_streams_that_were_left_the_next_one_completes(engine: httpx.Client) -> None:
    asked = {
        "model": "duo",
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "options": {"num_predict": 400},
    }
    for _ in range(10):
        with engine.stream("POST", "/api/chat", json=asked) as response:
            lines = response.iter_lines()
            for _ in range(3):
                next(lines)
    whole = engine.post("/api/chat", json={**asked, "stream": False, "options": GREEDY}).json()
    assert (whole["done"], whole["eval_count"]) == (True, 24)
    until(lambda: not engine.get("/readyz").json()["running"])
    ready = engine.get("/readyz").json()
    assert (ready["status"], ready["stuck"]) == ("ready", [])


@pytest.fixture
def thinker(up: Up) -> str:
    """A thinking model that doesn't mark its thinking by tags of visible text."""
    show = {"capabilities": ["completion", "thinking"], "template": "{{ .Prompt }}"}
    model = ScriptedModel(pieces("Why not?"), thinking="A joke is wanted.", show=show)
    return up(ScriptedOllama({"target": model, "draft": ScriptedModel(pieces("Why not?"))}))


@pytest.mark.parametrize("case", ["C34", "C35"])
def test_C34_C35_thinking_and_answer_are_those_of_the_target_alone(thinker: str, through: Through, case: str) -> None:
    asked = {**JOKE, "stream": case == "C34"}
    response = through(thinker).post("/api/chat", json=asked)
    direct = httpx.post(f"{thinker}/api/chat", json=asked, trust_env=False)
    for plain, ours in zip(direct.text.splitlines(), response.text.splitlines(), strict=True):
        assert json.loads(ours).get("message") == json.loads(plain).get("message")
    assert response.headers["x-specollama-reason"] == "target doesn't mark its thinking with <think>"


def test_C36_the_arguments_of_a_tools_call_arrive_complete(
    misbehaving: Callable[..., Misbehaving], through: Through
) -> None:
    call = {"id": "call_1", "function": {"index": 0, "name": "clock", "arguments": {"zone": "UTC"}}}

    def calling(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "message": {"role": "assistant", "content": "", "tool_calls": [call]}}

    def answers(call: Call) -> bool:
        return call.path == "/api/chat" and not call.renders

    server = misbehaving(Changed(calling, answers))
    client = through(server.url)
    asked = {"model": "duo", "messages": JOKE["messages"], "tools": [CLOCK], "stream": False}
    native = client.post("/api/chat", json=asked).json()
    openai = client.post("/v1/chat/completions", json=asked).json()
    assert native["message"]["tool_calls"] == [call]
    assert native["specollama"]["reason"] == "tools"
    [said] = openai["choices"][0]["message"]["tool_calls"]
    assert (said["id"], json.loads(said["function"]["arguments"])) == ("call_1", {"zone": "UTC"})
    assert server.drafts == 0


def test_C37_a_schema_is_the_targets_matter_and_the_reply_is_valid(engine: httpx.Client, http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    asked = {"messages": [{"role": "user", "content": "Name a city."}], "format": schema, "stream": False}
    asked["options"] = {"temperature": 0, "num_predict": 60}
    reply = engine.post("/api/chat", json={**asked, "model": "duo"}).json()
    plain = http.post("/api/chat", json={**asked, "model": "target"}).json()
    assert reply["message"] == plain["message"]
    assert list(json.loads(reply["message"]["content"])) == ["city"]
    assert (reply["specollama"]["reason"], reply["specollama"]["drafted"]) == ("format", 0)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_C38_images_go_to_the_target_as_they_came(
    scripted: ScriptedOllama, up: Up, through: Through, path: str
) -> None:
    asked: dict[str, Any] = {"model": "duo", "stream": False}
    if path == "/api/chat":
        asked["messages"] = [{"role": "user", "content": "Which colour?", "images": [PIXEL]}]
    else:
        asked |= {"prompt": "<|im_start|>assistant\n", "images": [PIXEL], "raw": True}
    reply = through(up(scripted)).post(path, json=asked).json()
    assert reply["specollama"]["reason"] == "images"
    assert [call.body for call in scripted.calls if call.generates] == [{**asked, "model": "target"}]


def test_C39_show_has_all_of_the_targets_fields_for_a_pair(engine: httpx.Client, http: httpx.Client) -> None:
    pair = engine.post("/api/show", json={"model": "duo"}).json()
    target = http.post("/api/show", json={"model": "target"}).json()
    own = pair.pop("specollama")
    assert pair == target
    assert {"details", "model_info", "capabilities"} <= pair.keys()
    assert (own["pair"], own["target"], own["draft"]) == ("duo", "target", "draft")


def test_C40_a_request_without_a_user_turn_is_passed_on_and_nothing_is_drafted(
    scripted: ScriptedOllama, up: Up, through: Through, engine: httpx.Client
) -> None:
    client = through(up(scripted))
    for messages in ([], [{"role": "system", "content": "Be brief."}]):
        client.post("/api/chat", json={"model": "duo", "messages": messages})
        assert scripted.calls[-1].body == {"model": "target", "messages": messages}
    assert not any(call.drafts for call in scripted.calls)
    real = engine.post("/api/chat", json={"model": "duo", "messages": []}).json()
    assert (real["done"], real["done_reason"], real["message"]["content"]) == (True, "load", "")
