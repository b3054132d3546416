"""The OpenAI API: bodies, replies, routes. Knows what requests mean; leaves bytes to `infer_server.http`."""
