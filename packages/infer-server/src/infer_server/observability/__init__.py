"""Everything for operators: health, metrics, logs, traces. Knows no prompt and no sampling."""
