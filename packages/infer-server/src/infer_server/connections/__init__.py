"""The HTTP server on its sockets: listening, connections, deadlines, signals. Knows bytes; knows no route."""
