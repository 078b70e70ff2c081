"""What this machine is said to have."""

from __future__ import annotations

from pathlib import Path

import psutil

from specollama.backends.llama_cpp.hardware import free_memory


def test_the_memory_is_no_more_than_a_container_may_have(tmp_path: Path) -> None:
    for name, text in {"memory.max": "5000", "memory.current": "3000", "memory.stat": "anon 9\nfile 700\n"}.items():
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == 2700, "what is cached of files can be given up"
    (tmp_path / "memory.max").write_text("max\n")
    assert 2700 < free_memory(tmp_path) <= psutil.virtual_memory().total
