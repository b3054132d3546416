"""What tests of kernels need: a faithful interpreter, ahead-of-time compilation, random batches and draws.

Shipped so that other packages' tests can use it. Imports nothing here: `interpreter` also needs numpy,
`draw_strategies` hypothesis.
"""
