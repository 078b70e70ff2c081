"""Traces: what they hold, what they don't, and the page that shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from specollama.cli import app
from specollama.config.loading import Config, adhoc_pair
from specollama.config.settings import PairSettings
from specollama.errors import SpecollamaError
from specollama.pairs.trace.recorder import TraceFile, TraceRecorder, trace_text
from specollama.pairs.trace.records import RoundLine, TracedReply, group_replies, read_trace
from specollama.server.proxy.serve import serve_in_thread
from specollama.spec_decode.events import Done, Status, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Draft, Origin, OutputToken, RoundRecord, Token, VerifyResult
from specollama.tools.trace_page.page import page, rate_of, round_blocks
from tests.support.scripted_ollama import ScriptedOllama

Call = Callable[..., Any]
HOSTILE = """</script><img src=x onerror="alert(1)">{{data}} & 'more'"""


@pytest.fixture
def call(places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    for name, place in places.items():
        monkeypatch.setenv(name, place)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


def flags(url: str, route: str = "lanes") -> list[str]:
    return ["--target", f"target@{url}", "--draft", f"draft@{url}", "--route", route, "--temperature", "0"]


def recorded(*, texts: bool = True, text: str = " two", ended: bool = True) -> TracedReply:
    """A reply of one round, by a clock that goes by microseconds."""
    ticks = iter(range(0, 10**9, 10**6))
    settings: PairSettings = adhoc_pair("t", "d", Config(), {})
    recorder = TraceRecorder(settings, texts=texts, clock=lambda: next(ticks))
    recorder.event(Status(on=True, detail="lanes"))
    verdict = VerifyResult((OutputToken(Token("One"), Origin.ACCEPTED),), drafted=1, tested=1, accepted=1)
    recorder.round(RoundRecord(Draft((Token("One"), Token(" x")), confidence=(0.9, 0.2)), verdict, 0.0004, 0.0005))
    top = (Token(text, -0.5), Token(" three", -1.25))
    recorder.event(Text("One", Origin.ACCEPTED, 1, -0.1, (), confidence=0.9))
    recorder.event(Text(text, Origin.BONUS, 1, -0.5, top))
    if ended:
        recorder.event(Done(DoneReason.STOP, Stats(eval_count=2, tested=1, accepted=1)))
    recorder.fail("the server went away")
    [reply] = group_replies(recorder.lines)
    return reply


def test_a_trace_holds_each_round_and_each_token_and_no_text(call: Call, letter_url: str, tmp_path: Path) -> None:
    said = call("run", *flags(letter_url), "--trace", "t.jsonl", "--json", "Secret question")
    file = tmp_path / "t.jsonl"
    [reply] = read_trace(file)
    events = [json.loads(line) for line in said.stdout.splitlines()]
    shown = [event for event in events if event["event"] == "text"]
    assert [(t.origin, t.round, t.length) for t in reply.tokens] == [
        (e["origin"], e["round"], len(e["text"])) for e in shown
    ]
    assert reply.end is not None
    assert reply.end.stats["accepted"] == sum(line.accepted for line in reply.rounds) > 0
    assert all(token.logprob == -0.1 and len(token.top) == 2 for token in reply.tokens)
    assert [line.at for line in reply.rounds] == sorted(line.at for line in reply.rounds)
    assert not re.search("Secret|question|short|function|Read|else", file.read_text())
    assert file.stat().st_mode & 0o077 == 0


def test_texts_are_kept_when_asked_for_and_replies_are_added(call: Call, letter_url: str, tmp_path: Path) -> None:
    said = [
        call("run", *flags(letter_url, route), "--trace", "t.jsonl", "--trace-texts", "Write.").stdout
        for route in ("lanes", "plain")
    ]
    replies = read_trace(tmp_path / "t.jsonl")
    assert [
        "".join(token.text or "" for token in reply.tokens if not token.thinking) + "\n" for reply in replies
    ] == said
    assert [reply.statuses[0].speculation for reply in replies] == [True, False]
    assert replies[1].tokens[-1].top[1].text == " else", "a traced plain reply asks for its alternatives"


def test_a_text_with_line_ends_of_any_kind_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = TraceFile(tmp_path / "t.jsonl", texts=True)
    recorder = trace.recorder(adhoc_pair("t", "d", Config(), {}))
    odd = "a\nb\rc\x0bd\x85e\u2028f"
    recorder.event(Text(odd, Origin.PLAIN))
    trace.add(recorder)
    [reply] = read_trace(tmp_path / "t.jsonl")
    assert [token.text for token in reply.tokens] == [odd]


def test_a_torn_line_costs_its_own_reply_only_and_no_later_one(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"

    def add(label: str, text: str) -> None:
        trace = TraceFile(file, texts=True)
        recorder = trace.recorder(adhoc_pair("t", "d", Config(), {}), label)
        for _ in range(2):
            recorder.event(Text(text, Origin.PLAIN))
        trace.add(recorder)

    add("whole", "a")
    add("torn", "é")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:6]) + lines[6].partition("é".encode())[0] + b"\xc3")
    add("after", "b")
    told: list[str] = []
    whole, torn, after = read_trace(file, told.append)
    assert [len(reply.tokens) for reply in (whole, torn, after)] == [2, 1, 2]
    assert (torn.end, after.head.label) == (None, "after")
    assert "the trace ends before the reply" in page(torn)
    [fault] = told
    assert fault.startswith(f"{file}, line 7: not a line of a trace: ")
    assert fault.endswith("; left out, up to the next reply")
    shown = call("trace", "t.jsonl")
    assert (shown.stdout, shown.stderr.count("t.jsonl, line 7")) == ("t.html\n", 1)


def test_a_reply_that_is_glued_to_a_torn_line_is_left_out_with_all_its_lines(tmp_path: Path) -> None:
    recorder = TraceRecorder(adhoc_pair("t", "d", Config(), {}), texts=False)
    recorder.fail()
    file, good = tmp_path / "t.jsonl", trace_text(recorder)
    file.write_text(good.splitlines()[0] + '\n{"type": "tok' + good + good)
    torn, last = read_trace(file)
    assert torn.end is None
    assert last.end is not None


def test_a_reply_that_breaks_off_is_traced_as_far_as_it_came() -> None:
    reply = recorded(ended=False)
    assert reply.end is not None
    assert (reply.end.reason, reply.end.fault, len(reply.tokens)) == (None, "the server went away", 2)
    assert "broke off: the server went away" in page(reply)


def test_what_was_served_and_what_was_measured_is_traced(
    call: Call, letter: ScriptedOllama, letter_url: str, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(
        f'[endpoints.here]\nurl = "{letter_url}"\n[pairs.song]\nroute = "lanes"\n'
        'target = { model = "target", endpoint = "here" }\ndraft = { model = "draft", endpoint = "here" }\n'
        "[pairs.song.options]\ntemperature = 0\n"
    )
    trace = TraceFile(tmp_path / "served.jsonl", texts=True)
    with (
        serve_in_thread(tmp_path / "c.toml", {}, trace=trace) as (url, _),
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        for asked in ({}, {"format": "json"}):
            body = {"model": "song", "messages": [{"role": "user", "content": "Write."}], "stream": False, **asked}
            assert http.post("/api/chat", json=body).status_code == 200
    spoken, plain = read_trace(tmp_path / "served.jsonl")
    assert spoken.rounds
    assert [line.origin for line in plain.tokens if not line.thinking][:1] == ["plain"]
    text = "".join(token.text or "" for token in spoken.tokens)
    assert text == "".join(token.text or "" for token in plain.tokens if not token.thinking) != ""

    arguments = ("--config", "c.toml", "--routes", "plain,lanes", "--limit", "1", "--repeat", "1", "--trace", "b.jsonl")
    call("bench", "song", *arguments)
    labels = [reply.head.label.partition(": ")[2] for reply in read_trace(tmp_path / "b.jsonl")]
    steps = ["plain", "lanes", "plain, 1 of 1", "lanes, 1 of 1", "plain's most probable tokens"]
    assert list(dict.fromkeys(labels)) == steps  # each timed reply comes after a warm-up of one token


# the page


class Seen(HTMLParser):
    """What a browser would make of a page: tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[-1] += data
        else:
            self.words += data


