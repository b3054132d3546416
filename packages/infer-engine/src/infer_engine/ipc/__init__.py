"""Messages between the frontend and the core, and the clients of a core in another thread or process."""
