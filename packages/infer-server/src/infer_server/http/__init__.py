"""HTTP itself: the socket, bodies, streams, errors, who goes away. Knows no model and no API's shapes."""
