"""The arguments of a tool call: how they are read, and what they may be.

tool_schemas         the JSON Schema of a tool's arguments, as far as it can be kept
readers              what reads the arguments of a format, and makes JSON of them as they arrive
json_object_reader   the end of arguments that are a JSON object
parameter_types      which JSON types a parameter may have
parameter_reader     arguments that are written one by one -> JSON
parameter_grammar    the grammar of such arguments; `text_values` of those that are texts
literal_reader       arguments that are literals of Python, or Gemma's -> JSON
literal_grammar      the grammar of such arguments; `literal_texts` of the texts in them
marks                the texts around calls in grammars, where some of them are special tokens
"""
