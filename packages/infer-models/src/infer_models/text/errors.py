"""The error of a text that has too many tokens."""


class TextTooLongError(ValueError):
    """A text has more tokens than its caller can take.

    Attributes:
        num_tokens: number of its tokens, at least.
    """

    def __init__(self, num_tokens: int) -> None:
        """`num_tokens` is a lower bound."""
        super().__init__(num_tokens)
        self.num_tokens = num_tokens

    def __str__(self) -> str:
        """Return the message."""
        return f"the text has at least {self.num_tokens} tokens, more than are allowed; shorten it."
