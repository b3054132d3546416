"""Kernels as they are launched and compiled, on a machine without a GPU.

ahead_of_time.py         launches up to the point where a GPU would run them
shipped.py               every kernel in every configuration that ships
sass.py                  machine code, and its loops; tensor_products.py its tensor products
instruction_counts.py    cycles and bytes of a main loop; streamed_bits.py the bits of a number that it reads
gpu_cards.py             what cards can do; residency.py how many programs a multiprocessor holds
"""
