"""Mixtures of experts.

experts.py     the router's choice, and the experts' sum
routed.py      steps of few rows: the router between two products, and the experts' sum with its norm
launches.py    every configuration that ships
"""
