"""The models the embedded server has, what it says of them, and how it is started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy
import pytest
from gguf.quants import dequantize, quantize
from typer.testing import CliRunner

from specollama.backends.llama_cpp.gguf_metadata import read_header, shortest_decimal
from specollama.cli.commands.embedded import app
from specollama.errors import MissingPackage, RunError, SpecollamaError, UsageError
from specollama.server.embedded.default_models import default_models, packaged_model, resolve
from specollama.server.embedded.dequantize import write_full_precision
from specollama.server.embedded.model_card import ModelCard, human_number, short_name
from specollama.server.embedded.requirements import require_packages
from specollama.server.embedded.response_translation import ChatSteps
from specollama.spec_decode.types import DoneReason


def test_the_server_says_what_it_is(http: httpx.Client) -> None:
    assert http.get("/api/version").json() == {"version": "0.33.0"}
    for method in ("GET", "HEAD"):
        assert http.request(method, "/").status_code == 200
    assert http.get("/").text == "Ollama is running"
    unknown, wrong_method = http.get("/api/nothing"), http.get("/api/chat")
    assert (unknown.status_code, unknown.text) == (404, "404 page not found")
    assert (wrong_method.status_code, wrong_method.text) == (405, "405 method not allowed")


def test_tags_list_the_default_pair(http: httpx.Client) -> None:
    models = {model["name"]: model for model in http.get("/api/tags").json()["models"]}
    assert set(models) == {"draft:latest", "target:latest"}
    for name, model in models.items():
        assert model["model"] == name
        assert set(model) == {"name", "model", "modified_at", "size", "digest", "details", "capabilities"}
        assert len(bytes.fromhex(model["digest"])) == 32
        assert model["capabilities"] == ["completion"]
    assert models["draft:latest"]["digest"] != models["target:latest"]["digest"]
    details = {"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"]}
    for name, level in (("draft:latest", "Q4_1"), ("target:latest", "F32")):
        expected = {**details, "parameter_size": "134.52M", "quantization_level": level}
        assert models[name]["details"] == expected


def test_ps_shows_both_as_loaded_with_the_context_of_a_slot(http: httpx.Client) -> None:
    running = http.get("/api/ps").json()["models"]
    assert [model["name"] for model in running] == ["draft:latest", "target:latest"]
    assert all(model["context_length"] == 1024 for model in running)
    assert all(model["expires_at"] > "2100" and model["size_vram"] == 0 for model in running)


def test_show_gives_the_metadata_with_arrays_only_when_verbose(http: httpx.Client) -> None:
    brief, verbose = (http.post("/api/show", json={"model": "target", "verbose": on}).json() for on in (False, True))
    assert brief["capabilities"] == ["completion"]
    assert "parameters" not in brief
    assert brief["template"].startswith("{% for message in messages %}")
    info = brief["model_info"]
    assert info["tokenizer.ggml.tokens"] is None
    assert info["llama.attention.layer_norm_rms_epsilon"] == 1e-05
    assert info["general.parameter_count"] == 134515008
    assert not {"general.name", "tokenizer.chat_template"} & set(info)

    arrays = {name: value for name, value in verbose["model_info"].items() if isinstance(value, list)}
    assert len(arrays["tokenizer.ggml.tokens"]) == len(arrays["tokenizer.ggml.token_type"]) == info["llama.vocab_size"]
    assert arrays["tokenizer.ggml.tokens"][1] == "<|im_start|>"
    assert len(arrays["tokenizer.ggml.merges"]) == 48900
    assert verbose["model_info"] == {**info, **arrays}


def test_both_of_the_pair_have_the_same_tokenizer(http: httpx.Client) -> None:
    draft, target = (
        http.post("/api/show", json={"model": name, "verbose": True}).json()["model_info"]
        for name in ("draft", "target")
    )
    assert {name for name in draft if draft[name] != target[name]} == {"general.file_type"}


def test_the_header_is_read_as_the_gguf_package_reads_it() -> None:
    header = read_header(packaged_model())
    reader = gguf.GGUFReader(packaged_model())
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert {**header.fields, **singles(expected)} == expected
    assert [(tensor.name, list(tensor.shape)) for tensor in header.tensors] == [
        (tensor.name, [int(size) for size in tensor.shape]) for tensor in reader.tensors
    ]


def singles(fields: dict[str, Any]) -> dict[str, Any]:
    """The floats, which the package gives as doubles with digits that the file doesn't have."""
    return {key: value for key, value in fields.items() if isinstance(value, float)}


