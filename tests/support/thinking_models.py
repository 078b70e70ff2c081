"""GGUF files of a model that thinks: the packaged one, with another chat template."""

from __future__ import annotations

from pathlib import Path

import gguf

from specollama.server.embedded.default_models import packaged_model

_TEMPLATE = "tokenizer.chat_template"
_ANSWERS = "{{ '<|im_start|>assistant\n' }}"

_CONTENT = "message['content']"
_REMEMBERED = (
    "(('<think>\n' + message['reasoning_content'] + '\n</think>\n\n') if message['reasoning_content'] else '') + "
    "message['content']"
)
"""How llama.cpp learns of the tags: it looks at what the template makes of an answer with its thinking."""

OPENED = "{{ '<|im_start|>assistant\n<think>\n' }}{% if false %}</think>{% endif %}"
"""The template opens the thinking itself."""

WRITTEN = _ANSWERS
"""The model writes the opening tag itself."""

SWITCHED = (
    "{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{% else %}{{ '<think>\n' }}{% endif %}"
)
"""It opens it unless told not to think: as Qwen3's does, which then writes an empty thinking."""


def written(path: Path, ending: str, *, source: Path | None = None) -> Path:
    """The model in `path`, its template ending otherwise."""
    reader = gguf.GGUFReader(source or packaged_model())
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == _TEMPLATE:
            template = field.contents()
            assert _ANSWERS in template
            assert template.count(_CONTENT) == 1
            template = template.replace(_ANSWERS, ending).replace(_CONTENT, _REMEMBERED)
            writer.add_key_value(name, template, gguf.GGUFValueType.STRING)
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
