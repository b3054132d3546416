"""From logits to each request's next token. Knows requests' parameters and tensors; knows no model and no schedule."""

from infer_engine.sampling.sampler import Sampler

__all__ = ["Sampler"]
