"""The common part of APIs that generate text: fields and their checks, the handling of a request, parts of answers."""
