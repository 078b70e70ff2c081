"""Loads a pair's models in this process: options, timings, and faster requantized copies of draft models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specollama.backends.llama_cpp import profiling, requantize
from specollama.backends.llama_cpp.gguf_metadata import refuse_unreadable
from specollama.backends.llama_cpp.model import DamagedFile, LlamaModel, LoadOptions
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.timings import doubt_text
from specollama.config.settings import PairSettings
from specollama.errors import RunError

_CONTEXT = 4096  # tokens, where nobody says: Ollama's own default


_SAMPLE = "The ship left the harbour at dawn, and the keeper of the light wrote its name into the log, as every day."


_Timing = tuple[Sequence[int], int]  # tokens in the passes that are timed, and how often each is


_TARGET_TIMING: _Timing = profiling.PASS_SIZES, profiling.REPEATS


_DRAFT_TIMING: _Timing = (1,), 8


_LOOKS = 8  # at each of two models that are weighed against each other


_REQUANTIZED = "-requantized"  # in the keys of quicker copies


@dataclass(slots=True)
class LoadedModel:
    """A model, its tokenizer and its costs. `shares_tokenizer`: its tokens are the target's."""

    name: str
    model: LlamaModel
    vocabulary: LlamaTokenizer
    key: str
    costs: profiling.ModelProfile
    timing: _Timing
    shares_tokenizer: bool = True

    @property
    def original_key(self) -> str:
        """The key of the file itself, where this is its quicker copy."""
        return self.key.removesuffix(_REQUANTIZED)

    def measure(self) -> None:
        """Time the model again. Raises RunError when llama.cpp fails."""
        self.costs = _profile(self.model, self.vocabulary, self.timing)

    def close(self) -> None:
        self.model.close()
        self.vocabulary.close()


def load_options(options: Mapping[str, Any], settings: PairSettings) -> LoadOptions:
    """How to open the models, by Ollama's options and the pair's own."""
    layers = options.get("num_gpu")
    return LoadOptions(
        context_length=options.get("num_ctx") or _CONTEXT,
        threads=options.get("num_thread") or None,
        batch_threads=settings.batch_threads,
        gpu_layers=-1 if layers is None else layers,
        kv_type=settings.kv_type or "f16",
        mmap=options.get("use_mmap") is not False,
    )


