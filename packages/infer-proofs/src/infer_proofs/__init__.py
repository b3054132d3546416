"""What tests, benchmarks and reports share. Users install none of it, and only `infer_bench` imports it in its sources.

A part of the name of each of our packages imports that package and the ones below it: `infer_proofs.kernels` needs
`infer_kernels` alone.
"""
