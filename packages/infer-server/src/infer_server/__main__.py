"""`python -m infer_server`: the same as the `infer-server` script."""

import sys

from infer_server.cli import main

sys.exit(main())
