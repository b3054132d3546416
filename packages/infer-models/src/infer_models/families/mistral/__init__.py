"""Mistral, Ministral and Mixtral."""
