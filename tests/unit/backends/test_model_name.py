"""Names of models are matched as Ollama matches them."""

from __future__ import annotations

import pytest

from specollama.backends.ollama.model_name import ModelName, full_name, parse_name


@pytest.mark.parametrize(
    ("names", "full"),
    [
        (
            ("Q05", "q05:latest", "library/q05", "registry.ollama.ai/library/Q05:Latest", "https://registry.ollama.ai/library/q05"),
            "q05:latest",
        ),
        (("ns/Q05Big:V1", "http://Registry.Ollama.AI/NS/q05big:v1"), "ns/q05big:v1"),
        (("hf.co/User/Repo-GGUF:Q4_K_M", "https://hf.co/user/repo-gguf:q4_k_m"), "hf.co/user/repo-gguf:q4_k_m"),
        (("registry.local:5000/team/model",), "registry.local:5000/team/model:latest"),
        (("hf.co/library/m",), "hf.co/library/m:latest"),
        (("qwen2.5:0.5b",), "qwen2.5:0.5b"),
        (("",), ":latest"),
    ],
)  # fmt: skip
def test_all_spellings_of_a_name_are_one(names: tuple[str, ...], full: str) -> None:
    assert {full_name(name) for name in names} == {full}


def test_a_name_has_four_parts() -> None:
    assert parse_name("http://host:1/Ns/m:T") == ModelName("host:1", "Ns", "m", "T")
    assert parse_name("m") == ModelName("registry.ollama.ai", "library", "m", "latest")