def test_nothing_that_a_model_writes_is_markup_or_script() -> None:
    seen = Seen(page(recorded(text=HOSTILE)))
    assert [tag for tag, _ in seen.tags].count("img") == 0
    data, script = seen.scripts
    assert json.loads(data)["tokens"][1]["text"] == HOSTILE
    assert "alert(1)" not in script
    assert HOSTILE in seen.words


def test_the_page_needs_nothing_from_elsewhere_and_runs_no_script_but_its_own() -> None:
    text = page(recorded())
    seen = Seen(text)
    assert not [attrs for _, attrs in seen.tags if attrs.keys() & {"src", "href", "onclick", "style"}]
    assert not re.search(r"url\(|@import|https?://", text)
    [policy] = [attrs["content"] for tag, attrs in seen.tags if attrs.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_page_shows_each_token_each_round_and_the_totals() -> None:
    seen = Seen(page(recorded()))
    spans = [attrs for tag, attrs in seen.tags if tag == "span" and "data-i" in attrs]
    assert [attrs["class"] for attrs in spans] == ["accepted", "bonus"]
    assert sum(tag == "g" and attrs.get("class") == "round" for tag, attrs in seen.tags) == 1
    assert "1 of 1 (100%)" in seen.words
    assert "One two" in seen.words


def test_without_texts_the_page_shows_how_long_they_were() -> None:
    seen = Seen(page(recorded(texts=False)))
    assert "·······" in seen.words
    assert "One" not in seen.words


def test_rounds_lie_where_they_were_and_waiting_is_what_lies_between() -> None:
    lines = [RoundLine(at=100, round=1, drafting=30, scoring=20), RoundLine(at=180, round=2, drafting=40, scoring=10)]
    first, second = round_blocks(lines)
    assert (first.begin, first.drafting, first.scoring, first.end, first.waiting) == (50, 50, 80, 100, 0)
    assert (second.begin, second.drafting, second.scoring, second.end, second.waiting) == (100, 130, 170, 180, 30)
    assert round_blocks([]) == []


def test_the_rate_on_the_page_leaves_the_first_burst_out() -> None:
    reply = recorded()
    assert rate_of(reply) is None, "all of it was one burst"


# its command


def test_the_command_writes_the_page_of_the_reply_that_is_asked_for(call: Call, tmp_path: Path) -> None:
    trace = TraceFile(tmp_path / "t.jsonl", texts=True)
    for label in ("first", "second"):
        trace.add(trace.recorder(adhoc_pair("t", "d", Config(), {}), label))
    assert call("trace", "t.jsonl").stdout == "t.html\n"
    assert "second" in (tmp_path / "t.html").read_text()
    assert (tmp_path / "t.html").stat().st_mode & 0o077 == 0
    assert " first " in call("trace", "t.jsonl", "--reply", "1", "-o", "-").stdout


def test_the_schema_says_what_each_field_is(call: Call) -> None:
    schema = json.loads(call("trace", "--schema").stdout)
    assert schema["$defs"].keys() >= {"ReplyLine", "StatusLine", "RoundLine", "TokenLine", "EndLine"}
    assert schema["$defs"]["TokenLine"]["properties"]["logprob"]["description"] == "The target's own, of this token."


def test_a_page_that_is_there_is_written_over_only_where_that_is_forced(call: Call, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(trace_text(TraceRecorder(adhoc_pair("t", "d", Config(), {}), texts=False)))
    for arguments in (["t.jsonl"], ["t.jsonl", "-o", "t.html"]):
        (tmp_path / "t.html").write_text("mine")
        fault = call("trace", *arguments).exception
        assert str(fault) == "t.html: exists; name another file, or --force writes over it"
        assert (tmp_path / "t.html").read_text() == "mine"
        assert call("trace", *arguments, "--force").stdout == "t.html\n"
        assert (tmp_path / "t.html").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give either a FILE that --trace wrote, or --last"),
        (["--last"], "no reply of a chat was kept yet"),
        (["nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        (["odd.jsonl"], "odd.jsonl, line 2: not a line of a trace: "),
        (["image.jsonl"], "image.jsonl, line 1: not a line of a trace: "),
        (["empty.jsonl"], "empty.jsonl: there is no whole reply in it"),
        (["good.jsonl", "--reply", "3"], "--reply 3: good.jsonl has 1, numbered from 1"),
        (["good.jsonl", "-o", "/nowhere/p.html"], "/nowhere/p.html: No such file or directory"),
        (["good.jsonl", "-o", "./good.jsonl"], "good.jsonl: is the trace itself; name the page with -o PAGE.html"),
    ],
)
def test_what_can_not_be_shown_is_told_in_a_line(call: Call, tmp_path: Path, arguments: list[str], says: str) -> None:
    good = trace_text(TraceRecorder(adhoc_pair("t", "d", Config(), {}), texts=False))
    (tmp_path / "good.jsonl").write_text(good)
    (tmp_path / "odd.jsonl").write_text('\n{"type": "token", "at": "soon"}\n')
    (tmp_path / "image.jsonl").write_bytes(b"\x89PNG\r\n\xff")
    (tmp_path / "empty.jsonl").touch()
    fault = call("trace", *arguments).exception
    assert isinstance(fault, SpecollamaError)
    assert str(fault).startswith(says)
    assert "\n" not in str(fault)
    assert (tmp_path / "good.jsonl").read_text() == good


@pytest.mark.parametrize("arguments", [["--trace-texts"], ["--trace", "/nowhere/t.jsonl"]])
def test_a_trace_that_can_not_be_written_is_told_before_anything_is_asked(
    call: Call, letter: ScriptedOllama, letter_url: str, arguments: list[str]
) -> None:
    fault = call("run", *flags(letter_url), *arguments, "Write.").exception
    assert isinstance(fault, SpecollamaError)
    assert letter.calls == []
