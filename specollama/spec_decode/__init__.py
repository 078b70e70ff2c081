"""The algorithm of speculative decoding: what to draft, how to verify, what comes out. No I/O, no numpy."""
