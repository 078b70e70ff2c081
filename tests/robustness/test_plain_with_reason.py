"""What can't be kept lossless, or doesn't pay, runs plain: the reason is told in one line, and the answer is right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specollama.backends.ollama.schema import Message
from specollama.config.settings import PairSettings
from specollama.errors import Refused, UnsupportedPair
from specollama.pairs.request import ChatInput
from specollama.server.embedded.serve import RunningServer
from specollama.spec_decode.types import AcceptanceMethod, DoneReason, Route
from tests.support.hearing import hear, question, settings
from tests.support.misbehaving import Body, Changed, Manners, Misbehaving
from tests.support.scripted_ollama import Call, Piece, ScriptedModel, ScriptedOllama
from tests.support.serving import whole

Server = Callable[..., Misbehaving]
RED_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}


def shows(scripted: ScriptedOllama, **fields: Any) -> None:
    """The target's /api/show says this too."""
    target = scripted.models["target"]
    scripted.models = {**scripted.models, "target": replace(target, show={**target.show, **fields})}


# The request


async def test_C38_images_are_sent_to_the_targets_chat_and_never_raw(
    scripted: ScriptedOllama, scripted_url: str, song_text: str
) -> None:
    asked = ChatInput([Message(role="user", content="Which colour?", images=[RED_PIXEL])], {"temperature": 0})
    heard = await hear(settings(scripted_url), asked)
    heard.faithful(song_text)
    assert heard.plain == "images"
    (sent,) = [call for call in scripted.calls if call.generates]
    assert sent.path == "/api/chat"
    assert sent.body["messages"] == [{"role": "user", "content": "Which colour?", "images": [RED_PIXEL]}]
    assert "raw" not in sent.body


async def test_C36_tools_are_sent_to_the_targets_chat(
    scripted: ScriptedOllama, scripted_url: str, song_text: str
) -> None:
    clock = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    asked = ChatInput([Message(role="user", content="What time is it?")], {"temperature": 0}, tools=[clock])
    heard = await hear(settings(scripted_url), asked)
    heard.faithful(song_text)
    assert heard.plain == "tools"
    (sent,) = [call for call in scripted.calls if call.generates]
    assert sent.body["tools"] == [clock]
    assert sent.model == "target"


@pytest.mark.parametrize("wanted", ["json", SCHEMA], ids=["json", "schema"])
async def test_C37_a_format_goes_to_the_target_and_gives_json(embedded_url: str, wanted: Any) -> None:
    asked = ChatInput(
        [Message(role="user", content="Name a city, as JSON.")], {"temperature": 0, "num_predict": 60}, format=wanted
    )
    heard = await hear(settings(embedded_url), asked)
    assert heard.plain == "format"
    if wanted == SCHEMA:
        assert heard.reason is DoneReason.STOP
        assert isinstance(json.loads(heard.text)["city"], str)
    else:
        assert heard.text.lstrip().startswith("{")


@pytest.mark.parametrize("nothing", [None, ""])
async def test_no_format_is_no_reason(scripted_url: str, song_text: str, nothing: Any) -> None:
    asked = ChatInput([Message(role="user", content="Sing.")], {"temperature": 0}, format=nothing)
    heard = await hear(settings(scripted_url), asked)
    heard.faithful(song_text)
    assert heard.statuses[0].startswith("speculation: on")


async def test_C25_with_lookahead_0_nothing_is_asked_of_the_draft(
    scripted: ScriptedOllama, scripted_url: str, song_text: str
) -> None:
    heard = await hear(settings(scripted_url, lookahead=0))
    heard.faithful(song_text)
    assert heard.plain == "lookahead is 0"
    assert not [call for call in scripted.calls if call.model == "draft"]
    assert len([call for call in scripted.calls if call.generates]) == 1


async def test_route_plain_asks_nothing_of_the_draft(
    scripted: ScriptedOllama, scripted_url: str, song_text: str
) -> None:
    heard = await hear(settings(scripted_url, route=Route.PLAIN))
    heard.faithful(song_text)
    assert heard.plain == "route plain was asked for"
    assert not [call for call in scripted.calls if call.model == "draft"]


