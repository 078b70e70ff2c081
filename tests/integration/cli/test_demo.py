"""`specollama demo`: the main job on the embedded engine."""

from __future__ import annotations

import json

import pytest

from tests.support.calls import Call


@pytest.mark.parametrize(
    ("route", "why"), [("lanes", "route lanes was forced"), ("local", "one small model with itself")]
)
def test_the_demo_shows_the_reply_the_table_and_one_json_object_at_the_end(call: Call, route: str, why: str) -> None:
    shown = call("demo", "Why is [the sky] blue?", "--num-predict", "24", "--json", "--route", route)
    *lines, last = shown.out.splitlines()
    found = json.loads(last)

    assert shown.code == 0, shown.err
    assert found["identical"] is True
    assert found["first_difference"] is None
    assert found["route"] == route
    assert found["eval_count"] == 24
    assert found["rows"] >= found["drafted"] >= found["accepted"]
    if route == "lanes":  # in process the planner may find that so small a model is better left alone
        assert found["acceptance_rate"] > 0.6
        assert found["mean_accepted_length"] > 2
        assert found["rounds"] > 0
    assert found["tokens_per_second"] > 0
    assert found["plain_tokens_per_second"] > 0
    assert found["factor"] > 0

    assert lines[0].strip()  # the reply
    table = "\n".join(lines)
    for row in ("text identical", "acceptance rate", "mean accepted length", "rows asked", "tokens per second"):
        assert row in table
    assert why in table
    assert "\x1b" not in shown.out
    assert "Why is [the sky] blue?" in shown.err
    assert f"speculation: on ({route}" in shown.err


def test_a_route_that_the_demo_does_not_show_is_refused(call: Call) -> None:
    shown = call("demo", "--route", "warp")
    assert (shown.code, shown.err) == (2, "error: --route warp: the demo shows local or lanes\n")
