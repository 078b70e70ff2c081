"""This machine's available memory, and whether it has a GPU."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

_GROUP = Path("/sys/fs/cgroup")
_GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/kfd"), Path("/dev/dxg"))


def free_memory(group: Path = _GROUP) -> int:
    """Bytes that the process can allocate without swapping. `group`: the cgroup folder with a container's limit."""
    available = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, StopIteration):
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        cached = int(next(line for line in lines if line.startswith("file ")).split()[1])
        available = min(available, limit - used + cached)
    return available


def has_gpu_memory() -> bool:
    """Whether a device file of a GPU with its own memory exists."""
    return any(device.exists() for device in _GPU_DEVICES)