async def test_a_pair_without_a_draft_is_plain(scripted_url: str, song_text: str) -> None:
    heard = await hear(replace(settings(scripted_url), drafts=()))
    heard.faithful(song_text)
    assert heard.plain == "no draft model"


async def test_a_rule_that_can_not_be_kept_lossless_is_refused(scripted_url: str) -> None:
    with pytest.raises(UnsupportedPair, match=r"rule rejection can't be kept lossless here: .*use `match` or `auto`"):
        await hear(settings(scripted_url, rule=AcceptanceMethod.REJECTION), question(temperature=1))


# What is in effect, whichever layer sets it


async def test_num_predict_0_of_the_pair_is_left_to_the_target(scripted: ScriptedOllama, scripted_url: str) -> None:
    heard = await hear(settings(scripted_url, options={"num_predict": 0}))
    assert heard.plain == "num_predict is 0"
    assert [call.path for call in scripted.calls if call.generates] == ["/api/chat"]


async def test_num_predict_0_of_a_modelfile_is_left_to_the_target(
    scripted: ScriptedOllama, scripted_url: str, song_text: str
) -> None:
    shows(scripted, parameters="num_predict                    0")
    assert (await hear(settings(scripted_url))).plain == "num_predict is 0"
    asked = question(num_predict=-1)
    heard = await hear(settings(scripted_url), asked)
    heard.faithful(song_text)
    assert heard.statuses[0].startswith("speculation: on")


async def test_a_limit_of_the_request_wins_over_num_predict_0_of_the_pair(scripted_url: str, song_text: str) -> None:
    heard = await hear(settings(scripted_url, options={"num_predict": 0}), question(num_predict=400))
    heard.faithful(song_text)
    assert heard.statuses[0].startswith("speculation: on")


async def test_an_option_of_the_request_that_is_null_leaves_the_pairs_in_effect(
    scripted: ScriptedOllama, scripted_url: str
) -> None:
    heard = await hear(settings(scripted_url, options={"num_predict": 0}), question(num_predict=None))
    assert heard.plain == "num_predict is 0"
    assert [call.options["num_predict"] for call in scripted.calls if call.generates] == [0]


async def test_on_the_engine_num_predict_0_of_the_pair_gives_plains_text(embedded_url: str) -> None:
    options = {"num_predict": 0, "stop": ["."]}
    plain = await hear(settings(embedded_url, route=Route.PLAIN, options=options))
    heard = await hear(settings(embedded_url, options=options))
    assert (heard.text, heard.reason) == (plain.text, plain.reason)
    assert heard.plain == "num_predict is 0"


@pytest.mark.parametrize("layer", ["pair", "request"])
async def test_a_server_that_is_told_to_draft_is_left_alone(scripted_url: str, song_text: str, layer: str) -> None:
    given = {"draft_num_predict": 4}
    chosen = settings(scripted_url, options=given if layer == "pair" else {})
    heard = await hear(chosen, question(**(given if layer == "request" else {})))
    heard.faithful(song_text)
    assert heard.plain == "target is speculated by its own server"


async def test_a_server_that_is_told_not_to_draft_is_speculated(
    scripted: ScriptedOllama, scripted_url: str, song_text: str
) -> None:
    shows(scripted, modelfile="FROM x\nDRAFT ./small.gguf\n", parameters="draft_num_predict              4")
    heard = await hear(settings(scripted_url, options={"draft_num_predict": 0}))
    heard.faithful(song_text)
    assert heard.statuses[0].startswith("speculation: on")
    assert {call.options["draft_num_predict"] for call in scripted.calls if call.is_row} == {0}


