"""`specollama bench` over the real pair, and over servers whose replies are no replies."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from specollama.server.embedded.default_models import default_models
from specollama.server.embedded.serve import RunningServer
from tests.support.calls import Call, own_config
from tests.support.serving import Answer, Replayed, lines, replayed, serving, whole

QUESTIONS = ["Name the planets.", "Count to twenty."]


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """Two prompts of two kinds."""
    file = tmp_path / "two.jsonl"
    kinds = ("facts", "translation")
    bodies = [{"category": kind, "turns": [said]} for kind, said in zip(kinds, QUESTIONS, strict=True)]
    file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return file


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept of earlier runs of the user's."""
    for folder in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(folder, str(tmp_path / folder))


def file_pair() -> list[str]:
    models = default_models()
    return ["bench", "--target", str(models["target"]), "--draft", str(models["draft"]), "--routes", "local"]


def results(folder: Path) -> dict[str, Any]:
    [file] = folder.glob("*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_the_real_pair_is_measured_on_its_routes(call: Call, embedded_url: str, asked: Path) -> None:
    shown = call(
        *("bench", "--target", f"target@{embedded_url}", "--draft", f"draft@{embedded_url}"),
        *("--routes", "plain,greedy,lanes", "--prompts", str(asked), "--num-predict", "8"),
        *("--repeat", "2", "--lookahead", "3", "--out", "out"),
    )
    assert shown.code == 0, shown.err
    found = results(Path("out"))

    assert found["complete"] is True
    assert list(found["summary"]) == ["greedy", "lanes"]
    for route, summary in found["summary"].items():
        assert summary["identical_share"] == 1
        assert summary["errors"] == {}
        assert summary["routes"] == {route: 4}
        assert list(summary["speedup_by_kind"]) == ["facts", "translation"]
        assert summary["speedup_min"] == min(summary["speedup_by_kind"].values())
        assert 0 < summary["speedup_min"] <= summary["speedup_geomean"]
        assert 0.3 < summary["acceptance_rate"] <= 1
        assert 1 <= summary["mean_accepted_length"] <= 4
        assert summary["speedup_interval"]["low"] <= summary["speedup_interval"]["high"]
        [first, _] = found["results"][route]["prompts"]
        assert (first["id"], first["interval"], first["seen_before"]["replies"]) == ("1", None, 1), "one first reply"
        assert first["speedup_overall"] is None, "plain had put the prompt into the engine's cache"
        assert summary["seen_before"]["replies"] == 2
    assert found["summary"]["lanes"]["near_tie"]["observations"] > 0

    measurements = found["measurements"]
    turn = ["plain", "greedy", "lanes"]
    assert [each["side"] for each in measurements] == turn * 4
    assert [(each["prompt"], each["repeat"]) for each in measurements[::3]] == [("1", 0), ("1", 1), ("2", 0), ("2", 1)]
    assert all(each["text"] and each["stats"]["eval_count"] == 8 for each in measurements)
    assert found["models"]["target"]["digest"]
    assert found["models"]["draft"]["digest"]
    assert list(found["servers"]) == [embedded_url]
    assert found["machine"]["cores"] >= 1
    assert found["options"]["sampling"] == {"temperature": 0, "num_predict": 8}

    for heading in ("greedy beside plain", "lanes beside plain", "facts", "translation", "identical", "slowest: "):
        assert heading in shown.out
    assert "\x1b" not in shown.out + shown.err
    assert max(len(line) for line in shown.out.splitlines() if "tok/s" in line) <= 80
    assert shown.err.startswith("1/2 1\n2/2 2\n")


@pytest.mark.usefixtures("own_folders")
def test_a_target_that_is_a_file_is_measured_without_any_server(call: Call, asked: Path, tmp_path: Path) -> None:
    models = default_models()
    shown = call(*file_pair(), "--prompts", str(asked), "--limit", "1", "--num-predict", "6", "--repeat", "2")

    assert shown.code == 0, shown.err
    found = results(Path("specollama-bench"))
    assert found["summary"]["local"]["routes"] == {"local": 2}
    assert found["summary"]["local"]["identical_share"] == 1
    measurements = found["measurements"]
    assert [(each["side"], each["repeat"]) for each in measurements] == [
        *(("plain", 0), ("local", 0), ("plain", 1), ("local", 1))
    ]
    [read] = {each["stats"]["prompt_read"] for each in measurements}  # by each reply of each side, as by the first
    [prompt] = {each["stats"]["prompt_eval_count"] for each in measurements}
    assert len(QUESTIONS[0].split()) < read < prompt, "all but the template's head, which the warming token needs, too"
    assert not any(each["seen_before"] or each["prompt_cached"] for each in measurements)
    assert found["summary"]["local"]["seen_before"] is None
    assert found["sides"]["local"] == {"engine": "", "remembers": False}
    assert not list((tmp_path / "XDG_STATE_HOME").rglob("*.json")), "the user's own calibrations stay out of it"
    assert found["models"]["target"]["digest"] == hashlib.sha256(models["target"].read_bytes()).hexdigest()
    assert found["models"]["draft"]["path"] == str(models["draft"])
    assert found["servers"] == {}


@pytest.mark.usefixtures("own_folders")
def test_sampled_texts_of_one_seed_are_compared_on_route_local(call: Call, asked: Path) -> None:
    sampling = ("--temperature", "0.8", "--seed", "3")
    shown = call(
        *file_pair(), "--prompts", str(asked), "--limit", "1", "--num-predict", "12", "--repeat", "1", *sampling
    )

    assert shown.code == 0, shown.err
    assert "local beside plain at temperature 0.8, first replies" in shown.out
    found = results(Path("specollama-bench"))
    assert found["options"]["sampling"] == {"temperature": 0.8, "seed": 3, "num_predict": 12}
    assert len({each["text"] for each in found["measurements"]}) == 1
    assert found["summary"]["local"]["identical_share"] == 1


def test_the_picture_is_drawn_beside_the_results(call: Call, embedded_url: str, asked: Path) -> None:
    pytest.importorskip("matplotlib")
    shown = call(*against(embedded_url, embedded_url), "--prompts", str(asked), "--limit", "1")

    [picture] = Path("specollama-bench").glob("*.png")
    assert shown.code == 0, shown.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}\n" in shown.err


