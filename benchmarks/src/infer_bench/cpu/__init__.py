"""Where the time of a step goes on a CPU, and the least that it can take."""
