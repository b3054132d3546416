"""The errors of requests that the engine accepted and did not finish."""

from infer_engine.protocol import FinishReason, StepOutput
from infer_server.errors import ApiError


def shutdown_error() -> ApiError:
    """Return the error for a request that the server's shutdown has aborted."""
    return ApiError(
        503,
        "The server is shutting down and could not finish this request; send it again.",
        code="engine_unavailable",
        retry_after_s=1,
    )


def raise_if_failed(output: StepOutput) -> None:
    """Raise the error of a failed request.

    Raises:
        ApiError: 500, `output` has an error.
    """
    if output.error is not None:
        raise ApiError(500, output.error.message, code=output.error.code)


def raise_if_unfinished(output: StepOutput) -> None:
    """Raise the error of a request that has failed, or that the server's shutdown has aborted.

    Raises:
        ApiError: 500 or 503.
    """
    raise_if_failed(output)
    if output.finish_reason is FinishReason.ABORT:
        raise shutdown_error()
