"""Measures the engine, the server and the kernels. Imports all other packages; none of them imports it."""