def test_single_precision_numbers_are_written_with_the_fewest_digits() -> None:
    for value in (1e-05, 0.1, 100000.0, 3.4028235e38, 16777216.0, 0.0, -0.3):
        assert shortest_decimal(float(numpy.float32(value))) == value


def write_model(path: Path, **fields: str) -> numpy.ndarray[Any, Any]:
    """A GGUF file of two tensors, one quantised; returns that one's weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é"])
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    for name, value in fields.items():
        writer.add_string(name.replace("__", "."), value)
    weights = numpy.random.default_rng(1).standard_normal((4, 64), dtype="float32")
    packed = quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("plain", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dequantize(packed, gguf.GGMLQuantizationType.Q8_0)


def test_full_precision_keeps_weights_and_metadata(tmp_path: Path) -> None:
    weights = write_model(tmp_path / "model.Q8_0.gguf", general__name="Model")
    path = write_full_precision(tmp_path / "model.Q8_0.gguf", tmp_path / "cache")
    before, after = read_header(tmp_path / "model.Q8_0.gguf"), read_header(path)
    assert after.fields == {**before.fields, "general.file_type": 0}
    assert {tensor.kind for tensor in after.tensors} == {0}
    packed = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "packed")
    assert (packed.data == weights).all()


def test_full_precision_is_written_whole_by_whoever_starts_together(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf")
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: write_full_precision(tmp_path / "model.gguf", tmp_path / "cache"), range(4)))
    assert [*paths] == [*(tmp_path / "cache").iterdir()]
    written = [path.stat().st_mtime_ns for path in paths]
    assert write_full_precision(tmp_path / "model.gguf", tmp_path / "cache") in paths
    assert [path.stat().st_mtime_ns for path in paths] == written


def test_another_model_of_the_same_name_gets_a_file_of_its_own(tmp_path: Path) -> None:
    paths = set()
    for name in ("one", "two"):
        write_model(tmp_path / "model.gguf", general__name=name)
        paths.add(write_full_precision(tmp_path / "model.gguf", tmp_path / "cache"))
    assert len(paths) == 2


def test_a_cache_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(RunError, match=r"can't write .*cache"):
        write_full_precision(tmp_path / "model.gguf", tmp_path / "cache")


@pytest.mark.parametrize(
    ("template", "capabilities"),
    [
        ("{{ messages }}", ["completion"]),
        ("{{ tools }}", ["tools", "completion"]),
        ("<think>{{ messages }}</think>", ["thinking", "completion"]),
    ],
)
def test_capabilities_are_found_in_the_template(tmp_path: Path, template: str, capabilities: list[str]) -> None:
    write_model(tmp_path / "model.gguf", tokenizer__chat_template=template)
    card = ModelCard.read("Model:latest", tmp_path / "model.gguf")
    assert card.capabilities == capabilities
    assert (card.name, card.tagged_name, card.adds_bos) == ("model", "model:latest", True)
    assert card.details().quantization_level == "Q8_0"


def test_names_are_the_same_with_and_without_what_goes_without_saying() -> None:
    for name in ("Llama3", "llama3:latest", "library/llama3", "registry.ollama.ai/library/llama3:latest"):
        assert short_name(name) == "llama3"
    assert short_name("llama3:8b") == "llama3:8b"


def test_parameter_counts_are_written_as_ollama_writes_them() -> None:
    counts = {134515008: "134.52M", 7 * 10**9: "7B", 1543714304: "1.5B", 22000: "22K", 12: "12"}
    assert {count: human_number(count) for count in counts} == counts


def test_tool_calls_are_gathered_until_the_end() -> None:
    steps = ChatSteps(top=None)
    pieces = [{"id": "c1", "function": {"name": "add", "arguments": '{"a"'}}, {"function": {"arguments": ": 1}"}}]
    for piece in pieces:
        event = {"choices": [{"delta": {"tool_calls": [{"index": 0, **piece}]}, "finish_reason": None}]}
        assert not steps.step(event).shown
    last = steps.step({"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "timings": {}})
    assert last.done is DoneReason.STOP
    assert last.tool_calls == [{"id": "c1", "function": {"index": 0, "name": "add", "arguments": {"a": 1}}}]


def test_thinking_comes_apart_from_the_text() -> None:
    event = {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]}
    step = ChatSteps(top=None).step(event)
    assert (step.text, step.thinking, step.shown) == ("", "hm", True)


def test_models_are_named_or_of_the_default_pair(tmp_path: Path) -> None:
    path = tmp_path / "a=b.gguf"
    path.write_bytes(b"GGUF")
    assert resolve([]) == default_models()
    assert resolve(["draft"]) == {"draft": packaged_model()}
    assert resolve([f"mine={path}", "draft"]) == {"mine": path, "draft": packaged_model()}


def serve(*arguments: str) -> SpecollamaError:
    """The error of a command that doesn't come up."""
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert isinstance(result.exception, SpecollamaError), result.output
    assert "\n" not in str(result.exception)
    return result.exception


