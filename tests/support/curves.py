"""What passes, drafted tokens and reading cost on five machines, in passes over one token.

The first two were measured (Qwen2.5-Coder 0.5B for 1.5B, BF16 and Q4_K_M, 2 cores of a Zen 4 EPYC), the third is from
llama.cpp's issue 10714 (a 13B model in BF16), beyond 12 tokens assumed; the GPU's, bound by memory bandwidth, and the
mixture of experts' (after arXiv 2506.20675) are assumed.
"""

from __future__ import annotations

from tests.support.simulated import Machine

CURVES = {
    "cpu-bf16-2core": Machine(
        {1: 1, 2: 1.36, 3: 1.52, 4: 1.79, 6: 1.97, 8: 2.25, 12: 2.72, 16: 3.28, 32: 5.6}, step=0.14, reading=0.03
    ),
    "cpu-q4-2core": Machine(
        {1: 1, 2: 1.63, 3: 2.16, 4: 2.67, 6: 4.1, 8: 5.98, 12: 6.4, 16: 6.82, 32: 13}, step=0.3, reading=0.08
    ),
    "cpu-bf16-8core": Machine({1: 1, 4: 1.02, 8: 1.04, 12: 1.06, 16: 1.2, 32: 1.8}, step=0.1, reading=0.01),
    "gpu-flat": Machine({1: 1, 2: 1.01, 4: 1.02, 8: 1.05, 16: 1.12, 32: 1.3}, step=0.08, reading=0.001),
    "moe-steep": Machine(
        {1: 1, 2: 1.6, 3: 2.1, 4: 2.5, 6: 3.2, 8: 3.8, 12: 4.7, 16: 5.4, 32: 7.5}, step=0.1, reading=0.002
    ),
}
