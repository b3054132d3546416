"""JSON Schemas as grammars: which keywords and values can be kept, in which dialects, and what they are widened to."""
