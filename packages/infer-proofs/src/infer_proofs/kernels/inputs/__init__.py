"""Inputs of tests of ops: attention of a whole batch, and strategies that draw rows to sample."""
