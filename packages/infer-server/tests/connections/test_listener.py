"""The listening socket: when a port is bound, and when another server can bind it."""

import socket

import pytest

from infer_server.connections.listener import AddressUnusableError, allow_address_reuse, bind_listener, url_of


def test_port_0_takes_a_free_one_and_the_url_has_it() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert listener.getsockname()[1] > 0


def test_url_is_one_that_a_client_on_this_machine_can_open() -> None:
    with bind_listener("0.0.0.0", 0) as listener:  # noqa: S104 - for a moment, and it does not listen
        assert url_of(listener).startswith("http://127.0.0.1:")


@pytest.mark.covers("models/port-listens-after-loading", "http/ready-while-loading")
def test_bound_port_is_taken_though_nothing_listens_yet() -> None:
    with bind_listener("127.0.0.1", 0) as first, pytest.raises(AddressUnusableError, match="is in use"):
        bind_listener("127.0.0.1", first.getsockname()[1])


def test_port_whose_last_connections_linger_can_be_had_again() -> None:
    with bind_listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        allow_address_reuse(first)
        first.listen()
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = first.accept()
        accepted.close()  # the side that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
        client.close()
    with bind_listener("127.0.0.1", port) as second:
        second.listen()


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(AddressUnusableError, match="Cannot listen on port 0 of"):
        bind_listener("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["a..b", ".x", "a" * 70, "\udcff"])
def test_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(AddressUnusableError, match="`--host` is"):
        bind_listener(host, 0)
