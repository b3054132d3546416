"""Chat answers: what takes them apart, and the grammars that bind them.

formats          the parser and the grammar of a conversation, by the formats of its model
output_parser    an answer -> reasoning, content, tool calls; `channel_parser` where answers have channels
output_grammar   the grammar of a whole answer, or of the arguments of its calls
arguments        how the arguments of calls are read, and what they may be
call_constraint  which tokens a sequence may take next where only arguments of calls are bound
"""
