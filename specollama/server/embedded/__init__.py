"""An Ollama-compatible server in process, over llama.cpp: the same engine that Ollama wraps since 0.30.

`serve.serve_models` runs it for the length of a `with` block, `serve.run` until it is interrupted.
"""
