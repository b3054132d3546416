"""What tests, benchmarks and reports share. Users install none of it, and only `infer_bench` imports it in its sources.

Each part imports the package of its name and those below it, so that a package's tests run where only that package and
what it needs are installed; `text` imports `infer_models`, and no torch.
"""
