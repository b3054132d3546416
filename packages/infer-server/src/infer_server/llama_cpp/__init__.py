"""`POST /infill`, in llama.cpp's shape: its body, its replies, its route."""
