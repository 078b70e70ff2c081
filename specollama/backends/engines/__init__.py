"""Engines that score prompts over HTTP: vLLM, SGLang, TensorRT-LLM, llama.cpp's server."""
