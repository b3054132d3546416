"""What the APIs that generate text share: fields and their checks, the handling of a request, parts of answers."""
