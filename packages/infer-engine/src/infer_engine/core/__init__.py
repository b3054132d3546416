"""The engine core: token ids in, token ids out, one step at a time. Knows no text, no tensors and no I/O."""
