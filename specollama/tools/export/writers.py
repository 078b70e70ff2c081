"""The command lines and files by which each engine drafts and verifies by itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath, PurePosixPath, PureWindowsPath

from specollama.config.settings import NATIVE
from specollama.errors import UnsupportedPair, UsageError
from specollama.tools.export.hf_repositories import find_repository
from specollama.tools.export.model_facts import ModelFacts
from specollama.tools.export.vocab_checks import both_known, check_llama_cpp, check_same_tokenizer
from specollama.tools.native_server import N_MAX, server_environment

_NOT_COMPARED = "the vocabularies weren't compared: one of them isn't known here"


class ExportEngine(StrEnum):
    """Engines to which a pair can be exported."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    LLAMA_SERVER = "llama-server"
    OLLAMA = "ollama"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The pair and the options of the export.

    `tokens`: drafted in a round; None: as the engine's own examples have it. `native`: the URL of an Ollama that is to
    serve this pair alone.
    """

    target: ModelFacts
    draft: ModelFacts
    tokens: int | None = None
    context_length: int | None = None
    target_hf: str | None = None
    draft_hf: str | None = None
    native: str = NATIVE.url


def export_files(engine: ExportEngine, wanted: ExportRequest) -> dict[str, str]:
    """The files of a set-up, by name. Raises UnsupportedPair with the engine's reason, UsageError where facts lack."""
    return _WRITERS[engine](wanted)


def _vllm(wanted: ExportRequest) -> dict[str, str]:
    target, draft, sources = _repositories(wanted)
    ours, theirs = wanted.target.tokens, wanted.draft.tokens
    config: dict[str, object] = {
        "method": "draft_model",
        "model": draft,
        "num_speculative_tokens": wanted.tokens or 5,
    }
    unknown = [] if both_known(wanted.target, wanted.draft) else [_NOT_COMPARED]
    notes = ["vLLM 0.14 or later: draft models came back to its V1 engine then", *unknown, *sources]
    if not unknown and ours != theirs:
        config["use_heterogeneous_vocab"] = True
        how = f"{len(theirs)} and {len(ours)} tokens" if len(theirs) != len(ours) else "different tokens"
        notes.append(f"the vocabularies have {how}: use_heterogeneous_vocab, which came after 0.15")
    lines = [["vllm", "serve", target], ["--speculative-config", json.dumps(config)]]
    return {"vllm.sh": _script(notes, [*lines, *_context("--max-model-len", wanted)])}


def _sglang(wanted: ExportRequest) -> dict[str, str]:
    check = _checked(wanted, lambda: check_same_tokenizer(wanted.target, wanted.draft, "SGLang", padding=False))
    target, draft, sources = _repositories(wanted)
    steps = (wanted.tokens or 5) - 1 or 1
    notes = [
        "SGLang with STANDALONE (its pull request 10090); before 23838 (2026) a vocabulary that differs wasn't noticed",
        "with topk 1 a round drafts one token more than it has steps; the overlap scheduler takes no other topk",
        *check,
        *sources,
    ]
    lines = [
        ["python", "-m", "sglang.launch_server"],
        ["--model-path", target],
        ["--speculative-algorithm", "STANDALONE"],
        ["--speculative-draft-model-path", draft],
        ["--speculative-num-steps", str(steps)],
        ["--speculative-eagle-topk", "1"],
        ["--speculative-num-draft-tokens", str(steps + 1)],
    ]
    return {"sglang.sh": _script(notes, [*lines, *_context("--context-length", wanted)])}


def _tensorrt_llm(wanted: ExportRequest) -> dict[str, str]:
    check = _checked(wanted, lambda: check_same_tokenizer(wanted.target, wanted.draft, "TensorRT-LLM", padding=True))
    target, draft, sources = _repositories(wanted)
    notes = ["TensorRT-LLM 1.x, PyTorch backend", *check, *sources]
    config = [
        "# Draft_Target is what its parser takes; its documentation, and older images, say DraftTarget",
        "speculative_config:",
        "  decoding_type: Draft_Target",
        f"  max_draft_len: {wanted.tokens or 4}",
        f"  speculative_model: {json.dumps(draft)}",
        "disable_overlap_scheduler: true",
    ]
    lines = [["trtllm-serve", target], ["--backend", "pytorch"], ["--config", "tensorrt-llm.yaml"]]
    script = _script(notes, [*lines, *_context("--max_seq_len", wanted)])
    return {"tensorrt-llm.yaml": "\n".join(config) + "\n", "tensorrt-llm.sh": script}


