"""Publishing: one command runs what README and docs quote, and writes results, tables and pictures."""
