"""What is measured on a GPU, in one call: `first_light.py`."""
