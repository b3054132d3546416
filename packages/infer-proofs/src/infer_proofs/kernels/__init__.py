"""Tools for tests and reports of kernels, which compile, interpret and count them; no GPU is needed.

compiled/          ahead-of-time compilation without a GPU, and what is counted from machine code
interpreted/       Triton's interpreter made faithful
simulated_gpu/     a made-up CUDA device
inputs/            attention of a whole batch; Hypothesis' strategies of draws
kernel_bits.py     a program that prints checksums of what C++ kernels compute, to compare compilers and systems
states_in_turn.py  rows of a sequence in one call and in several
pairwise.py        coverings of grids of test parameters: of all pairs, and by triples.py of all triples
cpu_kernels.py     which tests need C++ kernels; devices.py: on which devices a test runs
threads.py         a given number of torch threads; python_instructions.py counts the instructions of Python

`compiled`, `interpreted` and `simulated_gpu` need Triton, `interpreted` also numpy, `inputs.draw_strategies`
hypothesis, `cpu_kernels` and `devices` pytest, `pairwise` pytest and allpairspy.
"""