def test_without_matplotlib_one_line_says_what_to_install_and_the_rest_works(
    call: Call, embedded_url: str, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = call(*against(embedded_url, embedded_url), "--prompts", str(asked), "--limit", "1")

    assert shown.code == 0, shown.err
    assert "no picture: matplotlib isn't installed; run pip install 'specollama[bench]'\n" in shown.err
    assert results(Path("specollama-bench"))["complete"] is True
    assert not list(Path("specollama-bench").glob("*.png"))


def test_every_turn_is_measured_after_plains_answers(call: Call, embedded_url: str, tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text(json.dumps({"question_id": "q", "turns": ["Say hello.", "Again, in French.", "Enough."]}))
    shown = call(*against(embedded_url, embedded_url), "--prompts", str(file), "--turns", "2")

    assert shown.code == 0, shown.err
    measurements = results(Path("specollama-bench"))["measurements"]
    assert [(each["prompt"], each["side"]) for each in measurements] == [
        *(("q.1", "plain"), ("q.1", "against"), ("q.2", "plain"), ("q.2", "against"))
    ]
    counts = [each["stats"]["prompt_eval_count"] for each in measurements]
    assert counts[0] == counts[1] < counts[2] == counts[3]


def test_a_llama_server_is_another_side_with_the_engines_own_words(
    call: Call, embedded: RunningServer, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = embedded.engines["target"]
    monkeypatch.setenv("NATIVE_KEY", engine.headers["Authorization"].removeprefix("Bearer "))
    own_config(f'[endpoints.native]\nurl = "{engine.url}"\ntoken_env = "NATIVE_KEY"\n')
    shown = call(*against(embedded.url, "native", limit=2), "--prompts", str(asked))

    assert shown.code == 0, shown.err
    found = results(Path("specollama-bench"))
    assert list(found["summary"]) == ["against"]
    assert found["summary"]["against"]["identical_share"] == 1
    assert found["summary"]["against"]["routes"] == {"without telling of drafts": 2}
    assert found["servers"][engine.url].startswith("llama-server")


def test_a_llama_servers_drafts_are_counted_as_it_tells_them(call: Call) -> None:
    timings = {"prompt_n": 2, "predicted_n": 3, "draft_n": 4, "draft_n_accepted": 2}
    events = [{"content": word} for word in ("one", " two", " three")]
    last = {"content": "", "stop": True, "stop_type": "limit", "timings": timings}
    stream = Answer([f"data: {json.dumps(event)}\n\n".encode() for event in (*events, last)])
    native = Replayed(
        {
            "/props": [whole({"default_generation_settings": {}, "build_info": "b10500"})],
            "/apply-template": [whole({"prompt": "<user>Why?"})],
            "/completion": [stream],
        }
    )
    with serving(ollama("one", " two", " three")) as plain, serving(native) as url:
        shown = call(*against(plain, url))

    found = results(Path("specollama-bench"))
    summary = found["summary"]["against"]
    assert shown.code == 0, shown.err
    assert (summary["draft_efficiency"], summary["acceptance_rate"]) == (0.5, None)
    assert summary["routes"] == {"with its engine's own drafts": 1}
    assert found["servers"][url] == "llama-server b10500"
    assert "accepted: of the drafted tokens" in shown.out
    sent = [body for body in native.bodies if "n_predict" in body]
    asked = [(body["prompt"], body["n_predict"], body["temperature"]) for body in sent]
    assert asked == [("<user>Why?", 1, 0), ("<user>Why?", 1, 0), ("<user>Why?", 3, 0)]  # loading, warming up, the first


def test_repeats_to_an_engine_that_is_not_started_afresh_are_figures_of_their_own(call: Call) -> None:
    with serving(ollama("one", " two", " three")) as plain, serving(ollama("one", " two", " three")) as other:
        shown = call(*against(plain, other), "--repeat", "3")

    found = results(Path("specollama-bench"))
    assert shown.code == 0, shown.err
    assert [each["seen_before"] for each in found["measurements"] if each["side"] == "against"] == [False, True, True]
    assert found["sides"]["against"] == {"engine": other, "remembers": True}
    seen = found["summary"]["against"]["seen_before"]
    assert seen["replies"] == 2
    assert min(seen["speedup"], seen["speedup_overall"]) > 0
    assert found["results"]["against"]["prompts"][0]["interval"] is None, "one first reply"
    assert "seen before: 2 replies of an engine that isn't started afresh" in shown.out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "against: the reply is empty"),
        (["one"], "against: the reply was cut at 1 tokens, where plain gave 3"),
    ],
)
def test_an_empty_or_shortened_reply_is_an_error_and_never_a_factor(call: Call, words: list[str], error: str) -> None:
    with serving(ollama("one", " two", " three")) as plain, serving(ollama(*words)) as other:
        shown = call(*against(plain, other))

    summary = results(Path("specollama-bench"))["summary"]["against"]
    assert shown.code == 1
    assert (summary["speedup_geomean"], summary["errors"]) == (None, {"code-1": error})
    assert f"no factor for code-1: {error}" in shown.out
    assert not re.search(r"\d+\.\d+x", shown.out)
    assert shown.err.endswith("error: prompts without a usable reply, and so without a factor (against: 1 of 1)\n")


