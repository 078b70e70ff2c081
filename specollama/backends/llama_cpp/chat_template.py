"""Renders a chat with the template inside a GGUF, where no server renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specollama.backends.llama_cpp.tokenizer import import_llama
from specollama.errors import MissingPackage, RunError, one_line


def render_chat(template: str, messages: Sequence[Mapping[str, Any]], *, begin: str, end: str) -> str:
    """The prompt, with the beginning of the answer. `begin` and `end`: the texts of the model's own markers.

    Raises RunError when the template can't make a prompt of these messages.
    """
    import_llama()
    try:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter
    except ImportError as error:
        raise MissingPackage(f"{error.name} isn't installed: `pip install 'specollama[local]'`") from error
    try:
        formatter = Jinja2ChatFormatter(template, eos_token=end, bos_token=begin)
        return str(formatter(messages=[dict(message) for message in messages]).prompt)
    except Exception as error:  # a template is a program of the file's, and may raise anything
        why = one_line(str(error)) or type(error).__name__
        raise RunError(f"the model's own chat template refuses this chat: {why}") from error
