"""The text side of the engine: input and output processing, streams, and the engines that callers use."""
