"""Ollama's own API through the proxy: what is answered for a pair, and what is passed on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from tests.support.scripted_ollama import ScriptedModel, ScriptedOllama, pieces, song
from tests.support.serving import read_body

Through = Callable[..., httpx.Client]
Up = Callable[[Any], str]
ASKED = {"model": "duo", "messages": [{"role": "user", "content": "Sing."}], "options": {"temperature": 0}}
PROMPT = {"model": "duo", "prompt": "<|im_start|>assistant\n", "raw": True, "options": {"temperature": 0}}


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.text.splitlines()]


def text(response: httpx.Response) -> str:
    return "".join(line["message"]["content"] for line in lines(response))


def test_a_stream_of_a_pair_is_the_targets_text_with_one_done_line_at_its_end(
    scripted: ScriptedOllama, up: Up, through: Through, song_text: str
) -> None:
    response = through(up(scripted)).post("/api/chat", json=ASKED)
    *chunks, last = lines(response)
    assert response.headers["content-type"] == "application/x-ndjson"
    assert text(response) == song_text
    assert all(chunk["done"] is False and chunk["model"] == "duo" for chunk in chunks)
    assert (last["done"], last["done_reason"], last["model"]) == (True, "stop", "duo")
    assert last["message"] == {"role": "assistant", "content": ""}
    assert last["eval_count"] == 34
    assert last["specollama"]["accepted"] > 0


def test_a_whole_reply_of_a_pair_has_the_same_text_in_one_object(
    scripted: ScriptedOllama, up: Up, through: Through, song_text: str
) -> None:
    response = through(up(scripted)).post("/api/chat", json={**ASKED, "stream": False})
    reply = response.json()
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert reply["message"] == {"role": "assistant", "content": song_text}
    counts = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_duration")
    assert all(isinstance(reply[count], int) and reply[count] > 0 for count in counts)
    assert reply["specollama"]["route"] == "lanes"


def test_headers_tell_pair_route_and_reason(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    client = through(up(scripted))
    on = client.post("/api/chat", json=ASKED).headers
    off = client.post("/api/chat", json={**ASKED, "format": "json"}).headers
    assert (on["x-specollama-pair"], on["x-specollama-route"]) == ("duo", "lanes")
    assert "x-specollama-reason" not in on
    assert (off["x-specollama-route"], off["x-specollama-reason"]) == ("plain", "format")
    assert on["x-request-id"] != off["x-request-id"]


def test_a_clients_own_request_id_is_kept(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    client = through(up(scripted))
    assert client.get("/", headers={"x-request-id": "trace-7"}).headers["x-request-id"] == "trace-7"
    assert client.get("/", headers={"x-request-id": "two words"}).headers["x-request-id"] != "two words"


@pytest.mark.parametrize("stream", [True, False])
def test_the_own_object_is_left_out_for_strict_clients(
    scripted: ScriptedOllama, up: Up, through: Through, stream: bool
) -> None:
    response = through(up(scripted), serve="stats = false").post("/api/chat", json={**ASKED, "stream": stream})
    assert response.headers["x-specollama-route"] == "lanes"
    assert "specollama" not in lines(response)[-1]


def test_a_targets_own_name_is_speculated_and_told_back_as_it_was_asked(
    scripted: ScriptedOllama, up: Up, through: Through
) -> None:
    last = lines(through(up(scripted)).post("/api/chat", json={**ASKED, "model": "target:latest"}))[-1]
    assert (last["model"], last["specollama"]["route"]) == ("target:latest", "lanes")


def test_a_targets_own_name_is_left_alone_where_the_pair_says_so(
    scripted: ScriptedOllama, up: Up, through: Through
) -> None:
    client = through(up(scripted), pair="intercept = false")
    assert "specollama" not in lines(client.post("/api/chat", json={**ASKED, "model": "target"}))[-1]
    assert "specollama" in lines(client.post("/api/chat", json=ASKED))[-1]


@pytest.mark.parametrize(
    ("own", "route", "reason"),
    [
        ({"off": True}, "plain", "switched off by the request"),
        ({"off": False}, "lanes", ""),
        ({"route": "plain"}, "plain", "route plain was asked for"),
        ({"route": "greedy"}, "greedy", ""),
        ({"route": "local"}, "plain", "target isn't in a model store on this machine"),
        ({"lookahead": 0}, "plain", "lookahead is 0"),
        ({"lookahead": 2}, "lanes", ""),
    ],
)
def test_a_request_says_how_it_is_to_be_speculated(
    scripted: ScriptedOllama, up: Up, through: Through, song_text: str, own: Any, route: str, reason: str
) -> None:
    asked = {**ASKED, "stream": False, "options": {"temperature": 0, "specollama": own}}
    reply = through(up(scripted)).post("/api/chat", json=asked).json()
    assert reply["message"]["content"] == song_text
    assert reply["specollama"]["route"] == route
    assert reply["specollama"]["reason"].partition(" (")[0] == reason
    assert all("specollama" not in call.options for call in scripted.calls)


@pytest.mark.parametrize(
    "own", ["off", {"speed": 9}, {"route": "scenic"}, {"lookahead": -1}, {"off": "yes"}, {"route": 4}]
)
def test_what_a_request_can_not_say_about_speculation_is_refused(
    scripted: ScriptedOllama, up: Up, through: Through, own: Any
) -> None:
    response = through(up(scripted)).post("/api/chat", json={**ASKED, "options": {"specollama": own}})
    assert response.status_code == 400
    assert response.json()["error"].startswith("options.specollama")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"tools": [{"type": "function", "function": {"name": "clock"}}]}, "tools"),
        ({"format": {"type": "object"}}, "format"),
        ({"messages": [{"role": "user", "content": "What is this?", "images": ["aGk="]}]}, "images"),
        ({"logprobs": True, "top_logprobs": 3}, "logprobs"),
        ({"shift": False}, "shift"),
        ({"width": 64}, "the field 'width' isn't known"),
        ({"options": {"mirostat": 2}}, "the option 'mirostat' isn't known"),
        ({"options": {"num_predict": 0}}, "num_predict is 0"),
        ({"options": {"top_k": "many"}}, "the option 'top_k' isn't of its type"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "no user turn"),
        ({"messages": []}, "no user turn"),
    ],
)
def test_what_only_the_target_can_do_is_passed_on_with_all_that_was_said(
    scripted: ScriptedOllama, up: Up, through: Through, more: dict[str, Any], reason: str
) -> None:
    asked = {**ASKED, **more}
    last = lines(through(up(scripted)).post("/api/chat", json=asked))[-1]
    assert (last["specollama"]["route"], last["specollama"]["reason"]) == ("plain", reason)
    [call] = scripted.asked("/api/chat")
    assert call.body == {**asked, "model": "target"}
    assert not scripted.asked("/api/generate"), "nothing was drafted"


def test_the_pairs_settings_go_with_what_is_passed_on(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    pair = 'keep_alive = "30m"\n[pairs.duo.options]\ntemperature = 0.5\nseed = 7'
    through(up(scripted), pair=pair).post("/api/chat", json={**ASKED, "format": "json"})
    [call] = scripted.asked("/api/chat")
    assert call.body["options"] == {"temperature": 0, "seed": 7}
    assert call.body["keep_alive"] == "30m"


def test_a_raw_completion_is_speculated_and_has_no_context(
    scripted: ScriptedOllama, up: Up, through: Through, song_text: str
) -> None:
    response = through(up(scripted)).post("/api/generate", json=PROMPT)
    chunks = lines(response)
    assert "".join(chunk["response"] for chunk in chunks) == song_text
    assert chunks[-1]["specollama"]["route"] == "lanes"
    assert "context" not in chunks[-1]
    assert all(not call.renders for call in scripted.calls)


@pytest.mark.parametrize(("more", "reason"), [({"raw": True, "system": "x"}, "raw beside what needs a template")])
def test_a_completion_that_contradicts_itself_is_the_targets_to_refuse(
    scripted: ScriptedOllama, up: Up, through: Through, more: dict[str, Any], reason: str
) -> None:
    last = lines(through(up(scripted)).post("/api/generate", json={**PROMPT, **more}))[-1]
    assert last["specollama"]["reason"] == reason


def test_loading_is_passed_on(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    reply = through(up(scripted)).post("/api/generate", json={"model": "duo"}).json()
    assert (reply["model"], reply["done_reason"]) == ("duo", "load")
    assert [call.body["model"] for call in scripted.asked("/api/generate")] == ["target"]


@pytest.mark.parametrize("keep_alive", [0, 0.0, "0", "0s", "0h0m"])
@pytest.mark.parametrize(("model", "unloaded"), [("duo", ["draft"]), ("DUO:latest", ["draft"]), ("target", [])])
def test_a_pair_is_unloaded_with_its_draft_and_a_target_alone(
    scripted: ScriptedOllama, up: Up, through: Through, keep_alive: Any, model: str, unloaded: list[str]
) -> None:
    told = through(up(scripted)).post("/api/generate", json={"model": model, "keep_alive": keep_alive, "stream": False})
    assert told.status_code == 200
    calls = scripted.asked("/api/generate")
    assert [call.model for call in calls] == [*unloaded, "target"]
    assert {call.body["prompt"] if call.model == "draft" else call.body.get("prompt", "") for call in calls} == {""}
    assert all(call.body["keep_alive"] in (0, keep_alive) for call in calls)


@pytest.mark.parametrize("keep_alive", ["odd", "5m", -1, None, False, [0]])
def test_other_durations_unload_nothing(scripted: ScriptedOllama, up: Up, through: Through, keep_alive: Any) -> None:
    through(up(scripted)).post("/api/generate", json={"model": "duo", "keep_alive": keep_alive, "stream": False})
    assert scripted.asked("/api/generate", "draft") == []


def test_the_list_of_models_has_the_pairs_first_and_each_name_once(
    scripted: ScriptedOllama, up: Up, through: Through
) -> None:
    scripted.models = {**scripted.models, "duo": scripted.models["draft"]}
    models = through(up(scripted)).get("/api/tags").json()["models"]
    assert [model["name"] for model in models] == ["duo", "target:latest", "draft:latest"]
    assert len({model["digest"] for model in models}) == 3, "clients take models of one digest for one"
    assert [model["model"] for model in models] == [model["name"] for model in models]


def test_models_of_several_servers_are_listed_under_names_that_reach_them(
    scripted: ScriptedOllama, up: Up, through: Through
) -> None:
    other = ScriptedOllama({"target": ScriptedModel(pieces("Other.")), "lone": ScriptedModel(pieces("Alone."))})
    more = f'[endpoints.attic]\nurl = "{up(other)}"'
    client = through(up(scripted), more=more)
    names = [model["name"] for model in client.get("/api/tags").json()["models"]]
    assert names == ["duo", "target:latest", "draft:latest", "target:latest@attic", "lone:latest"]
    running = [model["name"] for model in client.get("/api/ps").json()["models"]]
    assert running == ["target:latest", "draft:latest", "target:latest@attic", "lone:latest"]
    for name, expected in (("lone", "Alone."), ("target:latest@attic", "Other.")):
        assert text(client.post("/api/chat", json={**ASKED, "model": name})) == expected


def test_a_server_that_is_down_is_left_out_of_the_list(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    client = through(up(scripted), more='[endpoints.attic]\nurl = "http://127.0.0.1:9"')
    names = [model["name"] for model in client.get("/api/tags").json()["models"]]
    assert names == ["duo", "target:latest", "draft:latest"]


def test_one_line_says_that_no_server_is_there(through: Through) -> None:
    response = through("http://127.0.0.1:9").get("/api/tags")
    assert response.status_code == 502
    error = response.json()["error"]
    assert error.startswith("http://127.0.0.1:9 (set by ")
    assert error.endswith("can't be reached: Connection refused; is Ollama running there? (`ollama serve`)")
    assert "\n" not in error


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_root_says_what_ollama_says(scripted: ScriptedOllama, up: Up, through: Through, method: str) -> None:
    response = through(up(scripted)).request(method, "/")
    assert (response.status_code, response.headers["content-length"]) == (200, "17")
    assert response.text == ("Ollama is running" if method == "GET" else "")


class Echo:
    """Answers with what it was asked, in a way of its own."""

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        body = await read_body(receive)
        self.asked = (scope["method"], scope["raw_path"], scope["query_string"], dict(scope["headers"]), body)
        headers = [(b"content-type", b"application/weird"), (b"x-own", b"1"), (b"x-own", b"2"), (b"etag", b'"7"')]
        await send({"type": "http.response.start", "status": 207, "headers": headers})
        for piece in (b"\xff\x00one", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"),
        ("POST", "/api/embed"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:0123"),
        ("PUT", "/api/no%2Fsuch/path?a=1&b=%20"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/messages"),
        ("POST", "/api/chat"),
        ("POST", "/v1/chat/completions"),
    ],
)
def test_all_else_is_passed_on_byte_for_byte_and_so_is_the_answer(
    up: Up, through: Through, method: str, path: str
) -> None:
    echo, body = Echo(), b'{ "model" : "other",\n"odd": 1e400 , "x":"\xc3\xa9"}'
    response = through(up(echo)).request(method, path, content=body, headers={"x-mine": "7", "accept": "text/odd"})
    asked_method, asked_path, query, headers, asked_body = echo.asked
    assert (asked_method, asked_body) == (method, body)
    assert asked_path + (b"?" + query if query else b"") == path.encode()
    assert (headers[b"x-mine"], headers[b"accept"]) == (b"7", b"text/odd")
    assert (response.status_code, response.content) == (207, b"\xff\x00onetwo")
    assert response.headers.get_list("x-own") == ["1", "2"]
    assert (response.headers["content-type"], response.headers["etag"]) == ("application/weird", '"7"')


def test_an_upload_larger_than_any_other_body_streams_through(up: Up, through: Through) -> None:
    echo = Echo()
    client = through(up(echo), serve="max_body = 1000")
    upload = (b"x" * 1000 for _ in range(50))
    assert client.post("/api/blobs/sha256:01", content=upload).status_code == 207
    assert echo.asked[4] == b"x" * 50_000
    assert client.post("/api/embed", content=b"x" * 1001).status_code == 413


def test_a_model_that_is_not_there_gets_ollamas_answer(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    response = through(up(scripted)).post("/api/chat", json={**ASKED, "model": "nope"})
    assert (response.status_code, response.json()) == (404, {"error": "model 'nope' not found"})


def test_a_pair_whose_draft_is_missing_answers_plain_and_says_why(up: Up, through: Through, song_text: str) -> None:
    models = {"target": song().models["target"]}
    response = through(up(song(models=models))).post("/api/chat", json=ASKED)
    assert text(response) == song_text
    assert "has no model 'draft'" in lines(response)[-1]["specollama"]["reason"]


def test_a_pair_whose_target_is_missing_gets_ollamas_answer(up: Up, through: Through) -> None:
    response = through(up(song(models={}))).post("/api/chat", json=ASKED)
    assert (response.status_code, response.json()) == (404, {"error": "model 'target' not found"})
