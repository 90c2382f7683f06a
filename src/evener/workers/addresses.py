"""Addresses of workers, as ``host:port``."""

from __future__ import annotations

import ipaddress

from evener.errors import RunError

LARGEST_PORT = 65535


def split_address(text: object, source: str) -> tuple[str, int]:
    """Return the host and the port of ``host:port``; the error RUN-054 names the source, a setting.

    >>> split_address("[::1]:4000", "EVENER_COORDINATOR")
    ('::1', 4000)
    """
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    number = int(port) if port.isascii() and port.isdecimal() else -1
    is_host = bool(host) and host == host.strip() and "/" not in host
    if not colon or not is_host or (":" in host) != bracketed or not 0 <= number <= LARGEST_PORT:
        raise RunError(
            "RUN-054",
            f"{source} holds an address that is not host:port: {text!r}.",
            why=f"a worker is reached under a host and a port from 0 to {LARGEST_PORT}.",
            fix="write for example 10.0.0.1:4000, worker-0.example:4000 or [::1]:4000.",
        )
    return host, number


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around a host of IPv6.

    >>> join_address("::1", 4000), join_address("10.0.0.1", 4000)
    ('[::1]:4000', '10.0.0.1:4000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the host.

    A name other than ``localhost`` is not looked up: it counts as reachable by others.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
