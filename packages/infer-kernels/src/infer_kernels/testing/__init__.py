"""What tests of kernels need: a faithful interpreter, ahead-of-time compilation, random batches, coverings of grids.

Other packages' tests use it too. It imports nothing here: `interpreter` also needs numpy, `draw_strategies` hypothesis,
`pairwise` pytest and allpairspy.
"""
