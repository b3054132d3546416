"""What is said where Triton cannot launch."""

import pytest

from infer_kernels import gpu
from infer_kernels.gpu import LauncherUnusableError, require_launcher


class Driver:
    """Triton's driver, as far as it is asked; it fails as it does without a compiler."""

    def __init__(self, error: Exception | None) -> None:
        self.num_prepared = 0
        self._error = error

    @property
    def active(self) -> "Driver":
        return self

    @property
    def utils(self) -> object:
        self.num_prepared += 1
        if self._error is not None:
            raise self._error
        return object()


def test_the_launcher_is_prepared_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(None)
    monkeypatch.setattr(gpu, "driver", driver)
    require_launcher()
    assert driver.num_prepared == 1


def test_an_error_names_the_compiler_and_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "driver", Driver(RuntimeError("Failed to find C compiler.")))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LauncherUnusableError, match=r"clang or gcc in `PATH`\): none\. .*Python\.h, .*Failed to find"):
        require_launcher()
    monkeypatch.setenv("CC", "/usr/bin/some-cc")
    with pytest.raises(LauncherUnusableError, match="/usr/bin/some-cc"):
        require_launcher()
