"""Renders a chat with the chat template of a GGUF file, for models without a server that renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specollama.backends.llama_cpp.tokenizer import import_llama
from specollama.errors import MissingPackage, RunError, one_line


def render_chat(template: str, messages: Sequence[Mapping[str, Any]], *, begin: str, end: str) -> str:
    """The prompt, generation prompt included. `begin` and `end`: texts of the BOS and EOS tokens.

    Raises RunError when the template fails on these messages, MissingPackage without llama-cpp-python or jinja2.
    """
    import_llama()
    try:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter
    except ImportError as error:
        raise MissingPackage(f"{error.name} isn't installed: `pip install 'specollama[local]'`") from error
    try:
        formatter = Jinja2ChatFormatter(template, eos_token=end, bos_token=begin)
        return str(formatter(messages=[dict(message) for message in messages]).prompt)
    except Exception as error:  # a template is code from the file, and may raise anything
        why = one_line(str(error)) or type(error).__name__
        raise RunError(f"the model's own chat template refuses this chat: {why}") from error
