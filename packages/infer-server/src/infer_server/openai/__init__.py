"""The OpenAI API: request bodies, responses, routes. Knows what requests mean; leaves bytes to `infer_server.http`."""
