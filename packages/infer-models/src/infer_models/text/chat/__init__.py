"""Conversations: chat templates, formats of calls and reasoning, prompts in which no message is a control token."""
