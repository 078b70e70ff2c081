"""A copy of a draft model in the quantization that a CPU runs fastest: written once, kept in the cache folder.

What a draft model writes is judged by the target, so that its weights may be rounded anew without the reply changing.
llama.cpp repacks 4-bit blocks for the processor's widest instructions; other types are several times as slow a byte.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time
from typing import Any

from specollama.backends.llama_cpp.memory_needs import weight_bytes
from specollama.backends.llama_cpp.model import LlamaModel, LoadOptions
from specollama.backends.llama_cpp.tokenizer import import_llama, offloads_to_gpu, silence_llama_log
from specollama.backends.timings import DOUBTED_FOR, valid_until
from specollama.config import paths
from specollama.config.atomic_file import replacement
from specollama.errors import RunError

MAX_RELATIVE_STEP = 0.9  # of the step as it was, that a copy must stay below to be worth having
MAX_CREDIBLE_RATIO = 10.0  # times as fast: 4 bits in place of 32 are an eighth of the bytes
MAX_FILE_BYTES = 2 * 2**30  # bytes of a file that is copied unasked: some ten seconds of work
_ABANDONED_AFTER = 3600  # seconds: no copy takes so long


def copy_path(path: Path) -> Path:
    """Path of a model's copy."""
    file = path.stat()
    said = (str(path.resolve()), file.st_size, file.st_mtime_ns)
    name = hashlib.sha256(repr(said).encode()).hexdigest()[:32]
    return paths.cache_folder() / "drafts" / f"{name}-q4_0.gguf"


def source_path(copy: Path) -> Path:
    """The file beside a copy that names the model it was made of."""
    return copy.with_suffix(".source")


def is_orphan(copy: Path) -> bool:
    """Whether the model that a copy was made of is gone or has changed. False where no file names the model."""
    try:
        source = Path(source_path(copy).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    try:
        return copy_path(source) != copy
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # a drive that isn't reachable now: not known to be gone
        return False


def delete_copy(copy: Path) -> None:
    """Delete a copy and the file that names its model. Raises OSError."""
    copy.unlink(missing_ok=True)
    source_path(copy).unlink(missing_ok=True)


def may_help(model: LlamaModel, options: LoadOptions) -> bool:
    """Whether a copy could be quicker: run by the processor, of another type than the copy's, and of bearable size."""
    on_gpu = options.gpu_layers != 0 and offloads_to_gpu()
    quick = model.metadata("general.file_type") == str(import_llama().LLAMA_FTYPE_MOSTLY_Q4_0)
    return not on_gpu and not quick and weight_bytes(model.path) <= MAX_FILE_BYTES


def is_faster(step: float, copied: float) -> bool:
    """Whether a copy is worth having, by seconds of a step as the file is and as its copy."""
    return copied < MAX_RELATIVE_STEP * step


def compared_until(steps: Sequence[float], copied: Sequence[float], now: Callable[[], float] = time) -> float | None:
    """When the two are to be weighed anew (seconds since 1970), by the looks at their steps; None: it is sound.

    A factor that no copy can have comes from a bad moment, too.
    """
    if min(steps) > MAX_CREDIBLE_RATIO * min(copied):
        return now() + DOUBTED_FOR
    return valid_until(steps, copied, now=now)


def write_copy(path: Path, copy: Path) -> None:
    """Write the copy, whole or not at all. Raises RunError with the reason when that fails."""
    llama = import_llama()
    silence_llama_log(llama)
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        _delete_abandoned(copy.parent)
        if shutil.disk_usage(copy.parent).free < 2 * weight_bytes(path):
            raise RunError(f"too little room in {copy.parent}")
        with replacement(copy) as scratch:
            if llama.llama_model_quantize(os.fsencode(path), os.fsencode(scratch), _parameters(llama)):
                raise RunError(f"llama.cpp can't write {path.name} in other types")
        with replacement(source_path(copy)) as scratch:
            scratch.write_text(str(path.resolve()), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{copy.parent}: {error.strerror or error}") from None


def _delete_abandoned(folder: Path) -> None:
    """Delete the scratch files (*.tmp) that killed processes of version 0.1 left."""
    for left in folder.glob("*.tmp"):
        if time() - left.stat().st_mtime > _ABANDONED_AFTER:
            left.unlink(missing_ok=True)


def _parameters(llama: Any) -> Any:
    parameters = llama.llama_model_quantize_default_params()
    parameters.ftype = llama.LLAMA_FTYPE_MOSTLY_Q4_0
    parameters.allow_requantize = True
    parameters.pure = True  # the large output layer, too: it is a third of a small model's work
    return parameters
