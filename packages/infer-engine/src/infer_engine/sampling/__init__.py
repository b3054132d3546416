"""From logits to each request's next token. Knows requests' parameters and tensors; knows no model and no schedule."""
