"""`infer-server`, and `python -m infer_server`: the command line, on a system that it runs on."""

import sys

WINDOWS = (
    "infer-server: Windows is not supported; in WSL2 (`wsl --install`) infer runs as on Linux, with NVIDIA's GPUs too."
)


def main() -> int:
    """Run the command line with the process's arguments, and return the exit code."""
    if sys.platform == "win32":
        print(WINDOWS, file=sys.stderr)
        return 2
    from infer_server import cli  # noqa: PLC0415 - it imports modules that Windows lacks, such as `fcntl`

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
