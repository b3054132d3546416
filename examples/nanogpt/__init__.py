"""A character-level GPT from training to continuous batching, in three programs: `train`, `sample`, `simulate`."""
