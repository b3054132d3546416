"""Weights of four and eight bits: dense layers, the embedding, and experts.

checks.py      each format of a model's weights
launches.py    every configuration that ships
"""
