"""The error that every damaged or unsupported checkpoint raises."""


class CheckpointError(Exception):
    """A checkpoint cannot be used: the message is one line that names the file and the cause."""
