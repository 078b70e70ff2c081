"""Lossless speculative decoding for Ollama, on the client's side."""

__version__ = "0.1.0"
