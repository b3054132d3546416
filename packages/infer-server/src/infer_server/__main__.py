"""`python -m infer_server`: the command line, where the `infer-server` script is not on the path."""

import sys

from infer_server.cli import main

sys.exit(main())
