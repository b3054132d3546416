"""Tools that tests, benchmarks and reports share. Users install none of it; of sources only `infer_bench` imports it.

A part of the name of each of our packages imports that package and the ones below it: `infer_proofs.kernels` needs
`infer_kernels` alone.
"""
