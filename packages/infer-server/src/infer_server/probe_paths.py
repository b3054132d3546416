"""Paths that probes and scrapers ask for: they need no API key, and are neither logged nor traced."""

ALIVE = ("/health", "/healthz", "/livez", "/ping", "/v2/health/live")
"""Whether the server has to be restarted; the others are the names of Kubernetes' programs, SageMaker and KServe."""
READY = ("/ready", "/readyz", "/v2/health/ready")
"""Whether it takes requests."""
METRICS = "/metrics"
PROBE_PATHS = frozenset({*ALIVE, *READY, METRICS})
