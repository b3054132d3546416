"""Checks the TLS certificate before the model loads, so that an unusable one is an error at once."""

import ssl
from pathlib import Path

from infer_server.settings import ServerSettings


class CertificateUnusableError(Exception):
    """The certificate or its key cannot be used; the message is one line that says why."""


def check_certificate(settings: ServerSettings) -> None:
    """Check the certificate and key that `settings` names, if any.

    Raises:
        CertificateUnusableError: a file cannot be read, is no PEM file or needs another password, or the two do not
            match.
    """
    if settings.ssl_certfile is None or settings.ssl_keyfile is None:
        return
    for name, path in (("ssl_certfile", settings.ssl_certfile), ("ssl_keyfile", settings.ssl_keyfile)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise CertificateUnusableError(f"`{name}` is {path!r}, which cannot be read: {error.strerror}.") from error
    # A callback: without one, OpenSSL asks for a password on the terminal.
    password = settings.ssl_keyfile_password or ""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.ssl_certfile, settings.ssl_keyfile, password=lambda: password
        )
    except (ssl.SSLError, ValueError) as error:
        raise CertificateUnusableError(
            f"`ssl_certfile` {settings.ssl_certfile!r} and `ssl_keyfile` {settings.ssl_keyfile!r} cannot be used: they "
            "must be PEM files that belong together, and `ssl_keyfile_password` must fit the key."
        ) from error
