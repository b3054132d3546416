"""What the files of a tokenizer say, in every layout that `transformers` reads."""
