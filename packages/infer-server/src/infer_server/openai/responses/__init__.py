"""`/v1/responses`: OpenAI's Responses API without its state. Its body, its replies, its events, its route."""
