"""The Unix socket: locking of its path, permissions, removal at the end."""

import socket
import stat
from pathlib import Path

import httpx
import pytest

from infer_proofs.server import server_process
from infer_server.connections.listener import AddressUnusableError
from infer_server.connections.unix_listener import unix_listener


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "infer.sock"


@pytest.mark.covers("command-line-and-library/uds")
def test_owner_and_group_may_connect_and_nothing_is_left_behind(path: Path) -> None:
    with unix_listener(str(path)):
        assert stat.filemode(path.stat().st_mode) == "srw-rw----"
    assert list(path.parent.iterdir()) == []


def test_path_that_a_dead_server_left_is_taken_over(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with unix_listener(str(path)) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.listen()
        client.connect(str(path))


def test_path_of_a_server_that_still_loads_is_in_use(path: Path) -> None:
    with unix_listener(str(path)):
        with pytest.raises(AddressUnusableError, match="is in use"), unix_listener(str(path)):
            pass
        assert path.is_socket()


def test_path_that_another_program_listens_on_is_in_use(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(AddressUnusableError, match="is in use"), unix_listener(str(path)):
            pass
        assert path.is_socket()


def test_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(AddressUnusableError, match="is no socket"), unix_listener(str(path)):
        pass
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", ["no/such/folder.sock", "x" * 150])
def test_path_that_cannot_be_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(AddressUnusableError, match="Cannot listen on `--uds`"), unix_listener(str(tmp_path / name)):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/", ".", ".."])
def test_folder_is_refused_and_left_as_it_is(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AddressUnusableError, match="`--uds` "), unix_listener(path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.covers("command-line-and-library/uds")
def test_command_serves_on_it_and_removes_it_at_the_end(path: Path) -> None:
    with server_process("--uds", str(path), "--log-level", "warning") as server:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        assert server.terminate() == (0, "")
    assert server.banner[4].split() == ["listens", "on", f"unix:{path}"]
    assert "base URL http://localhost/v1 for OpenAI's" in server.banner[5]
    assert f"curl -N --unix-socket {path} http://localhost/v1/chat/completions" in server.banner[8]
    assert list(path.parent.iterdir()) == []
