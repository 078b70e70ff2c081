"""A pair as another engine's own set-up: every field, the engine's own checks first, and no repository guessed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specollama.errors import UnsupportedPair, UsageError
from specollama.tools.export.hf_repositories import find_repository
from specollama.tools.export.model_facts import ModelFacts
from specollama.tools.export.writers import ExportEngine, ExportRequest, export_files
from specollama.tools.native_server import NativeSetup

WORDS = [f"w{place}" for place in range(200)]
SAME: Mapping[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": WORDS,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.bos_token_id": 1,
}
HF = {"target_hf": "Big/Model", "draft_hf": "Small/Model"}


def model(name: str, **changed: Any) -> ModelFacts:
    metadata = {**SAME, **{f"tokenizer.ggml.{key}": value for key, value in changed.items()}}
    return ModelFacts(name, metadata, f"/models/{name}.gguf", "this machine")


def wanted(draft: ModelFacts | None = None, **given: Any) -> ExportRequest:
    return ExportRequest(model("big"), draft or model("small"), **{**HF, **given})


def command(script: str) -> list[str]:
    """The words of the one command of a script, as the shell sees them."""
    assert script.startswith("#!/bin/sh\n")
    return shlex.split(script.replace("\\\n", " "), comments=True)


def option(words: list[str], name: str) -> str:
    assert words.count(name) == 1
    return words[words.index(name) + 1]


def comments(script: str) -> str:
    return "\n".join(line for line in script.splitlines() if line.startswith("# "))


def test_vllm_gets_its_speculative_config_and_the_version_that_it_takes() -> None:
    [(name, script)] = export_files(ExportEngine.VLLM, wanted(tokens=4, context_length=8192)).items()
    words = command(script)
    assert name == "vllm.sh"
    assert words[:4] == ["exec", "vllm", "serve", "Big/Model"]
    assert json.loads(option(words, "--speculative-config")) == {
        "method": "draft_model",
        "model": "Small/Model",
        "num_speculative_tokens": 4,
    }
    assert option(words, "--max-model-len") == "8192"
    assert "vLLM 0.14 or later" in comments(script)
    assert "Big/Model: by --target-hf" in comments(script)


@pytest.mark.parametrize("tokens", [[*WORDS, "more"], ["other", *WORDS[1:]]])
def test_vllm_is_told_when_the_vocabularies_differ(tokens: list[str]) -> None:
    [script] = export_files(ExportEngine.VLLM, wanted(model("small", tokens=tokens))).values()
    assert json.loads(option(command(script), "--speculative-config"))["use_heterogeneous_vocab"] is True
    assert "use_heterogeneous_vocab, which came after 0.15" in comments(script)


def test_sglang_gets_a_standalone_draft_with_one_token_more_than_steps() -> None:
    [(name, script)] = export_files(ExportEngine.SGLANG, wanted(tokens=6)).items()
    words = command(script)
    assert name == "sglang.sh"
    assert words[:4] == ["exec", "python", "-m", "sglang.launch_server"]
    assert option(words, "--model-path") == "Big/Model"
    assert option(words, "--speculative-algorithm") == "STANDALONE"
    assert option(words, "--speculative-draft-model-path") == "Small/Model"
    assert option(words, "--speculative-num-steps") == "5"
    assert option(words, "--speculative-eagle-topk") == "1"
    assert option(words, "--speculative-num-draft-tokens") == "6"
    assert "--enable-dp-attention" not in words


def test_tensorrt_llm_gets_its_yaml_with_the_spelling_that_its_parser_takes() -> None:
    files = export_files(ExportEngine.TENSORRT_LLM, wanted(tokens=3))
    assert yaml.safe_load(files["tensorrt-llm.yaml"]) == {
        "speculative_config": {
            "decoding_type": "Draft_Target",
            "max_draft_len": 3,
            "speculative_model": "Small/Model",
        },
        "disable_overlap_scheduler": True,
    }
    assert "DraftTarget" in comments(files["tensorrt-llm.yaml"])
    words = command(files["tensorrt-llm.sh"])
    assert words[:3] == ["exec", "trtllm-serve", "Big/Model"]
    assert (option(words, "--config"), option(words, "--backend")) == ("tensorrt-llm.yaml", "pytorch")


def test_llama_server_is_told_to_use_the_draft_that_it_loads() -> None:
    [(name, script)] = export_files(ExportEngine.LLAMA_SERVER, wanted(context_length=4096)).items()
    words = command(script)
    assert name == "llama-server.sh"
    assert words[1] == "llama-server"
    assert (option(words, "-m"), option(words, "-md")) == ("/models/big.gguf", "/models/small.gguf")
    assert option(words, "--spec-type") == "draft-simple"
    assert (option(words, "--spec-draft-n-max"), option(words, "--spec-draft-n-min")) == ("16", "0")
    assert (option(words, "--spec-draft-p-min"), option(words, "-ngld"), option(words, "-c")) == ("0.75", "99", "4096")
    assert not {"--draft-model", "--draft-max", "--draft"} & set(words)


STORED = f"/usr/share/ollama/.ollama/models/blobs/sha256-{0:064d}"


def stored(file: str = STORED, draft: ModelFacts | None = None, **given: Any) -> ExportRequest:
    """The target's weights in a store of Ollama's."""
    return replace(wanted(draft, **given), target=replace(model("big"), file=file))


def environment(script: str) -> dict[str, str]:
    words = command(script)
    assert (words[:2], words[-2:]) == (["exec", "env"], ["ollama", "serve"])
    return dict(word.split("=", 1) for word in words[2:-2])


def test_ollama_gets_the_environment_in_which_it_finds_the_target_and_drafts() -> None:
    [script] = export_files(ExportEngine.OLLAMA, stored(tokens=5, context_length=4096)).values()
    assert environment(script) == {
        "OLLAMA_HOST": "127.0.0.1:11436",
        "OLLAMA_MODELS": "/usr/share/ollama/.ollama/models",
        "OLLAMA_NOPRUNE": "1",
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "LLAMA_ARG_SPEC_TYPE": "draft-simple",
        "LLAMA_ARG_SPEC_DRAFT_MODEL": "/models/small.gguf",
        "LLAMA_ARG_SPEC_DRAFT_N_MAX": "5",
        "LLAMA_ARG_SPEC_DRAFT_P_MIN": "0.7",
        "OLLAMA_CONTEXT_LENGTH": "4096",
    }
    assert "Ollama 0.30 or later" in comments(script)


def test_an_exported_ollama_is_the_one_that_the_route_native_asks() -> None:
    setup = NativeSetup("big", Path(STORED), Path("/models/small.gguf"), "http://127.0.0.1:11500")
    [script] = export_files(ExportEngine.OLLAMA, stored(native=setup.url)).values()
    assert environment(script) == setup.environment


def test_a_store_on_windows_is_named_as_it_is_there() -> None:
    [script] = export_files(ExportEngine.OLLAMA, stored(rf"C:\Users\me\.ollama\models\blobs\sha256-{0:064d}")).values()
    assert environment(script)["OLLAMA_MODELS"] == r"C:\Users\me\.ollama\models"


def test_a_file_outside_a_store_is_nothing_that_ollama_serves() -> None:
    with pytest.raises(UnsupportedPair, match=r"/models/big\.gguf isn't in a model store"):
        export_files(ExportEngine.OLLAMA, wanted())


@pytest.mark.parametrize("engine", list(ExportEngine))
def test_paths_and_names_are_one_word_for_the_shell(engine: ExportEngine) -> None:
    odd = ModelFacts("small", SAME, "/my models/$(rm)/a'b.gguf", "this machine")
    for script in export_files(engine, stored(draft=odd)).values():
        assert "$(rm)" not in script or "/my models/$(rm)/a'b.gguf" in " ".join(command(script))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model": "llama"}, "another kind of vocabulary"),
        ({"add_bos_token": False}, "bos is added to one of them only"),
        ({"bos_token_id": 2}, "another bos token"),
        ({"add_eos_token": True}, "eos is added to one of them only"),
        ({"tokens": [*WORDS, *map(str, range(129))]}, "329 tokens against 200, and no more than 128 may be missing"),
        ({"tokens": [*WORDS[:9], "x", *WORDS[10:]]}, "token 9 is 'w9' for the target and 'x' for the draft"),
    ],
)
@pytest.mark.parametrize("engine", [ExportEngine.LLAMA_SERVER, ExportEngine.OLLAMA])
def test_what_llama_cpp_would_refuse_is_refused_with_its_reason(
    engine: ExportEngine, changed: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnsupportedPair, match=f"would not let small draft for big: {why}"):
        export_files(engine, wanted(model("small", **changed)))


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": [*WORDS, *map(str, range(128))]},
        {"tokens": ["x"] * 5 + WORDS[5:]},
        {"add_eos_token": False},  # as where nothing is said
        {"add_bos_token": None},
    ],
)
def test_what_llama_cpp_tolerates_is_exported(changed: dict[str, Any]) -> None:
    assert export_files(ExportEngine.LLAMA_SERVER, wanted(model("small", **changed)))


def test_sglang_and_tensorrt_llm_want_one_tokenizer() -> None:
    longer, other = model("small", tokens=[*WORDS, "pad"]), model("small", tokens=["x", *WORDS[1:]])
    with pytest.raises(UnsupportedPair, match="SGLang would not let small draft for big: 201 tokens against 200"):
        export_files(ExportEngine.SGLANG, wanted(longer))
    assert export_files(ExportEngine.TENSORRT_LLM, wanted(longer))
    for engine in (ExportEngine.SGLANG, ExportEngine.TENSORRT_LLM):
        with pytest.raises(UnsupportedPair, match="token 0 is 'x' and 'w0'"):
            export_files(engine, wanted(other))


def test_vocabularies_that_are_not_known_are_said_not_to_be_compared() -> None:
    served = ModelFacts("Big/Served")
    for engine in (ExportEngine.VLLM, ExportEngine.SGLANG, ExportEngine.TENSORRT_LLM):
        scripts = export_files(engine, ExportRequest(served, model("small"), draft_hf="Small/Model"))
        assert any("the vocabularies weren't compared" in text for text in scripts.values())


def test_a_file_that_is_not_known_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"no GGUF file of Big/Served is known"):
        export_files(ExportEngine.LLAMA_SERVER, ExportRequest(ModelFacts("Big/Served"), model("small")))


# which repository

INSTRUCT = "https://huggingface.co/Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(
    ("name", "metadata", "found", "by"),
    [
        ("qwen2.5-coder:1.5b", {}, "Qwen/Qwen2.5-Coder-1.5B-Instruct", "Ollama's library name"),
        ("llama3.2:1b-instruct-q8_0", {}, "meta-llama/Llama-3.2-1B-Instruct", "Ollama's library name"),
        ("x", {"general.source.repo_url": INSTRUCT}, "Qwen/Qwen2.5-7B-Instruct", "general.source.repo_url of its GGUF"),
        (
            "x",
            {"general.name": "Qwen2.5 7B Instruct", "general.base_model.0.repo_url": INSTRUCT},
            "Qwen/Qwen2.5-7B-Instruct",
            "general.base_model.0.repo_url of its GGUF, which has its name",
        ),
        (
            "hf.co/bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
            {"general.base_model.0.repo_url": INSTRUCT},
            "Qwen/Qwen2.5-7B-Instruct",
            "general.base_model.0.repo_url of its GGUF, which has its name",
        ),
        ("hf.co/Me/Mine-GGUF:Q8_0", {"general.name": "m"}, "Me/Mine", "the name hf.co/Me/Mine-GGUF:Q8_0 without -GGUF"),
        ("meta-llama/Llama-3.1-70B", {}, "meta-llama/Llama-3.1-70B", "the name it is served by"),
    ],
)
def test_a_repository_is_found_and_it_is_said_how(name: str, metadata: dict[str, str], found: str, by: str) -> None:
    repo = find_repository(
        ModelFacts(name, metadata or {} if "/" in name else {"general.name": "", **metadata}), "f", None
    )
    assert (repo.name, repo.known_by[: len(by)]) == (found, by)


@pytest.mark.parametrize(
    ("name", "metadata", "hint"),
    [
        ("mistral:7b", {}, ""),
        ("qwen2.5-coder:latest", {}, ""),
        ("qwen2.5-coder:1.5b-base", {}, ""),
        ("qwen2.5-coder:9b", {}, ""),
        ("x", {"general.source.repo_url": "https://huggingface.co/Me/Mine-GGUF"}, ""),
        (
            "x",
            {"general.name": "Mine", "general.base_model.0.repo_url": INSTRUCT},
            r" \(Qwen/Qwen2.5-7B-Instruct is what it was made from, maybe\)",
        ),
    ],
)
def test_a_repository_is_never_guessed(name: str, metadata: dict[str, str], hint: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} isn't known{hint}; give it as --target-hf OWNER/NAME"):
        find_repository(ModelFacts(name, {"general.architecture": "qwen2", **metadata}), "target-hf", None)


def test_what_a_flag_gives_has_to_be_a_repository() -> None:
    with pytest.raises(UsageError, match="--draft-hf qwen: must be OWNER/NAME"):
        find_repository(model("small"), "draft-hf", "qwen")