def test_a_reply_that_breaks_off_spoils_its_own_prompt_only(call: Call) -> None:
    good = chat("one", " two", " three")
    broken = Answer(good.chunks[:1], kind=good.kind)
    other = ollama()
    other.answers["/api/chat"] = [good, good, broken, good]  # loading, warming up, the first reply, all others
    with serving(ollama("one", " two", " three")) as plain, serving(other) as url:
        shown = call(*against(plain, url, limit=2))

    summary = results(Path("specollama-bench"))["summary"]["against"]
    assert shown.code == 1
    assert list(summary["errors"]) == ["code-1"]
    assert "the reply ended before its last line" in summary["errors"]["code-1"]
    assert list(summary["speedup_by_kind"]) == ["code", "edit"]
    assert summary["speedup_by_kind"]["code"] is None
    assert summary["speedup_by_kind"]["edit"] > 0


def test_plain_without_an_answer_spoils_its_own_prompt_only(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text('{"turns": ["a", "b"]}\n{"turns": ["c"]}\n')
    good, refused = chat("one", " two", " three"), whole({"error": "too long"}, 400)
    plain = ollama()
    plain.answers["/api/chat"] = [good, good, refused, good]  # loading, warming up, the first reply, all others
    with serving(plain) as first, serving(ollama("one", " two", " three")) as second:
        shown = call(*against(first, second, limit=2), "--prompts", str(file), "--turns", "2")

    found = results(Path("specollama-bench"))
    summary = found["summary"]["against"]
    assert (shown.code, found["complete"]) == (1, True)
    unasked = "not asked: plain has no answer to 1.1"
    assert list(summary["errors"]) == ["1.1", "1.2"]
    assert "too long" in summary["errors"]["1.1"]
    assert summary["errors"]["1.1"].endswith(f"; against: {unasked}")
    assert summary["errors"]["1.2"] == f"plain: {unasked}; against: {unasked}"
    assert found["results"]["against"]["prompts"][-1]["speedup"] > 0


def test_what_was_measured_is_kept_when_a_server_goes_away(call: Call) -> None:
    good, gone = chat("one", " two"), whole({"error": "model 'target' not found"}, 404)
    other = ollama()
    other.answers["/api/chat"] = [good, good, good, gone]  # loading, warming up, a reply, warming up
    with serving(ollama("one", " two")) as plain, serving(other) as url:
        shown = call(*against(plain, url, limit=2))

    found = results(Path("specollama-bench"))
    assert shown.code == 1
    assert "not complete; what was measured is in specollama-bench/" in shown.err
    assert found["complete"] is False
    assert [(each["prompt"], each["side"]) for each in found["measurements"]] == [
        *(("code-1", "plain"), ("code-1", "against"), ("edit-1", "plain"))
    ]
    assert list(found["summary"]["against"]["speedup_by_kind"]) == ["code", "edit"]
    assert found["summary"]["against"]["errors"] == {"edit-1": "not measured"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "x", "--routes", "plian"], "--routes: there is no route 'plian', did you mean plain?"),
        (["--target", "x", "--routes", " , "], "--routes: names no route"),
        (["--target", "x", "--routes", "plain"], "--routes plain: nothing to compare it with"),
        (["--target", "x", "--draft", "y", "--prompts", "none.jsonl"], "--prompts none.jsonl: No such file"),
        (["--target", "x", "--draft", "y", "--against", "ftp://z"], "the scheme must be http or https"),
        (["--target", "x", "--draft", "y", "--temperature", "0.8"], "texts can be compared on route local alone"),
        ([], "no pair is given"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(call: Call, arguments: list[str], says: str) -> None:
    shown = call("bench", *arguments)

    assert (shown.code, shown.out) == (2, "")
    assert says in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not Path("specollama-bench").exists()


def test_two_questions_of_one_name_are_refused(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text('{"question_id": "1.2", "turns": ["a"]}\n{"question_id": 1, "turns": ["a", "b"]}\n')
    arguments = ["bench", "--target", "x@127.0.0.1:9", "--draft", "y@127.0.0.1:9", "--prompts", str(file)]

    shown = call(*arguments, "--turns", "2")
    assert (shown.code, shown.err) == (2, "error: --turns 2: a prompt and a turn of another are both called 1.2\n")
    assert "can't reach" in call(*arguments).err


def test_an_engine_that_is_not_there_or_is_neither_is_told_before_anything_is_measured(
    call: Call, embedded_url: str
) -> None:
    with serving(ollama("one")) as plain, serving(Replayed({})) as other:
        nobody, neither = call(*against(plain, "127.0.0.1:1")), call(*against(plain, other))
        missing = call(*against(plain, f"nothing@{embedded_url}"))

    assert (nobody.code, neither.code, missing.code) == (1, 1, 1)
    assert "can't reach http://127.0.0.1:1 (from --against): Connection refused; is a server running" in nobody.err
    assert f"error: {other} is neither an Ollama (/api/version) nor a llama-server (/props)" in neither.err
    assert f"error: {embedded_url} has no model 'nothing'" in missing.err
    assert not Path("specollama-bench").exists()


def against(plain: str, other: str, limit: int = 1) -> list[str]:
    """The target alone beside another engine: no draft model takes part."""
    return [
        *("bench", "--target", f"target@{plain}", "--routes", "plain", "--against", other),
        *("--limit", str(limit), "--num-predict", "3", "--repeat", "1"),
    ]


def ollama(*words: str) -> Replayed:
    """An Ollama whose model `target` answers with these words, whatever is asked."""
    return replayed(
        version=whole({"version": "0.33.0"}),
        tags=whole({"models": [{"name": "target:latest", "digest": "ab" * 32}]}),
        show=whole({"details": {"format": "gguf"}, "model_info": {}, "capabilities": ["completion"]}),
        chat=chat(*words),
    )


def chat(*words: str) -> Answer:
    said = [{"message": {"role": "assistant", "content": word}, "done": False} for word in words]
    last = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "length"}
    return lines(*said, {**last, "prompt_eval_count": 2, "eval_count": len(words)})
