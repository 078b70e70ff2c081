"""Ollama's model store: from a name to the file with the weights."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from specollama.backends.ollama.model_store import find_weights, store_folders
from specollama.errors import RunError

MODEL, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"


def install(store: Path, within: str, *media: str, blob: bool = True) -> Path:
    """A model in the store; its manifest's digest is that of the file."""
    layers = [{"mediaType": kind, "digest": f"sha256:{place:064d}", "size": 4} for place, kind in enumerate(media)]
    manifest = store / "manifests" / within
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    (store / "blobs").mkdir(exist_ok=True)
    if blob:
        for layer in layers:
            (store / "blobs" / str(layer["digest"]).replace(":", "-")).write_bytes(b"GGUF")
    return manifest


def found(store: Path, name: str, digest: str = "") -> Path | None:
    return find_weights(name, {"OLLAMA_MODELS": str(store)}, digest)


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("qwen2.5:0.5b", "registry.ollama.ai/library/qwen2.5/0.5b"),
        ("qwen2.5", "registry.ollama.ai/library/qwen2.5/latest"),
        ("someone/model:tag", "registry.ollama.ai/someone/model/tag"),
        ("hf.co/user/repo:Q4_K_M", "hf.co/user/repo/Q4_K_M"),
        ("registry.local:5000/team/model", "registry.local:5000/team/model/latest"),
        ("Q05", "registry.ollama.ai/library/q05/latest"),
        ("q05:latest", "registry.ollama.ai/library/Q05/latest"),
        ("ns/Q05Big:V1", "registry.ollama.ai/ns/q05big/v1"),
        ("https://registry.ollama.ai/library/q05", "registry.ollama.ai/library/q05/latest"),
        ("HTTP://hf.co/user/repo:q4_k_m", "hf.co/User/Repo/Q4_K_M"),
    ],
)
def test_a_name_leads_to_the_file_with_the_weights(tmp_path: Path, name: str, within: str) -> None:
    install(tmp_path, within, "application/vnd.ollama.image.template", MODEL)
    assert found(tmp_path, name) == tmp_path / "blobs" / f"sha256-{1:064d}"


def test_a_model_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    assert found(tmp_path, "qwen2.5:0.5b") is None


def test_another_model_of_the_same_name_is_not_taken(tmp_path: Path) -> None:
    manifest = install(tmp_path, "registry.ollama.ai/library/m/latest", MODEL)
    assert found(tmp_path, "m", "0" * 64) is None
    assert found(tmp_path, "m", sha256(manifest.read_bytes()).hexdigest()) is not None


@pytest.mark.parametrize(
    "name", ["../../etc:passwd", "a/../b", "..", "a/b/c/d", "a\\b", "m" * 300, "a\0b", ":tag", "a/"]
)
def test_a_name_leads_nowhere_outside(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="isn't the name of an installed model"):
        found(tmp_path, name)


@pytest.mark.parametrize(
    ("media", "words"), [((MODEL, ADAPTER), "has an adapter"), (("application/vnd.ollama.image.tensor",), "as a GGUF")]
)
def test_what_one_file_does_not_hold_is_refused(tmp_path: Path, media: tuple[str, ...], words: str) -> None:
    install(tmp_path, "registry.ollama.ai/library/m/latest", *media)
    with pytest.raises(RunError, match=words):
        found(tmp_path, "m")


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"layers":' * 50_000,
        "[]",
        '{"layers": 3}',
        *(
            json.dumps({"layers": [{"mediaType": MODEL, "digest": digest}]})
            for digest in ("../../../etc/passwd", "/etc/passwd", "sha256:../x", "sha256:12", "", "sha256-" + "0" * 65)
        ),
    ],
)
def test_a_manifest_that_is_none_or_leads_out_of_the_store_is_told_in_one_line(tmp_path: Path, content: str) -> None:
    install(tmp_path, "registry.ollama.ai/library/m/latest", MODEL).write_text(content)
    with pytest.raises(RunError, match=r"latest: it isn't a manifest of Ollama's") as fault:
        found(tmp_path, "m")
    assert "\n" not in str(fault.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_in_the_store_is_not_waited_for(tmp_path: Path) -> None:
    manifest = install(tmp_path, "registry.ollama.ai/library/m/latest", MODEL)
    manifest.unlink()
    os.mkfifo(manifest)
    assert found(tmp_path, "m") is None


def test_a_blob_that_is_gone_is_told_with_what_to_do(tmp_path: Path) -> None:
    install(tmp_path, "registry.ollama.ai/library/m/latest", MODEL, blob=False)
    with pytest.raises(RunError, match=r"isn't there: `ollama pull m`"):
        found(tmp_path, "m")


def test_a_damaged_manifest_is_told_by_its_name(tmp_path: Path) -> None:
    manifest = install(tmp_path, "registry.ollama.ai/library/m/latest", MODEL)
    manifest.write_text('{"layers": 3}')
    with pytest.raises(RunError, match="isn't a manifest of Ollama's"):
        found(tmp_path, "m")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_blob_that_may_not_be_read_is_told_apart(tmp_path: Path) -> None:
    install(tmp_path, "registry.ollama.ai/library/m/latest", MODEL)
    (tmp_path / "blobs" / f"sha256-{0:064d}").chmod(0)
    with pytest.raises(RunError, match="may not be read by this user"):
        found(tmp_path, "m")


def test_the_store_is_looked_for_where_ollama_keeps_it(tmp_path: Path) -> None:
    assert store_folders({"OLLAMA_MODELS": str(tmp_path)}) == [tmp_path]
    assert store_folders({"HOME": "/home/me"})[0] == Path("/home/me/.ollama/models")
