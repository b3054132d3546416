"""`python -m infer_bench NAME`."""

import sys

from infer_bench.registry import main

if __name__ == "__main__":
    sys.exit(main())
