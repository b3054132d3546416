"""The cases of each op, in one table (`OpCases`) for the ops of a room; `all_ops.py` lists the tables.

OpCases   checks, repeated_checks, large_checks, misaligned_checks -> `model_checks`, which the doctor runs
launches -> `compiled.shipped.SHIPPED_CASES`, which are compiled ahead of time, counted and reported
calls -> comparisons with the references at odd shapes, on every path
"""
