"""Tools that tests, benchmarks and reports share. Users install none of it; of sources only `infer_bench` imports it.

Each part imports the package of its name and those below it, so that a package's tests run where only that package and
what it needs are installed; `text` imports `infer_models`, and no torch.
"""
