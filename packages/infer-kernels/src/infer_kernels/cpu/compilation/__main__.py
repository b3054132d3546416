"""Runs `program` without the package around this one, which imports torch."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(import_module("compilation.program").main(sys.argv[1]))
