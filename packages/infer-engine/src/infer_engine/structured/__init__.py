"""Structured output: from what a client asks for to the tokens that may come next.

grammar_text   `StructuredOutputs` -> the text of a grammar, after checks that take linear time
json_schema/   which JSON Schemas can be kept, and what becomes of the others: references, keywords, values, dialects
sandbox        compiles a grammar in a process of its own first, with limits of time and memory
compiler       compiles it where it is used, and keeps the latest ones
constraint     which tokens a sequence may take next
"""
