"""Whatever is sent, the proxy answers it, and is itself never at fault."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from specollama.server.proxy.serve import serve_in_thread
from tests.support.configured import written
from tests.support.draws import examples

PATHS = ("/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions", "/api/show")
FIELDS = ("model", "messages", "prompt", "suffix", "system", "template", "context", "raw", "images", "stream", "name")
SETTINGS = ("format", "keep_alive", "options", "think", "truncate", "shift", "logprobs", "top_logprobs", "tools", "odd")
OPENAI = ("stream_options", "max_tokens", "max_completion_tokens", "stop", "response_format", "reasoning_effort")
OPTIONS = ["temperature", "top_k", "seed", "num_predict", "stop", "num_ctx", "repeat_penalty", "specollama", "odd"]
OWN = ("route", "lookahead", "off", "odd")

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.floats(allow_nan=False, allow_infinity=False, width=32), st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
own = st.one_of(values, st.dictionaries(st.sampled_from(OWN), values, max_size=2))
options = st.dictionaries(st.sampled_from(OPTIONS), values | own, max_size=4)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool", "odd"]), "content": st.text(max_size=20) | values},
    optional={"images": values, "tool_calls": values, "thinking": values},
)
odd = st.dictionaries(st.sampled_from([*FIELDS, *SETTINGS, *OPENAI]), values, max_size=5)
sound = st.fixed_dictionaries(
    {"model": st.sampled_from(["duo", "target", "nope"]), "messages": st.lists(turns, max_size=3)},
    optional={"prompt": st.text(max_size=20), "options": options, "stream": st.booleans()},
)
bodies = st.one_of(
    st.builds(lambda first, second: json.dumps({**first, **second}).encode(), sound, odd),
    sound.map(lambda body: json.dumps(body).encode()),
    values.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
)


@pytest.fixture(scope="module")
def proxy(embedded_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, io.StringIO]]:
    """A proxy whose replies are short, and its log."""
    file = written(tmp_path_factory.mktemp("odd"), embedded_url, serve="max_num_predict = 3")
    log = io.StringIO()
    with serve_in_thread(file, dict(os.environ)) as (url, running):
        running.log.stream = log
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client, log


@examples(60, HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)
@given(path=st.sampled_from(PATHS), body=bodies)
def test_an_odd_body_gets_an_answer_and_never_a_fault_of_the_proxys(proxy: Any, path: str, body: bytes) -> None:
    client, log = proxy
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404, 413, 500)
    if response.status_code == 500:
        assert response.headers["content-type"].startswith("application/json"), "the target's own words"
        assert response.json()["error"]
    for line in response.text.splitlines():
        assert not line.startswith("{") or json.loads(line)
    assert '"trace"' not in log.getvalue()
