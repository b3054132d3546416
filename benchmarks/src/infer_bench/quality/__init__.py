"""What quantized weights cost in quality: held-out loss, and the answers of a small real model."""
