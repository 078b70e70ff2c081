"""Models opened in process by llama.cpp: target, drafter, tokenizer, timings."""
