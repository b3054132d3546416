"""The cases of each op: comparisons at a model's sizes, and the configurations that ship."""
