"""Assembles what a configuration asks for.

engine         input processor + core client -> `AsyncEngine`
core           model runner + KV cache manager + scheduler -> `EngineCore`
runner         weights + KV pool + sampler -> `ModelRunner`
replicas       one core process for each replica
core_process   the program of a core process
"""
