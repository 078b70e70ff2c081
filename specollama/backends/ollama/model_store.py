"""Ollama's model store on this machine: from a model's name to the file with its weights.

A name leads to a manifest, `manifests/HOST/NAMESPACE/MODEL/TAG`, and that to blobs by their digest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from specollama.backends.ollama.model_name import ModelName, parse_name
from specollama.config.plain_file import open_plain
from specollama.errors import RunError

_WEIGHTS = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"
_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the Linux service's own user
_MANIFEST_LIMIT = 4 * 2**20  # bytes; real ones have some hundred
_LONGEST = 80  # characters of a part of a name, as in Ollama
_FROM_BLOB = re.compile(r"^FROM (?P<store>/.+)/blobs/sha256-[0-9a-f]{64}\s*$", re.MULTILINE)
_DIGEST = re.compile(r"sha256[:-][0-9a-fA-F]{64}")


def store_folders(environ: Mapping[str, str]) -> list[Path]:
    """Where a store may be, the likeliest first: `OLLAMA_MODELS` alone where it is set."""
    if given := environ.get("OLLAMA_MODELS"):
        return [Path(given)]
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    return [home / ".ollama" / "models", _SERVICE]


def store_of_modelfile(modelfile: str) -> Path | None:
    """The store that the server itself uses, as the Modelfile of /api/show names it (`FROM /STORE/blobs/sha256-...`).

    None where it names no blob. The store may be on another machine, or in a container.
    """
    found = _FROM_BLOB.search(modelfile)
    return Path(found["store"]) if found else None


def is_visible(store: Path) -> bool:
    """Whether this machine has the folder, readable or not."""
    try:
        store.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def find_weights(name: str, environ: Mapping[str, str], digest: str = "") -> Path | None:
    """The GGUF of an installed model; None when this machine doesn't have it.

    `digest`: of its manifest, as its server lists it; another model of that name isn't it. Raises RunError when it may
    not be read, or isn't one GGUF that works by itself.
    """
    stores = store_folders(environ)
    parts = _checked(parse_name(name), name)
    places = [_manifest_place(store / "manifests", parts) for store in stores]
    manifest = _first_readable(places, name)
    if manifest is None:
        return None
    with open_plain(manifest) as file:
        content = file.read(_MANIFEST_LIMIT)
    if digest and sha256(content).hexdigest() != digest.removeprefix("sha256:"):
        return None
    layers = _layers(content, manifest)
    if _ADAPTER in layers:
        raise RunError(f"{name} has an adapter, which only its server puts on")
    if _WEIGHTS not in layers:
        raise RunError(f"{name} isn't kept as a GGUF")
    if not _DIGEST.fullmatch(layers[_WEIGHTS]):  # it names a file, and must not lead out of the store
        raise RunError(f"{manifest}: it isn't a manifest of Ollama's (a digest is no SHA-256)")
    blob = manifest.parents[4] / "blobs" / layers[_WEIGHTS].replace(":", "-")
    if _first_readable([blob], name) is None:
        raise RunError(f"{name}: {blob} isn't there: `ollama pull {name}` fetches it again")
    return blob


def _checked(parts: ModelName, name: str) -> ModelName:
    """The parts of a name, each of which becomes a folder; RunError for a name that can't be a model's."""
    if any(part in ("", ".", "..") or re.search(r"[/\\\0]", part) or len(part) > _LONGEST for part in parts):
        raise RunError(f"{name!r} isn't the name of an installed model")
    return parts


def _manifest_place(folder: Path, parts: ModelName) -> Path:
    """Where the manifest is; a part is matched without case where there is none spelled so, as Ollama does."""
    for part in parts:
        folder = _entry(folder, part)
    return folder


def _entry(folder: Path, name: str) -> Path:
    exact = folder / name
    try:
        if exact.exists():
            return exact
        return next((each for each in sorted(folder.iterdir()) if each.name.lower() == name.lower()), exact)
    except OSError:  # the one who opens it says why it can't be
        return exact


def _first_readable(files: Iterable[Path], name: str) -> Path | None:
    """Raises RunError for a file that is there and may not be read."""
    for file in files:
        try:
            with open_plain(file):
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
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RunError(f"{manifest}: it isn't a manifest of Ollama's") from None
