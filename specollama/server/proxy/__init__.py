"""A server that existing clients of Ollama use unchanged: it speculates for the configured pairs."""
