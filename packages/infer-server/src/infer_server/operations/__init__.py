"""What operators need: health, metrics, logs, traces. Knows no request's meaning."""
