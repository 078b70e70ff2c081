"""The recorded comparison: what the proxy answers is what the server itself answers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.scripted_ollama import ScriptedModel, ScriptedOllama, pieces

SCRIPT = Path(__file__).parents[3] / "scripts" / "compare_wire"


def compared(url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), url], capture_output=True, text=True, timeout=300)


def test_40_requests_are_answered_as_by_the_server_itself_with_speculation_off_and_on(embedded_url: str) -> None:
    ran = compared(embedded_url)
    assert ran.returncode == 0, ran.stdout
    summary = re.fullmatch(r"40 of 40 equal; (\d+)(\.0)? tokens drafted", ran.stdout.splitlines()[-1])
    assert summary
    assert int(summary[1]) > 100


def test_the_comparison_can_fail(up: object) -> None:
    """A server whose raw replies aren't those of its chats: what is speculated then differs."""

    class Strange(ScriptedOllama):
        def _answer(self, call):  # type: ignore[no-untyped-def]
            status, answer = super()._answer(call)
            if call.path == "/api/chat" and isinstance(answer, list) and len(answer) > 1:
                answer[0]["message"]["content"] = "Otherwise"
            return status, answer

    model = ScriptedModel(pieces("Hello there"))
    ran = compared(up(Strange({"target": model, "draft": model})))  # type: ignore[operator]
    assert ran.returncode == 1
    assert "differs: on        200 /api/chat chat stream" in ran.stdout
