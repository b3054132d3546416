"""`infer_engine.tensor_parallel.follower` where kernels are Triton's, interpreted."""

import sys

from infer_engine.tensor_parallel.follower import main
from infer_engine.testing.interpreted import compute_as_a_gpu

if __name__ == "__main__":
    compute_as_a_gpu()
    sys.exit(main())
