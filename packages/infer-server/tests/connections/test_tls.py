"""TLS: serving with a certificate, and errors at once for an unusable one."""

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from infer_engine.protocol import Engine, EngineConfig
from infer_proofs.server import FakeEngine, Script, running_server, send_raw
from infer_server import ServerSettings
from infer_server.cli import main


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def settings(authority: trustme.CA, tmp_path: Path) -> ServerSettings:
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    return ServerSettings(
        ssl_certfile=str(tmp_path / "cert.pem"), ssl_keyfile=str(tmp_path / "key.pem"), receive_timeout=0.5
    )


def context_of(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.covers("command-line-and-library/tls")
async def test_requests_and_streams_are_served_over_tls(authority: trustme.CA, settings: ServerSettings) -> None:
    engine = FakeEngine(Script(steps=tuple(((1,), "a" * 1000) for _ in range(300))))
    async with (
        running_server(engine, settings) as url,
        httpx.AsyncClient(base_url=url, verify=context_of(authority)) as client,
    ):
        whole = await client.post("/v1/completions", json={"prompt": "x" * 100_000, "max_tokens": 1})
        stream = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
    assert url.startswith("https://")
    assert whole.status_code == 422
    assert stream.text.count("a" * 1000) == 2 * 300
    assert stream.text.endswith("data: [DONE]\n\n")


async def test_plain_request_to_a_tls_port_disturbs_nobody(
    authority: trustme.CA, settings: ServerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_server(FakeEngine(), settings) as url,
        httpx.AsyncClient(base_url=url, verify=context_of(authority)) as client,
    ):
        plain = await send_raw(url.replace("https", "http"), b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in plain
        assert (await client.get("/health")).status_code == 200
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_client_that_does_not_say_goodbye_does_not_hold_up_the_servers_end(
    authority: trustme.CA, settings: ServerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server(FakeEngine(), settings) as url:
        stays = await asyncio.to_thread(answered_socket, url, context_of(authority))
    stays.close()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def answered_socket(url: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Return a connection whose only answer has arrived, and that is not read any further."""
    host, port = url.removeprefix("https://").split(":")
    client = context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
    client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    while client.recv(1024):
        pass
    return client


def must_not_build(config: EngineConfig) -> Engine:
    raise AssertionError(config)


@pytest.mark.covers("command-line-and-library/tls")
@pytest.mark.parametrize("case", ["missing", "a folder", "no PEM", "swapped", "of another", "encrypted"])
def test_certificate_that_cannot_be_used_is_exit_code_2_before_the_model_loads(
    case: str, authority: trustme.CA, settings: ServerSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = str(settings.ssl_certfile), str(settings.ssl_keyfile)
    other = tmp_path / "other.pem"
    match case:
        case "missing":
            certificate = str(other)
        case "a folder":
            key = str(tmp_path)
        case "no PEM":
            other.write_bytes(b"\x00\xff")
            certificate = str(other)
        case "swapped":
            certificate, key = key, certificate
        case "of another":
            authority.issue_cert("x").private_key_pem.write_to_path(other)
            key = str(other)
        case "encrypted":
            other.write_bytes(encrypted(Path(key).read_bytes()))
            key = str(other)
    flags = ["--port", "0", "--ssl-certfile", certificate, "--ssl-keyfile", key]
    assert main(flags, build_engine=must_not_build) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`ssl_certfile`" in line or "`ssl_keyfile`" in line


def encrypted(key: bytes) -> bytes:
    """Return the PEM of a private key under a password."""
    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"secret"),
    )