def _llama_server(wanted: ExportRequest) -> dict[str, str]:
    check = _checked(wanted, lambda: check_llama_cpp(wanted.target, wanted.draft, "llama-server"))
    notes = [
        "llama-server of 2026, which has --spec-type: without it a draft model is loaded and never asked",
        *_where(wanted),
        *check,
    ]
    lines = [
        ["llama-server"],
        ["-m", _file(wanted.target)],
        ["-md", _file(wanted.draft)],
        ["--spec-type", "draft-simple"],
        ["--spec-draft-n-max", str(wanted.tokens or 16)],
        ["--spec-draft-n-min", "0"],
        ["--spec-draft-p-min", "0.75"],
        ["-ngld", "99"],
    ]
    return {"llama-server.sh": _script(notes, [*lines, *_context("-c", wanted)])}


def _ollama(wanted: ExportRequest) -> dict[str, str]:
    check = _checked(wanted, lambda: check_llama_cpp(wanted.target, wanted.draft, "Ollama's llama-server"))
    notes = [
        "Ollama 0.30 or later, and an instance of its own: every model that it loads gets this draft model",
        "(a Modelfile's DRAFT is for MTP and DFlash drafts alone). Its scheduler doesn't count the draft's memory.",
        *_where(wanted),
        *check,
    ]
    target, draft = _path(_file(wanted.target)), _path(_file(wanted.draft))
    if not (target.parent.name == "blobs" and target.name.startswith("sha256-")):
        raise UnsupportedPair(f"{target} isn't in a model store, the only place that an Ollama serves models from")
    settings = server_environment(target, draft, wanted.native, wanted.tokens or N_MAX)
    if wanted.context_length:
        settings["OLLAMA_CONTEXT_LENGTH"] = str(wanted.context_length)
    lines = [["env"], *([f"{name}={value}"] for name, value in settings.items()), ["ollama", "serve"]]
    return {"ollama.sh": _script(notes, lines)}


_WRITERS: dict[ExportEngine, Callable[[ExportRequest], dict[str, str]]] = {
    ExportEngine.VLLM: _vllm,
    ExportEngine.SGLANG: _sglang,
    ExportEngine.TENSORRT_LLM: _tensorrt_llm,
    ExportEngine.LLAMA_SERVER: _llama_server,
    ExportEngine.OLLAMA: _ollama,
}


def _checked(wanted: ExportRequest, check: Callable[[], None]) -> list[str]:
    """Warning for vocabularies that can't be compared."""
    if both_known(wanted.target, wanted.draft):
        check()
        return []
    return [_NOT_COMPARED]


def _repositories(wanted: ExportRequest) -> tuple[str, str, list[str]]:
    """Both repositories, and where they come from. Their weights aren't those that Ollama has."""
    target = find_repository(wanted.target, "target-hf", wanted.target_hf)
    draft = find_repository(wanted.draft, "draft-hf", wanted.draft_hf)
    sources = [f"{found.name}: by {found.known_by}" for found in (target, draft)]
    return target.name, draft.name, [*sources, "unquantised weights: replies differ from those of Ollama's files"]


def _file(model: ModelFacts) -> str:
    if not model.file:
        raise UsageError(f"no GGUF file of {model.name} is known: the pair has to name one, or a model on an Ollama")
    return model.file


def _path(file: str) -> PurePath:
    """As its machine writes paths."""
    return PureWindowsPath(file) if PureWindowsPath(file).is_absolute() else PurePosixPath(file)


def _where(wanted: ExportRequest) -> list[str]:
    places = {model.where for model in (wanted.target, wanted.draft) if model.file}
    if len(places) > 1:
        return [f"the files are on {' and on '.join(sorted(places))}: bring them to one machine"]
    return [f"the files are on {place}" for place in places if place != "this machine"]


def _context(flag: str, wanted: ExportRequest) -> list[list[str]]:
    return [[flag, str(wanted.context_length)]] if wanted.context_length else []


def _script(notes: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A shell script: the notes as comments, and the command over several lines."""
    comments = "".join(f"# {note}\n" for note in notes)
    command = " \\\n  ".join(shlex.join(words) for words in lines)
    return f"#!/bin/sh\n{comments}exec {command}\n"
