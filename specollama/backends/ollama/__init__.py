"""An Ollama server as target and drafter: requests, model facts, probing, scoring."""
