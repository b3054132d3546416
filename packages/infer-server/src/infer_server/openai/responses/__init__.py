"""OpenAI's Responses API, stateless: https://platform.openai.com/docs/api-reference/responses."""
