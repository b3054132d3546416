"""Speculative decoding: tokens that a request may take next are drafted, and verified in one step.

A draft is a row of the step that exists: the sequence as if it had taken the drafts before it. Each row draws its token
by the request's own random numbers. While a draw equals the draft of the next row, that row's logits are those of the
sequence, so the tokens are the same as one by one, greedy and sampled.
"""
