"""Pairs whose target is on an engine that scores given tokens: vLLM, SGLang, TensorRT-LLM, llama-server."""