# The model


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"remote_host": "https://ollama.com"}, "target is a cloud model"),
        ({"details": {"format": "safetensors"}}, "target runs on the MLX engine"),
        ({"modelfile": "FROM x\nDRAFT ./small.gguf\n"}, "target is speculated by its own server"),
        ({"parameters": "draft_num_predict              4"}, "target is speculated by its own server"),
        ({"capabilities": ["thinking"]}, "target doesn't mark its thinking with <think>"),
        (
            {"capabilities": ["thinking"], "template": "<think></think>"},
            "target is a thinking model, and its vocabulary isn't known",
        ),
    ],
)
async def test_a_model_that_can_not_be_speculated_is_answered_by_its_own_chat(
    scripted: ScriptedOllama, scripted_url: str, song_text: str, fields: Body, reason: str
) -> None:
    shows(scripted, **fields)
    heard = await hear(settings(scripted_url))
    heard.faithful(song_text)
    assert heard.plain == reason
    assert not [call for call in scripted.calls if call.renders]


async def test_a_cloud_model_is_known_by_its_name(scripted: ScriptedOllama, scripted_url: str, song_text: str) -> None:
    scripted.models = {**scripted.models, "big:cloud": scripted.models["target"]}
    chosen = settings(scripted_url)
    heard = await hear(replace(chosen, target=replace(chosen.target, model="big:cloud")))
    heard.faithful(song_text)
    assert heard.plain == "big:cloud is a cloud model"


@pytest.mark.parametrize("said", ["# DRAFT is no instruction", "FROM x\nSYSTEM You DRAFT letters"])
async def test_the_word_draft_elsewhere_in_a_modelfile_is_no_reason(
    scripted: ScriptedOllama, scripted_url: str, song_text: str, said: str
) -> None:
    shows(scripted, modelfile=said)
    heard = await hear(settings(scripted_url))
    heard.faithful(song_text)
    assert heard.statuses[0].startswith("speculation: on")


# The server


async def test_a_render_that_is_refused_leaves_the_chat_to_the_target(misbehaving: Server, song_text: str) -> None:
    class Refusing(Manners):
        def instead(self, call: Call) -> Any:
            return whole({"error": "no rendering here"}, 400) if call.renders else None

    heard = await hear(settings(misbehaving(Refusing()).url))
    heard.faithful(song_text)
    assert heard.plain.endswith(": no rendering here")


async def test_a_server_that_renders_nothing_leaves_the_chat_to_the_target(misbehaving: Server, song_text: str) -> None:
    silent = Changed(lambda line: {**line, "_debug_info": None}, lambda call: call.renders)
    heard = await hear(settings(misbehaving(silent).url))
    heard.faithful(song_text)
    assert heard.plain == "the target's server doesn't tell what prompt it makes of a chat"


async def test_raw_requests_that_are_refused_leave_the_chat_to_the_target(misbehaving: Server, song_text: str) -> None:
    class Refusing(Manners):
        def instead(self, call: Call) -> Any:
            raw = call.body.get("raw") and call.model == "target"
            return whole({"error": "raw mode does not support template, system, or context"}, 400) if raw else None

    heard = await hear(settings(misbehaving(Refusing()).url))
    heard.faithful(song_text)
    assert heard.plain.endswith("raw mode does not support template, system, or context")


async def test_raw_requests_that_are_refused_later_end_the_reply_with_one_error(
    misbehaving: Server, song_text: str
) -> None:
    class Refusing(Manners):
        rows = 0

        def instead(self, call: Call) -> Any:
            self.rows += call.is_row
            return whole({"error": "no more"}, 400) if call.is_row and self.rows > 10 else None

    heard = await hear(settings(misbehaving(Refusing()).url))
    heard.faithful(song_text)
    assert isinstance(heard.error, Refused)
    assert heard.text


