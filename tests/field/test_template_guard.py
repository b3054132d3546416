"""What a chat template does not write of conversations is said once, when the engine starts."""

from pathlib import Path

import pytest

from infer_engine import LLM
from infer_models.testing import save_scripted

FIRST_SYSTEM_ONLY = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{{ tools | tojson }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALL = FIRST_SYSTEM_ONLY.replace("m.role != 'system' or loop.first", "true")


def warnings_of(folder: Path, chat_template: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    save_scripted(folder, ["yes"], chat_template=chat_template)
    LLM(str(folder), max_seq_len=512, kv_cache_memory=2**22, use_cpu_graphs=False)
    return [record.getMessage() for record in caplog.records if "chat template" in record.getMessage()]


def test_what_a_template_leaves_out_is_said_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (said,) = warnings_of(tmp_path / "m", FIRST_SYSTEM_ONLY, caplog)
    assert said == (
        "The chat template does not write everything that conversations may have: further system messages at the "
        "beginning (joined with the first), later system messages (the user's where they stand)."
    )


def test_nothing_is_said_of_a_template_that_writes_everything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(tmp_path / "m", ALL, caplog) == []
