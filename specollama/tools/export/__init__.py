"""Set-ups in which an engine drafts and verifies by itself, written from a pair: command lines and files."""
