"""A target's server that misbehaves: the text is plain's, or a beginning of it and one error on one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specollama.errors import BrokenReply, EndpointError, Refused, Unreachable
from specollama.spec_decode.types import DoneReason, Route
from tests.support.hearing import hear, settings
from tests.support.misbehaving import (
    BUSY,
    Body,
    Busy,
    Changed,
    Cut,
    GoRunner,
    Hanging,
    Lines,
    Manners,
    Misbehaving,
    OldVersion,
    RefusedRows,
    all_but_the_first,
    broken_off,
    loaded_anew,
    no_rows,
    third,
    thought,
)
from tests.support.scripted_ollama import Call, ScriptedModel, ScriptedOllama
from tests.support.serving import Answer, whole

Server = Callable[..., Misbehaving]


def targets(call: Call) -> bool:
    return call.generates and call.model == "target"


def streamed(call: Call) -> bool:
    return targets(call) and call.streams


def extends(call: Call) -> bool:
    return targets(call) and not call.streams and not call.is_row


def only_draft(call: Call) -> bool:
    return call.drafts


def after(number: int, when: Callable[[Call], bool]) -> Callable[[Call], bool]:
    """All of those but the first so many."""
    left = [number]

    def later(call: Call) -> bool:
        left[0] -= when(call)
        return when(call) and left[0] < 0

    return later


# Sound after all


async def test_a_server_without_faults_is_speculated(misbehaving: Server, song_text: str) -> None:
    heard = await hear(settings(misbehaving().url))
    heard.faithful(song_text)
    assert heard.error is None
    assert len(heard.statuses) == 1
    assert heard.stats.accepted > heard.stats.recovered > 0


async def test_one_slot_is_enough(misbehaving: Server, song_text: str) -> None:
    server = misbehaving(slots=1)
    heard = await hear(settings(server.url))
    heard.faithful(song_text)
    assert heard.error is None
    assert server.busiest == 1


@pytest.mark.parametrize("which", [third, all_but_the_first, lambda arrived, first: True])
async def test_C30_rows_that_are_refused_once_are_asked_again(misbehaving: Server, song_text: str, which: Any) -> None:
    heard = await hear(settings(misbehaving(RefusedRows(which, times=1)).url))
    heard.faithful(song_text)
    assert heard.error is None
    assert len(heard.statuses) == 1


@pytest.mark.parametrize("which", [third, all_but_the_first])
@pytest.mark.parametrize(
    "answer",
    [
        BUSY,
        whole({"response": " The", "done": False}),
        Answer([b'{"response": " Th']),
        Answer([b'{"response": " Th'], breaks=True),
        Answer([b"<html>bad gateway</html>"], 502, "text/html"),
        Answer([]),
    ],
    ids=["busy", "not done", "cut in a string", "reset", "a page", "empty"],
)
async def test_C30_rows_that_fail_twice_end_speculation_and_no_error_is_seen(
    misbehaving: Server, song_text: str, which: Any, answer: Answer
) -> None:
    server = misbehaving(RefusedRows(which, answer=answer))
    heard = await hear(settings(server.url))
    heard.faithful(song_text)
    assert heard.error is None
    assert heard.ended_plain.startswith("a row failed twice: ")
    rows = [call.body["prompt"] for call in server.calls if call.is_row]
    assert max(rows.count(prompt) for prompt in rows) == 2, "each row is asked twice at most"


async def test_an_extension_that_is_refused_once_is_asked_again(misbehaving: Server, song_text: str) -> None:
    heard = await hear(settings(misbehaving(Busy(extends, times=1)).url))
    heard.faithful(song_text)
    assert heard.error is None
    assert heard.stats.extensions > 0


# The target is lost


FAILURES: dict[str, tuple[Manners, type[EndpointError], str]] = {
    "busy rows": (Busy(targets), Refused, "server busy"),
    "busy later": (Busy(after(20, targets)), Refused, "server busy"),
    "busy extensions": (Busy(extends), Refused, "server busy"),
    "hanging": (Hanging(after(20, targets)), Unreachable, "gave no byte in time"),
    "not done": (Changed(broken_off, after(20, targets)), BrokenReply, "done: false"),
    "cut in a string": (Cut(after(20, targets), 25, "end"), BrokenReply, "isn't what Ollama sends"),
    "reset": (Cut(after(20, targets), 25), BrokenReply, "the connection broke"),
    "stalled": (Cut(after(20, targets), 25, "stall"), Unreachable, "gave no byte in time"),
    "empty": (Cut(after(20, targets), 0, "end"), BrokenReply, "isn't what Ollama sends: ''"),
    "an error in a reply": (Changed(lambda line: {"error": "no"}, after(20, targets)), EndpointError, ""),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_target_that_is_lost_ends_the_reply_with_one_error(
    misbehaving: Server, song_text: str, failure: str
) -> None:
    manners, kind, said = FAILURES[failure]
    server = misbehaving(manners)
    heard = await hear(settings(server.url, idle_timeout=0.5))
    heard.faithful(song_text)
    assert isinstance(heard.error, kind)
    assert said in str(heard.error)
    assert server.url in str(heard.error)
    if "rows" not in failure:
        assert heard.text, "what was valid stands"


STREAM_FAILURES: dict[str, tuple[Manners, type[EndpointError], str]] = {
    "no last line": (
        Changed(lambda line: None if line.get("done") else line, streamed),
        BrokenReply,
        "no done: true",
    ),
    "an error line": (Lines(streamed, 9, {"error": "the runner has stopped"}), Refused, "the runner has stopped"),
    "cut in a string": (Cut(streamed, 1300, "end"), BrokenReply, "isn't what Ollama sends"),
    "reset": (Cut(streamed, 1300), BrokenReply, "the connection broke"),
    "stalled": (Cut(streamed, 1300, "stall"), Unreachable, "gave no byte in time"),
    "empty": (Cut(streamed, 0, "end"), BrokenReply, "no done: true"),
    "busy": (Busy(streamed), Refused, "server busy"),
    "hanging": (Hanging(streamed), Unreachable, "gave no byte in time"),
}


@pytest.mark.parametrize("route", [Route.PLAIN, Route.GREEDY, Route.LANES])
@pytest.mark.parametrize("failure", STREAM_FAILURES)
async def test_a_stream_that_does_not_end_well_is_an_error_and_never_an_end(
    misbehaving: Server, song_text: str, failure: str, route: Route
) -> None:
    """By lanes it is the stream of the rest, after a draft that failed."""
    manners, kind, said = STREAM_FAILURES[failure]

    class Both(Manners):
        """The draft fails in the third round."""

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name) if name == "instead" else getattr(manners, name)

        def instead(self, call: Call) -> Answer | None:
            busy = call.drafts and server.drafts > 2 and route is Route.LANES
            return BUSY if busy else manners.instead(call)

    server = misbehaving(Both())
    heard = await hear(settings(server.url, idle_timeout=0.5, route=route))
    heard.faithful(song_text)
    assert isinstance(heard.error, kind)
    assert said in str(heard.error)
    if failure not in ("empty", "busy", "hanging") or route is Route.LANES:
        assert heard.text, "what was valid stands"


@pytest.mark.parametrize("path", ["/api/version", "/api/show", "/api/tags", "/api/chat"])
@pytest.mark.parametrize("hanging", [True, False])
async def test_a_target_that_can_not_be_looked_at_is_an_error_before_any_text(
    misbehaving: Server, path: str, hanging: bool
) -> None:
    def there(call: Call) -> bool:
        return call.path == path

    server = misbehaving(Hanging(there) if hanging else Busy(there))
    heard = await hear(settings(server.url, idle_timeout=0.5))
    assert isinstance(heard.error, EndpointError)
    assert "\n" not in str(heard.error)
    assert heard.text == ""
    assert heard.statuses == [] or path == "/api/chat"


# Told in passing


EVICT = "draft and target evict each other on {url}: its memory doesn't hold both"
OTHERS = "{model} was loaded anew on {url}: another client uses it with other options"


@pytest.mark.parametrize("slow", ["draft", "target"])
@pytest.mark.parametrize(
    ("loaded", "said"), [(["target"], EVICT), (["draft"], EVICT), ([], EVICT), (["target", "draft"], OTHERS)]
)
async def test_models_that_are_loaded_for_each_call_end_speculation(
    misbehaving: Server, scripted: ScriptedOllama, song_text: str, loaded: list[str], said: str, slow: str
) -> None:
    scripted.loaded = loaded
    server = misbehaving(Changed(loaded_anew, lambda call: call.generates and call.model == slow))
    heard = await hear(settings(server.url))
    heard.faithful(song_text)
    assert heard.ended_plain == said.format(url=server.url, model=slow)
    assert heard.stats.rounds == 2


async def test_a_slow_load_on_another_server_is_not_taken_for_an_eviction(
    misbehaving: Server, scripted: ScriptedOllama, scripted_url: str, song_text: str
) -> None:
    scripted.loaded = []
    server = misbehaving(Changed(loaded_anew, only_draft))
    heard = await hear(settings(scripted_url, server.url))
    heard.faithful(song_text)
    assert heard.ended_plain == OTHERS.format(url=server.url, model="draft")


async def test_a_slow_load_for_all_rows_of_the_first_round_is_no_reload(misbehaving: Server, song_text: str) -> None:
    """They wait for it together."""
    rows: list[str] = []

    def loading(line: Body) -> Body:
        rows.append("")
        return loaded_anew(line) if len(rows) <= 5 else line

    heard = await hear(settings(misbehaving(Changed(loading, targets)).url))
    heard.faithful(song_text)
    assert len(heard.statuses) == 1


def rereading(line: Body) -> Body:
    return {**line, "prompt_eval_duration": 5_000_000_000} if line.get("done") else line


async def test_C28_slots_that_keep_nothing_end_speculation(
    misbehaving: Server, scripted: ScriptedOllama, song_text: str
) -> None:
    scripted.prompt_tokens = 1500
    heard = await hear(settings(misbehaving(Changed(rereading, targets)).url, lanes=1))
    heard.faithful(song_text)
    assert heard.ended_plain == "the server reads the whole prompt again and again: its slots don't keep it"


async def test_C28_each_slot_may_read_the_prompt_once(
    misbehaving: Server, scripted: ScriptedOllama, song_text: str
) -> None:
    scripted.prompt_tokens, read = 1500, []

    def some(line: Body) -> Body:
        read.append("")
        return rereading(line) if len(read) <= 8 else line

    heard = await hear(settings(misbehaving(Changed(some, targets)).url, lanes=8))
    heard.faithful(song_text)
    assert len(heard.statuses) == 1


async def test_C28_slots_that_hold_the_prompt_from_the_beginning_are_not_suspected(
    misbehaving: Server, scripted: ScriptedOllama, song_text: str
) -> None:
    """A second reply to the same prompt: every row is cheap, and none much cheaper than the first."""
    scripted.prompt_tokens = 1500
    heard = await hear(settings(misbehaving().url, lanes=1))
    heard.faithful(song_text)
    assert len(heard.statuses) == 1


# Versions and engines


@pytest.mark.parametrize("version", ["0.9.6", "0.11.4"])
async def test_a_version_that_would_answer_in_the_place_of_rendering_is_not_asked_to(
    misbehaving: Server, song_text: str, version: str
) -> None:
    server = misbehaving(OldVersion(version))
    heard = await hear(settings(server.url))
    heard.faithful(song_text)
    assert heard.plain == "the target's server can't render a chat without answering it (Ollama before 0.11.5)"
    assert not [call for call in server.calls if call.renders]
    assert len([call for call in server.calls if call.generates]) == 1


@pytest.mark.parametrize("version", ["0.11.10", "0.12.10"])
async def test_a_version_without_log_probabilities_is_speculated_where_that_is_asked_for(
    misbehaving: Server, song_text: str, version: str
) -> None:
    heard = await hear(settings(misbehaving(OldVersion(version)).url))
    heard.faithful(song_text)
    assert heard.error is None
    assert heard.stats.rounds > 0


async def test_a_version_without_log_probabilities_is_told_as_such(misbehaving: Server, song_text: str) -> None:
    heard = await hear(settings(misbehaving(OldVersion("0.12.10")).url, route=Route.AUTO))
    heard.faithful(song_text)
    assert "log-probabilities" in heard.plain
    assert "Ollama before 0.12.11" in heard.plain


@pytest.mark.parametrize("version", ["0.12.11", "0.15.4"])
async def test_a_go_runner_gives_the_same_text(misbehaving: Server, song_text: str, version: str) -> None:
    server = misbehaving(GoRunner(version))
    heard = await hear(settings(server.url))
    heard.faithful(song_text)
    assert heard.error is None
    assert heard.stats.accepted > 0
    assert {call.options["num_predict"] for call in server.calls if call.is_row} == {2}


@pytest.mark.parametrize("route", [Route.PLAIN, Route.GREEDY])
async def test_a_go_runner_streams_several_tokens_in_a_chunk(misbehaving: Server, song_text: str, route: Route) -> None:
    heard = await hear(settings(misbehaving(GoRunner()).url, route=route))
    heard.faithful(song_text)
    assert heard.error is None


async def test_a_go_runner_that_prints_control_tokens_gives_the_same_text(
    misbehaving: Server, scripted: ScriptedOllama
) -> None:
    """The text holds them then, and so it is sent again."""
    marked = "".join(piece.text for piece in scripted.models["target"].reply).replace(" tide goes", "<|mark|> goes")
    pieces = [type(scripted.models["target"].reply[0])(text) for text in marked.split("|")]
    scripted.models = {**scripted.models, "target": ScriptedModel(pieces)}
    heard = await hear(settings(misbehaving(GoRunner()).url))
    heard.faithful(marked.replace("|", ""))


# Rows that tell less or other than the truth


async def test_rows_without_log_probabilities_give_the_same_text(misbehaving: Server, song_text: str) -> None:
    heard = await hear(settings(misbehaving(Changed(no_rows)).url))
    heard.faithful(song_text)
    assert heard.error is None


async def test_a_server_that_speculates_by_itself_is_left_alone(misbehaving: Server, song_text: str) -> None:
    heard = await hear(settings(misbehaving(Changed(no_rows)).url, route=Route.AUTO))
    heard.faithful(song_text)
    assert "log-probabilities" in heard.plain


COUNTS: dict[str, Callable[[int], int | None]] = {
    "one too many": lambda count: count + 1,
    "constant": lambda count: 7,
    "what is not cached": lambda count: 1 + count % 3,  # as Ollama 0.30.0 counts
    "growing": lambda count: 2 * count,
    "none": lambda count: None,
    "zero": lambda count: 0,
}


@pytest.mark.parametrize("wrong", COUNTS)
async def test_wrong_prompt_counts_give_the_same_text_without_a_vocabulary(
    misbehaving: Server, song_text: str, wrong: str
) -> None:
    def counted(line: Body) -> Body:
        count = line.get("prompt_eval_count")
        return line if count is None else {**line, "prompt_eval_count": COUNTS[wrong](count)}

    server = misbehaving(Changed(counted, targets))
    heard = await hear(settings(server.url))
    heard.faithful(song_text)
    assert heard.error is None
    wrote = sum(call.options["num_predict"] for call in server.calls if extends(call) and not call.streams)
    assert wrote < 200, "the same text isn't asked for again and again"


@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY])
async def test_C34_thinking_taken_out_of_raw_replies_leaves_the_model_to_its_chat(
    misbehaving: Server, song_text: str, route: Route
) -> None:
    server = misbehaving(Changed(thought, targets))
    heard = await hear(settings(server.url, route=route))
    heard.faithful(song_text)
    assert heard.error is None
    assert heard.plain == "the server takes thinking out of raw replies"


@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY])
async def test_a_start_that_came_to_nothing_is_the_same_draw_in_the_chat(misbehaving: Server, route: Route) -> None:
    server = misbehaving(Changed(thought, targets))
    await hear(settings(server.url, route=route, options={"temperature": 0.8}))
    raw = [call for call in server.calls if targets(call) and "prompt" in call.body]
    first = min(raw, key=lambda call: len(call.body["prompt"]))
    chat = server.calls[-1]
    assert chat.path == "/api/chat"
    assert chat.body["options"]["seed"] == first.options["seed"]


@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY])
async def test_C34_thinking_that_is_taken_out_in_mid_reply_is_never_left_out_in_silence(
    misbehaving: Server, song_text: str, route: Route
) -> None:
    lines = [0]

    def later(line: Body) -> Body:
        lines[0] += 1
        return thought(line) if lines[0] > 9 else line

    heard = await hear(settings(misbehaving(Changed(later, targets)).url, route=route))
    heard.faithful(song_text)
    assert isinstance(heard.error, BrokenReply)
    assert "thinking" in str(heard.error)
    assert heard.text


async def test_a_target_with_an_empty_reply_has_ended(misbehaving: Server, scripted: ScriptedOllama) -> None:
    scripted.models = {**scripted.models, "target": ScriptedModel(())}
    heard = await hear(settings(misbehaving().url))
    heard.faithful("")
    assert heard.reason is DoneReason.STOP


async def test_a_target_that_draws_nothing_in_raw_requests_is_left_to_its_chat(
    misbehaving: Server, song_text: str
) -> None:
    """Rounds without progress would go on for ever."""

    def nothing(line: Body) -> Body:
        return {**no_rows(line), "response": "", "done_reason": "length"}

    raw = Changed(nothing, lambda call: targets(call) and call.path == "/api/generate")
    heard = await hear(settings(misbehaving(raw).url))
    heard.faithful(song_text)
    assert heard.plain == "the text can't be sent again as it was sampled"


async def test_a_target_that_draws_nothing_any_more_ends_the_reply_with_an_error(
    misbehaving: Server, song_text: str
) -> None:
    lines = [0]

    def nothing(line: Body) -> Body:
        lines[0] += 1
        return {**no_rows(line), "response": "", "done_reason": "length"} if lines[0] > 9 else line

    heard = await hear(settings(misbehaving(Changed(nothing, targets)).url))
    assert song_text.startswith(heard.text)
    assert heard.reason is DoneReason.LENGTH or heard.error
