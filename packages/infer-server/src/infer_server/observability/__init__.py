"""What operators need: health, metrics, logs, traces. Knows no prompt and no sampling."""
