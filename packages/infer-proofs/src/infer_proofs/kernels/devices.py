"""`DEVICES`: where tests run of what a device computes. `ON_GPU`: the marks of those that need an NVIDIA GPU."""

import pytest
import torch

ON_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
DEVICES = ("cpu", pytest.param("cuda", marks=ON_GPU))
