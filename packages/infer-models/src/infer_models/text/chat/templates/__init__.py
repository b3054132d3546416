"""Chat templates: how one is rendered, what it sees of messages, what it leaves out, and how it calls switches."""