def test_everyday_faults_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECOLLAMA_TOKEN", raising=False)
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "cut.gguf").write_bytes(packaged_model().read_bytes()[:10000])
    for argument, message in (
        ("nonsense", "write NAME=FILE.gguf"),
        ("=x", "write NAME=FILE.gguf"),
        ("x=", "write NAME=FILE.gguf"),
        (f"x={tmp_path}/none.gguf", "there is no file"),
        (f"x={tmp_path}/text.gguf", "is not a GGUF file"),
        (f"x={tmp_path}/empty.gguf", "is not a GGUF file"),
        (f"x={tmp_path}/cut.gguf", "is a damaged GGUF file"),
    ):
        error = serve("--model", argument, "--port", "0")
        assert isinstance(error, UsageError)
        assert message in str(error)
    assert "given twice" in str(serve("--model", "draft", "--model", "draft", "--port", "0"))


def test_a_model_that_llama_cpp_refuses_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf")
    error = serve("--model", f"x={tmp_path}/model.gguf", "--port", "0")
    assert isinstance(error, RunError)
    assert "llama.cpp can't load" in str(error)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = serve("--model", "draft", "--port", str(port))
    assert isinstance(error, RunError)
    assert f"can't listen on 127.0.0.1 port {port}" in str(error)


def test_other_addresses_need_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECOLLAMA_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "example.com"):
        error = serve("--host", host, "--port", "0")
        assert isinstance(error, UsageError)
        assert "SPECOLLAMA_TOKEN" in str(error)


def test_a_package_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(MissingPackage, match=r"needs no_such_package: run pip install 'specollama\[embedded\]'"):
        require_packages("no_such_package", "httpx")


def test_the_command_says_when_it_is_ready_and_ends_on_an_interrupt() -> None:
    code = "from specollama.cli.commands.embedded import app; app()"
    arguments = ["serve", "--model", "draft", "--host", "0.0.0.0", "--port", "0", "--num-ctx", "64", "--parallel", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "SPECOLLAMA_TOKEN": "secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        words = process.stderr.readline().split()
        assert words[:3] == ["serving", "draft", "on"]
        url = words[3].replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/api/version").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/api/tags", headers=headers).json()["models"][0]["name"] == "draft:latest"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
    assert process.returncode == 0
