"""Whether the library's linears give a row the same bits in every batch.

    uv run python -m infer_bench.kernels.row_invariance

Prints JSON: for each setting and layer, the numbers of rows whose results differ from those of the same rows in the
largest batch. cuBLAS reads its workspace settings, `CUBLAS_WORKSPACE_CONFIG`, once a process.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

ROWS = (*range(1, 18), 24, 32, 48, 64, 100, 128, 200, 256, 512, 513, 1024, 2048, 4096)
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (2560, 2560))
"""[out_features, in_features] of Llama 8B's layers and head, and of a small one."""
SETTINGS = ("default", "no split-K", "no split-K, cublaslt", "no split-K, cublas")


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two small layers")
    args = parser.parse_args()
    layers, rows = (((96, 64), (64, 128)), (1, 2, 7, 16)) if args.tiny else (LAYERS, ROWS)
    found: dict[str, dict[str, list[int]]] = {}
    for setting in SETTINGS:
        with library(setting):
            found[setting] = {
                f"{width} to {out}": differing_rows(out, width, rows, args.device) for out, width in layers
            }
    print(json.dumps({"largest_batch": max(rows), "differing_rows": found}))


@contextmanager
def library(setting: str) -> Iterator[None]:
    """Set what `setting` says, and reset it."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    preferred = torch.backends.cuda.preferred_blas_library() if torch.cuda.is_available() else None
    try:
        if setting != "default":
            # (reduced precision, split-K): torch 2.10 and later take the pair.
            matmul.allow_bf16_reduced_precision_reduction = (False, False)
        if preferred is not None and "cublas" in setting:
            torch.backends.cuda.preferred_blas_library(setting.rpartition(" ")[2])
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before
        if preferred is not None:
            torch.backends.cuda.preferred_blas_library(preferred)


def differing_rows(out_features: int, in_features: int, counts: tuple[int, ...], device: str) -> list[int]:
    """Return the numbers of rows whose results are not those of the same rows among `max(counts)`."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(max(counts), in_features, generator=generator, device=device).bfloat16()
    weight = torch.randn(out_features, in_features, generator=generator, device=device).bfloat16()
    whole = functional.linear(x, weight)
    return [rows for rows in counts if not torch.equal(functional.linear(x[:rows], weight), whole[:rows])]


if __name__ == "__main__":
    main()