async def test_a_cache_that_can_not_be_written_is_no_obstacle(
    scripted_url: str, song_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for route in (Route.LANES, Route.AUTO):
        heard = await hear(settings(scripted_url, route=route))
        heard.faithful(song_text)
        assert heard.error is None


async def test_a_cache_that_can_not_be_written_is_no_obstacle_to_an_exact_tokenizer(
    embedded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    heard = await hear(settings(embedded_url), question(num_predict=4))
    assert heard.error is None
    assert heard.statuses[0].startswith("speculation: on (lanes, lookahead 4; cuts checked by token counts alone: ")


# The context


def of_short(url: str, route: Route) -> PairSettings:
    """The one model of the server `short` with itself."""
    chosen = settings(url, route=route)
    model = replace(chosen.target, model="target")
    return replace(chosen, target=model, drafts=(model,))


async def test_C31_a_conversation_that_exceeds_the_context_is_told_and_answered_as_the_target_does(
    short: RunningServer,
) -> None:
    turns = [("user", "The code word is heron."), ("assistant", "I see. " * 20), ("user", "Name three colours.")]
    asked = ChatInput(
        [Message(role=role, content=content) for role, content in turns],
        {"temperature": 0, "num_predict": 8, "stop": []},
    )
    plain = await hear(of_short(short.url, Route.PLAIN), asked)
    for route in (Route.LANES, Route.GREEDY, Route.AUTO):
        heard = await hear(of_short(short.url, route), asked)
        heard.faithful(plain.text)
        assert re.fullmatch(r"the prompt of \d+ tokens fills the context of 64", heard.plain)
        assert heard.stats.prompt_eval_count == plain.stats.prompt_eval_count < 64


async def test_C31_a_message_that_exceeds_the_context_is_told_and_refused_as_the_target_does(
    short: RunningServer,
) -> None:
    asked = question("Sand and stones and shells. " * 16)
    plain = await hear(of_short(short.url, Route.PLAIN), asked)
    heard = await hear(of_short(short.url, Route.LANES), asked)
    assert str(heard.error) == str(plain.error)
    assert "exceeds the available context size (64 tokens)" in str(heard.error)
    assert heard.statuses == ["speculation: off (the prompt of 127 tokens fills the context of 64)"]


@pytest.mark.parametrize(("exact", "lookahead"), [(True, 1), (True, 4), (True, 7), (False, 4)])
async def test_C32_a_reply_that_reaches_the_context_goes_on_as_the_target_alone(
    short: RunningServer, serve: Callable[[Any], str], exact: bool, lookahead: int
) -> None:
    """The context is met between two rounds; the server then drops the oldest half of it, whoever asks."""

    def unknown(line: Body) -> Body:
        return line if exact else {**line, "model_info": {}}

    url = serve(Misbehaving(short.url, Changed(unknown, lambda call: call.path == "/api/show")))
    asked = question("Name all the letters.", num_predict=80, stop=[])  # no near-ties
    heard = await hear(replace(of_short(url, Route.LANES), lookahead=lookahead), asked)
    plain = await hear(of_short(short.url, Route.PLAIN), asked)
    heard.faithful(plain.text)
    assert heard.reason is plain.reason is DoneReason.LENGTH
    assert heard.stats.eval_count == plain.stats.eval_count == 80
    assert heard.ended_plain == "the context is full"


# Empty conversations


async def test_a_reply_of_which_nothing_is_wanted_is_short(scripted_url: str, song_text: str) -> None:
    heard = await hear(settings(scripted_url), question(num_predict=1))
    heard.faithful("The")
    assert heard.reason is DoneReason.LENGTH


@pytest.mark.parametrize("stop", [["tide"], ["The"], [" 東"], ["sing it."], ["goes out, and"], ["x"]])
async def test_stops_are_those_of_plain(scripted_url: str, song_text: str, stop: list[str]) -> None:
    heard = await hear(settings(scripted_url), question(stop=stop))
    heard.faithful(song_text.partition(stop[0])[0])
    assert heard.reason is DoneReason.STOP


@pytest.mark.parametrize("limit", [1, 2, *range(8, 16), 33, 36, 37, 40])
async def test_any_limit_is_that_of_plain(scripted_url: str, limit: int) -> None:
    """Within a character of three tokens, too, where what was sampled of it is lost."""
    heard = await hear(settings(scripted_url), question(num_predict=limit))
    plain = await hear(settings(scripted_url, route=Route.PLAIN), question(num_predict=limit))
    heard.faithful(plain.text)
    assert heard.reason is plain.reason


def test_the_text_of_these_tests_has_a_character_of_several_tokens(scripted: ScriptedOllama) -> None:
    assert [piece for piece in scripted.models["target"].reply if piece.tokens > 1] == [Piece(" 東", 3)]
    assert isinstance(scripted.models["target"], ScriptedModel)
