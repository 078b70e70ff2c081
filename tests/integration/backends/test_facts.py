"""What is known of a model from its server's words: versions, parameters, vocabularies beside each other."""

from __future__ import annotations

import pytest

from specollama.backends.llama_cpp.draft_compatibility import first_difference
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import fetch_model_info, parameters, parsed_version
from specollama.backends.ollama.schema import ModelDetails
from specollama.errors import ModelMissing
from tests.support.made_up_models import model
from tests.support.serving import Stage, replayed, whole


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.33.0", (0, 33, 0)),
        ("0.33.0-rc2", (0, 33, 0)),
        ("v0.12.11", (0, 12, 11)),
        ("0.0.0", (0, 0, 0)),
        ("0.0.0-dirty", (0, 0, 0)),
        ("1.2", (1, 2)),
        ("0.12.10.4", (0, 12, 10)),
        ("0.12.11+build5", (0, 12, 11)),
    ],
)
def test_a_version_is_its_numbers(text: str, version: tuple[int, ...]) -> None:
    assert parsed_version(text) == version


@pytest.mark.parametrize(
    ("version", "facts"),
    [
        # has log-probabilities, tokens a row needs, sampler known, renders
        ("0.11.4", (False, 1, False, False)),
        ("0.11.5", (False, 1, False, True)),
        ("0.12.10", (False, 1, False, True)),
        ("0.12.11", (True, 2, False, True)),
        ("0.15.4", (True, 2, False, True)),
        ("0.15.5", (True, 1, False, True)),
        ("0.24.9", (True, 1, False, True)),
        ("0.30.0", (True, 1, True, True)),
        ("0.33.0-rc2", (True, 1, True, True)),
        ("1.0.0", (True, 1, True, True)),
        ("0.0.0", (True, 1, True, True)),  # built from source
    ],
)
def test_what_a_version_can_do(version: str, facts: tuple[bool, int, bool, bool]) -> None:
    known = model(version)
    assert (known.has_logprobs, known.row_tokens, known.has_known_sampler, known.renders_prompts) == facts


@pytest.mark.parametrize(
    ("version", "penalty"), [("0.24.0", 1.1), ("0.32.9", 1.1), ("0.32.10", 1.0), ("0.33.0", 1.0), ("0.0.0", 1.0)]
)
def test_the_repeat_penalty_that_nobody_set_was_another_once(version: str, penalty: float) -> None:
    assert model(version).defaults.repeat_penalty == penalty


def test_a_sampler_of_the_models_own_is_not_known() -> None:
    assert model(model_info={"general.architecture": "llama"}).has_known_sampler
    assert not model(model_info={"general.sampling.xtc_probability": 0.5}).has_known_sampler
    assert not model(details=ModelDetails(format="safetensors")).has_known_sampler


def test_parameters_are_read_as_ollama_prints_them() -> None:
    text = "\n".join(
        [
            'stop                           "<|im_start|>"',
            'stop                           "<|im_end|>"',
            "temperature                    0.7",
            "num_ctx                        8192",
            "top_k                          40",
            "use_mmap                       true",
        ]
    )
    assert parameters(text) == {
        "stop": ["<|im_start|>", "<|im_end|>"],
        "temperature": 0.7,
        "num_ctx": 8192,
        "top_k": 40,
        "use_mmap": True,
    }


@pytest.mark.parametrize(
    ("printed", "stop"),
    [
        (r'"\nUser:"', "\nUser:"),
        (r'"say \"stop\""', 'say "stop"'),
        (r'"back\\slash"', "back\\slash"),
        (r'"two  spaces "', "two  spaces "),
        (r'"\t\r"', "\t\r"),
        (r'"\x1b[0m"', "\x1b[0m"),
        (r'"\u2028"', "\u2028"),
        (r'"\U000e0001"', "\U000e0001"),
        ('"東京"', "東京"),
        ("unquoted words", "unquoted words"),
        ('"\'"', "'"),
        ('"5"', "5"),
    ],
)
def test_a_stop_string_is_read_with_all_its_escapes(printed: str, stop: str) -> None:
    assert parameters(f"stop                           {printed}") == {"stop": [stop]}


def test_no_parameters_are_none() -> None:
    assert parameters("") == {}
    assert parameters("\n  \n") == {}
    assert model(parameters=None).parameters == {}


def test_C20_the_first_token_that_differs_is_told() -> None:
    ours = [f"t{place}" for place in range(200)]
    theirs = [*ours[:139], "other", *ours[140:]]
    assert first_difference(ours, theirs) == 139
    assert first_difference(theirs, ours) == 139


def test_C22_padding_is_no_difference() -> None:
    tokens = [f"t{place}" for place in range(500)]
    padded = [*tokens, *(f"[PAD{place}]" for place in range(28))]
    assert first_difference(tokens, padded) is None
    assert first_difference(padded, tokens) is None
    assert first_difference(tokens, tokens) is None
    assert first_difference(["x", *padded[1:]], tokens) == 0


def test_thinking_cloud_and_self_speculating_models_are_told_apart() -> None:
    assert model(capabilities=["completion", "thinking"]).can_think
    assert not model(capabilities=["completion"]).can_think
    assert model(name="m:cloud").is_remote
    assert model(name="m:120b-cloud").is_remote
    assert model(remote_host="https://ollama.com").is_remote
    assert not model(name="cloudy:7b").is_remote
    drafted = model(modelfile="FROM a\nDRAFT /blobs/b\n")
    assert drafted.speculates_natively({})
    assert drafted.speculates_natively({"draft_num_predict": 2})
    assert not drafted.speculates_natively({"draft_num_predict": 0})
    assert model().speculates_natively({"draft_num_predict": 4})
    assert not model().speculates_natively({"draft_num_predict": 0})
    assert not model(modelfile="FROM a\n# a DRAFT of mine\nSYSTEM DRAFT\n").speculates_natively({})


@pytest.mark.parametrize(
    ("name", "listed", "digest"),
    [
        ("qwen", "qwen:latest", "ab12"),
        ("qwen:7b", "qwen:7b", "ab12"),
        ("host:5000/me/qwen", "host:5000/me/qwen:latest", "ab12"),
        ("qwen:7b", "qwen:latest", ""),
    ],
)
async def test_the_digest_is_that_of_the_models_tag(stage: Stage, name: str, listed: str, digest: str) -> None:
    tags = whole({"models": [{"name": listed, "digest": "ab12"}]})
    stage.app = replayed(version=whole({"version": "0.33.0"}), show=whole({}), tags=tags)
    async with OllamaServer(stage.url) as server:
        assert (await fetch_model_info(server, name)).digest == digest


@pytest.mark.parametrize("digest", ["../../elsewhere", "/tmp/x", "ab/cd", "ab\x00", "ab.gguf"])
async def test_a_digest_that_is_none_never_names_a_file(stage: Stage, digest: str) -> None:
    tags = whole({"models": [{"name": "m:latest", "digest": digest}]})
    stage.app = replayed(version=whole({"version": "0.33.0"}), show=whole({}), tags=tags)
    async with OllamaServer(stage.url) as server:
        assert (await fetch_model_info(server, "m")).digest == ""


async def test_a_model_that_is_missing_is_told_before_anything_else(stage: Stage) -> None:
    tags = whole({"models": [{"name": "target:latest"}]})
    missing = whole({"error": "model 'targte' not found"}, 404)
    stage.app = replayed(version=whole({"version": "0.33.0"}), show=missing, tags=tags)
    async with OllamaServer(stage.url) as server:
        with pytest.raises(ModelMissing, match=r"target:latest.*ollama pull targte"):
            await fetch_model_info(server, "targte")
