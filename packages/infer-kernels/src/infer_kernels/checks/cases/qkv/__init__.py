"""Queries, keys and values before attention: norms of heads, rotations, stores.

stores.py          `qk_norm_rope_store` at a model's sizes
codes.py           a cache of eight bits: stores, and attention over it
fp8_launches.py    stores in an fp8 cache that ship
"""
