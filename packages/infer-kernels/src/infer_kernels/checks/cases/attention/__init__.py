"""Attention over a paged cache.

lengths.py     lengths around the kernels' tiles and splits, and memory that must stay unread
long.py        many splits and large pools
runs.py        how the checks compute attention
launches.py    every configuration that ships
"""
