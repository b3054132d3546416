"""`infer_engine.executor.worker_process` where kernels are Triton's, interpreted."""

import sys

from infer_engine.executor.worker_process import main
from infer_proofs.engine.interpreted.engine import compute_as_a_gpu

if __name__ == "__main__":
    compute_as_a_gpu()
    sys.exit(main())
