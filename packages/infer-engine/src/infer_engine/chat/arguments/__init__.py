"""The arguments of a tool call: how they are read, and what they may be.

tool_schemas         the JSON Schema of a tool's arguments, as far as it can be kept
json_object_reader   the end of arguments that are a JSON object
parameter_types      which JSON types a parameter may have
parameter_reader     arguments that are written one by one -> JSON
parameter_grammar    the grammar of such arguments; `text_values` of those that are texts
marks                the texts around calls in grammars, where some of them are special tokens
"""
