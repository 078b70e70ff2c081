"""C07: a template that writes the begin marker, and a tokenizer that adds it as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PairSettings
from specollama.spec_decode.types import Route
from tests.support.pair_replies import ask, reply
from tests.support.sentencepiece import sentencepiece
from tests.support.serving import Replayed, Stage, replayed, whole


def server(prompt: str, info: dict[str, Any]) -> Replayed:
    """A server whose models all have this tokenizer, and whose template makes this prompt of any chat."""
    entry = {"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "a", "logprob": -0.1}]}
    counts = {"done": True, "done_reason": "length", "eval_count": 1, "prompt_eval_count": 3}
    return replayed(
        version=whole({"version": "0.33.0"}),
        show=whole({"model_info": info, "capabilities": ["completion"], "details": {"format": "gguf"}}),
        tags=whole({"models": [{"name": "m:latest", "digest": "ab12"}]}),
        ps=whole({"models": []}),
        chat=whole({"message": {"role": ""}, "_debug_info": {"rendered_template": prompt}}),
        generate=whole({"response": "a", "logprobs": [entry], **counts}),
    )


@pytest.mark.parametrize(
    ("adds", "rendered", "sent"),
    [
        (True, "<s>[INST] ab [/INST]", "[INST] ab [/INST]"),
        (True, "[INST] ab [/INST]", "[INST] ab [/INST]"),
        (True, "<s>[INST] <s> [/INST]", "[INST] <s> [/INST]"),
        (False, "<s>[INST] ab [/INST]", "<s>[INST] ab [/INST]"),
    ],
)
async def test_C07_a_raw_prompt_leaves_out_the_begin_marker_that_the_server_adds(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adds: bool, rendered: str, sent: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stage.app = server(rendered, sentencepiece(**{"tokenizer.ggml.add_bos_token": adds}))
    model = ModelRef("m", Endpoint(stage.url, "a test"))
    settings = PairSettings(None, model, (model,), lookahead=2, route=Route.LANES)
    answer = await reply(settings, ask(num_predict=3, temperature=0))
    assert answer.text == "aaa"
    prompts = [body["prompt"] for body in stage.app.bodies if body.get("raw")]
    assert len(prompts) > 1
    assert all(prompt.startswith(sent) for prompt in prompts)
    assert {prompt.count("<s>") for prompt in prompts} == {sent.count("<s>")}
