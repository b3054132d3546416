"""What no command of the publication writes: pictures and typed numbers, each with the reason."""

from infer_bench.publish.declared import Result

_OLDER = "its command, or the form of its result, is another one today"

STALE: dict[str, str] = {}
"""Results that are to be measured again, by name, with the reason. Until then nothing is asked of their files; a test
fails on an entry that is not needed."""

PICTURES_BY_HAND = {
    "nanogpt-loss.png": "`examples/nanogpt/train.py` draws it; its text is not in this repository",
    **dict.fromkeys(
        (
            "playground-batch-dark.png",
            "playground-batch-light.png",
            "playground-chat.png",
            "playground-completion-dark.png",
            "playground-phone.png",
            "playground-tools.png",
        ),
        "`nox -s browser` takes it, in a real Chromium",
    ),
}
"""Pictures in `docs/images` that show no result."""

_A_LIMIT = "a limit, a goal or an order of magnitude; nothing was measured"
_BY_HAND = "measured by hand, by scripts that were not kept"
_AMX = "a Xeon with AMX and peers in environments of their own, at the commit that is named"

TYPED: dict[tuple[str, str], str] = {}
"""Sections, by page and heading, that quote numbers which people have typed."""

_ = Result, _OLDER, _A_LIMIT, _BY_HAND, _AMX