@dataclass(slots=True)
class ModelLoader:
    """Loads models, and times those without a profile. Of a draft model it loads the fastest copy.

    `profiles`: the models' costs, by key; `notices`: lines for the user.
    """

    options: LoadOptions
    requantize: bool
    profiles: dict[str, profiling.ModelProfile]
    notices: list[str]

    def load_drafts(self, files: Mapping[str, Path], stopped: Callable[[], bool]) -> list[LoadedModel]:
        """Open those that can be opened. The others are left out, with a notice that says why.

        Raises RunError when the wait was cancelled.
        """
        opened = list[LoadedModel]()
        with ExitStack() as undo:
            for name, path in files.items():
                try:
                    opened.append(self.load_draft(name, path))
                except RunError as error:
                    self.notices.append(why_left_out(name, error))
                else:
                    undo.callback(opened[-1].close)
            if stopped():
                raise RunError("nobody waits for the models any more")
            undo.pop_all()
        return opened

    def load_target(self, path: Path) -> LoadedModel:
        """Raises RunError when it can't be opened."""
        return self._load("", path, profiling.model_key(path, self.options), _TARGET_TIMING)

    def load_draft(self, name: str, path: Path) -> LoadedModel:
        """The model, or its quicker copy (backends.llama_cpp.requantize). Raises RunError when it can't be opened."""
        copy, (key, copied) = requantize.copy_path(path), self._keys(path)
        weighed = key in self.profiles and copied in self.profiles  # against each other, an earlier time
        if self.requantize and weighed and self._copy_is_faster(key, copied) and copy.exists():
            with suppress(DamagedFile):
                return self._load_draft_file(name, copy, copied)
            requantize.delete_copy(copy)  # it is made anew
        draft = self._load_draft_file(name, path, key)
        tried = weighed and not self._copy_is_faster(key, copied)
        if not self.requantize or tried or not requantize.may_help(draft.model, self.options):
            return draft
        try:
            return self._fastest(draft, copy, copied, weighed=weighed)
        except RunError as error:
            self.notices.append(f"no quicker copy of {name}: {error} (`requantize = false` in the pair asks for none)")
            return draft

    def _keys(self, path: Path) -> tuple[str, str]:
        key = profiling.model_key(path, self.options)
        return key, f"{key}{_REQUANTIZED}"

    def _copy_is_faster(self, key: str, copied: str) -> bool:
        return requantize.is_faster(self.profiles[key].passes[1], self.profiles[copied].passes[1])

    def _fastest(self, draft: LoadedModel, copy: Path, copied: str, *, weighed: bool) -> LoadedModel:
        """The draft model or its copy. Raises RunError when the copy can't be made or opened."""
        other = self._load_copy(draft, copy, copied)
        until = None if weighed else self._weigh(draft, other)
        doubt = doubt_text(until)
        if not self._copy_is_faster(draft.key, copied):
            other.close()
            if doubt:
                self.notices.append(f"{draft.name} drafts as it is, not from its copy in 4 bits: {doubt}")
            else:
                requantize.delete_copy(copy)
            return draft
        draft.close()
        times = f"{draft.costs.passes[1] / other.costs.passes[1]:.1f} times as fast "
        where = f"from a copy in 4 bits, kept in {_home_relative(copy.parent)}"
        self.notices.append(
            f"{draft.name} drafts {where} ({doubt})" if doubt else f"{draft.name} drafts {times}{where}"
        )
        return other

    def _load_copy(self, draft: LoadedModel, copy: Path, key: str) -> LoadedModel:
        """The copy, made where it is missing or damaged. Raises RunError when it can't be made or opened."""
        if copy.exists():
            try:
                return self._load_draft_file(draft.name, copy, key)
            except DamagedFile:
                requantize.delete_copy(copy)
        requantize.write_copy(draft.model.path, copy)
        return self._load_draft_file(draft.name, copy, key)

    def _weigh(self, draft: LoadedModel, copy: LoadedModel) -> float | None:
        """Time draft and copy in turn. Returns when to time them again (Unix time); None: the result is sound."""
        both = (draft, copy)
        texts = [list(opened.vocabulary.encode(_SAMPLE)) for opened in both]
        steps = profiling.steps_in_turn([opened.model for opened in both], texts, _LOOKS)
        of_draft, of_copy = steps
        until = requantize.compared_until(of_draft, of_copy)
        for opened, looks in zip(both, steps, strict=True):
            opened.costs = opened.costs.model_copy(update={"passes": {1: min(looks)}, "until": until})
            self.profiles[opened.key] = opened.costs
        return until

    def _load_draft_file(self, name: str, path: Path, key: str) -> LoadedModel:
        return self._load(name, path, key, _DRAFT_TIMING)

    def _load(self, name: str, path: Path, key: str, timing: _Timing) -> LoadedModel:
        with ExitStack() as undo:
            undo.callback((model := LlamaModel(path, self.options)).close)
            undo.callback((vocabulary := LlamaTokenizer(path)).close)
            known = self.profiles.get(key)
            if known is None or 1 not in known.passes or len(known.passes) < min(2, len(timing[0])):  # no curve
                self.profiles[key] = _profile(model, vocabulary, timing)
            undo.pop_all()
        return LoadedModel(name, model, vocabulary, key, self.profiles[key], timing)


def readable_drafts(files: Mapping[str, Path]) -> tuple[dict[str, Path], list[str]]:
    """The draft models whose files can be read, by name, and a notice for each of the others."""
    readable, notices = dict[str, Path](), list[str]()
    for name, path in files.items():
        try:
            refuse_unreadable(path)
        except RunError as error:
            notices.append(why_left_out(name, error))
        else:
            readable[name] = path
    return readable, notices


def why_left_out(name: str, error: RunError) -> str:
    """The notice about a draft model that can't be used: the target's replies don't depend on it."""
    return f"{name} doesn't draft: {error}"


def _home_relative(path: Path) -> str:
    """A path as a person writes it."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _profile(model: LlamaModel, vocabulary: LlamaTokenizer, timing: _Timing) -> profiling.ModelProfile:
    return profiling.profile_model(model, list(vocabulary.encode(_SAMPLE)), *timing)
