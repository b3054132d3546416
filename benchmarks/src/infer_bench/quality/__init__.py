"""The quality lost with quantized weights: held-out loss, and the answers of a small real model."""
