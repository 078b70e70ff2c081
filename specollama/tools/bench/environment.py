"""Where a measurement was made, and with what."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specollama._version import __version__

_PACKAGES = ("llama-cpp-python", "xllamacpp")  # those that run models


def environment() -> dict[str, Any]:
    """Processor, cores, memory (bytes), system and Python; how busy the machine was (its load, None where unknown)."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "load": load_average(),
    }


def load_average() -> float | None:
    """Processes that want to run, on the average of the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def package_versions() -> dict[str, str | None]:
    """Of specollama, and of the packages that run models in this process; None: not installed."""
    return {"specollama": __version__, **{name: _installed(name) for name in _PACKAGES}}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    with suppress(OSError):  # Linux; elsewhere Python itself knows
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    with suppress(ValueError, OSError, AttributeError):  # Windows has no sysconf
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
