"""The files of a checkpoint: which ones hold the weights, and what each says of its tensors."""
