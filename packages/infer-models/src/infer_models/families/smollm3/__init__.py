"""SmolLM 3."""
