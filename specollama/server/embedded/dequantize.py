"""A quantised GGUF file written out with its weights as 32-bit floats: the target of the default pair."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy
from gguf.quants import dequantize

from specollama.backends.llama_cpp.gguf_metadata import read_header
from specollama.config import paths
from specollama.config.atomic_file import replacement
from specollama.errors import RunError

_SKIPPED = ("GGUF.", "general.architecture", "general.file_type")  # written anew, or not metadata


def write_full_precision(source: Path, cache: Path | None = None) -> Path:
    """`source` with its weights as 32-bit floats, in `cache` (None: the user's cache folder).

    Written once, under a name that follows the source's contents; processes that start together each write
    their own temporary file, and the last one renamed stands.
    """
    folder = cache or paths.cache_folder()
    stem = source.stem.rsplit(".", 1)[0]
    header = read_header(source)
    path = folder / f"{stem}.F32.{header.digest[:12]}.gguf"
    if path.is_file():
        return path
    print(f"writing {path} ({4 * header.parameter_count // 10**6} MB, once)", file=sys.stderr)
    try:
        _write(source, path)
    except OSError as error:
        raise RunError(f"can't write {path}: {error.strerror}") from error
    return path


def _write(source: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacement(path) as scratch:
        _dequantize(source, str(scratch))


def _dequantize(source: Path, path: str) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, read_header(source).architecture)
    _copy_metadata(reader, writer)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        writer.add_tensor_info(tensor.name, shape, numpy.dtype("float32"), 4 * tensor.n_elements)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(dequantize(tensor.data, tensor.tensor_type))
    writer.close()


def _copy_metadata(reader: Any, writer: Any) -> None:
    for key, field in reader.fields.items():
        if not key.startswith(_SKIPPED):
            item = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=item)
