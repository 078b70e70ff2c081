"""HTTP servers that speak Ollama's API: the proxy, the embedded one, and what they share."""
