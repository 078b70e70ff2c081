"""What servers of Ollama's API have in common, the embedded one and the proxy."""
