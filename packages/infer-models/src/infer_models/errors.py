"""What goes wrong with a checkpoint. Knows no file format."""


class CheckpointError(Exception):
    """A checkpoint cannot be used: the message is one line that names the file and the cause."""
