"""First light: the checks and measurements of the whole engine on a GPU. Knows every package; is used by none."""
