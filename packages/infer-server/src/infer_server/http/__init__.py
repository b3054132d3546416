"""HTTP inside the ASGI application: bodies, event streams, errors, middleware. Knows no model and no API's shapes."""
