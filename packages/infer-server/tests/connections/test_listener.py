"""The listening sockets: when a port is bound, on which addresses, and when another server can bind it.

Sources: nroi/cpcache#16, getappmap/appmap-js#2075, websockets/ws#588 (names with two addresses).
"""

import socket
from typing import Any

import pytest

from infer_server.connections.listener import (
    AddressUnusableError,
    address_of,
    allow_address_reuse,
    bind_listeners,
    url_of,
)


def test_port_0_takes_a_free_one_and_the_url_has_it() -> None:
    with bind_listeners("127.0.0.1", 0)[0] as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert listener.getsockname()[1] > 0


def test_url_is_one_that_a_client_on_this_machine_can_open() -> None:
    with bind_listeners("0.0.0.0", 0)[0] as listener:  # noqa: S104 - for a moment, and it does not listen
        assert url_of(listener).startswith("http://127.0.0.1:")


@pytest.mark.covers("models/port-listens-after-loading", "http/ready-while-loading")
def test_bound_port_is_taken_though_nothing_listens_yet() -> None:
    with bind_listeners("127.0.0.1", 0)[0] as first, pytest.raises(AddressUnusableError, match="is in use"):
        bind_listeners("127.0.0.1", first.getsockname()[1])


def test_port_whose_last_connections_linger_can_be_had_again() -> None:
    with bind_listeners("127.0.0.1", 0)[0] as first:
        port = first.getsockname()[1]
        allow_address_reuse(first)
        first.listen()
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = first.accept()
        accepted.close()  # the side that closes first keeps the port in TIME_WAIT
        assert client.recv(1) == b""
        client.close()
    with bind_listeners("127.0.0.1", port)[0] as second:
        second.listen()


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(AddressUnusableError, match="Cannot listen on port 0 of"):
        bind_listeners("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["a..b", ".x", "a" * 70, "\udcff"])
def test_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(AddressUnusableError, match="`--host` is"):
        bind_listeners(host, 0)


@pytest.fixture
def name_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives the name `here` some addresses."""

    def set_addresses(*addresses: str) -> None:
        found = [(socket.AF_INET6 if ":" in each else socket.AF_INET, each) for each in addresses]
        answers = [(family, socket.SOCK_STREAM, 6, "", (each, 0)) for family, each in found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)

    return set_addresses


@pytest.mark.parametrize("port", ["any", "given"])
def test_every_address_of_a_name_is_listened_on_with_one_port(name_of: Any, port: str) -> None:
    with bind_listeners("127.0.0.1", 0)[0] as free:
        given = free.getsockname()[1]
    name_of("127.0.0.1", "127.0.0.2", "127.0.0.1")  # resolvers repeat themselves
    first, second = bind_listeners("here", given if port == "given" else 0)
    with first, second:
        chosen = first.getsockname()[1]
        assert (first.getsockname(), second.getsockname()) == (("127.0.0.1", chosen), ("127.0.0.2", chosen))
        assert port == "any" or chosen == given
        text = f"http://127.0.0.1:{chosen} and http://127.0.0.2:{chosen}"
        assert address_of([first, second], scheme="http").text == text
        assert address_of([first, second], scheme="http").curl == f"http://127.0.0.1:{chosen}"


def test_addresses_that_the_machine_lacks_are_left_out_while_there_is_another(name_of: Any) -> None:
    name_of("198.51.100.1", "127.0.0.1")
    [listener] = bind_listeners("here", 0)
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    name_of("198.51.100.1", "203.0.113.1")
    with pytest.raises(AddressUnusableError, match="Cannot listen on port 0 of here"):
        bind_listeners("here", 0)


def test_a_port_that_is_in_use_on_one_address_is_in_use(name_of: Any) -> None:
    with bind_listeners("127.0.0.2", 0)[0] as other:
        port = other.getsockname()[1]
        name_of("127.0.0.1", "127.0.0.2")
        with pytest.raises(AddressUnusableError, match=f"Port {port} of here is in use"):
            bind_listeners("here", port)
        name_of("127.0.0.1")
        with bind_listeners("here", port)[0] as again:  # nothing was left bound
            assert again.getsockname()[1] == port


def test_ipv4_comes_first_for_clients_that_read_one_address(name_of: Any) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    name_of("::1", "127.0.0.1")
    listeners = bind_listeners("here", 0)
    assert listeners[0].family is socket.AF_INET
    for each in listeners:
        each.close()
