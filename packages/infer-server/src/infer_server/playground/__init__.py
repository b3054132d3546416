"""The playground: the page at `/` and the data of its live view."""
