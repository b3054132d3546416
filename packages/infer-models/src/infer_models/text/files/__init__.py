"""Reads the files of a tokenizer, in every layout that `transformers` reads."""
