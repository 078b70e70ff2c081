"""Ollama's model store on this machine: from a model's name to the file with its weights.

A name leads to a manifest, `manifests/HOST/NAMESPACE/MODEL/TAG`, and that to blobs by their digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from specollama.errors import RunError

_WEIGHTS = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"
_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the Linux service's own user
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"


def store_folders(environ: Mapping[str, str]) -> list[Path]:
    """Where a store may be, the likeliest first: `OLLAMA_MODELS` alone where it is set."""
    if given := environ.get("OLLAMA_MODELS"):
        return [Path(given)]
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    return [home / ".ollama" / "models", _SERVICE]


def find_weights(name: str, environ: Mapping[str, str], digest: str = "") -> Path | None:
    """The GGUF of an installed model; None when this machine doesn't have it.

    `digest`: of its manifest, as its server lists it; another model of that name isn't it. Raises RunError when it may
    not be read, or isn't one GGUF that works by itself.
    """
    stores = store_folders(environ)
    manifest = _first_readable([store / "manifests" / _manifest_path(name) for store in stores], name)
    if manifest is None:
        return None
    content = manifest.read_bytes()
    if digest and sha256(content).hexdigest() != digest.removeprefix("sha256:"):
        return None
    layers = _layers(content, manifest)
    if _ADAPTER in layers:
        raise RunError(f"{name} has an adapter, which only its server puts on")
    if _WEIGHTS not in layers:
        raise RunError(f"{name} isn't kept as a GGUF")
    blob = manifest.parents[4] / "blobs" / layers[_WEIGHTS].replace(":", "-")
    if _first_readable([blob], name) is None:
        raise RunError(f"{name}: {blob} isn't there: `ollama pull {name}` fetches it again")
    return blob


def _manifest_path(name: str) -> Path:
    """A name's place in the manifests: `qwen2.5:0.5b` and `hf.co/user/repo:Q4_K_M` leave parts out, or don't."""
    path, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    parts = path.split("/")
    host = parts[-3] if len(parts) > 2 else _HOST
    namespace = parts[-2] if len(parts) > 1 else _NAMESPACE
    chosen = (host, namespace, parts[-1], tag or _TAG)
    if any(part in ("", ".", "..") or "\\" in part for part in chosen) or len(parts) > 3:
        raise RunError(f"{name!r} isn't the name of an installed model")
    return Path(*chosen)


def _first_readable(files: Iterable[Path], name: str) -> Path | None:
    """Raises RunError for a file that is there and may not be read."""
    for file in files:
        try:
            with file.open("rb"):
                return file
        except PermissionError:
            raise RunError(f"{name}: {file} may not be read by this user (join its group, or give a path)") from None
        except OSError:
            continue
    return None


def _layers(content: bytes, manifest: Path) -> dict[str, str]:
    """The digests of a manifest's layers by their media type."""
    try:
        listed: list[dict[str, Any]] = json.loads(content)["layers"]
        return {str(layer["mediaType"]): str(layer["digest"]) for layer in listed}
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{manifest}: it isn't a manifest of Ollama's") from None
