"""Where an engine is, as one word says it.

The routes of weights let whoever reaches them change what the engine says, and read files: an address is of this
machine or of a private network, unless it is asked for in words.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from etude.core.errors import ConfigError

Kind = Literal["native", "vllm", "sglang"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TRANSPORTS = ("files", "nccl", "ipc")
PUBLIC = "public "
"""What is written before an address that strangers can reach, by who wants it all the same."""
FORM = "native:http://127.0.0.1:8000 (or vllm:, vllm+nccl:, vllm+ipc:, sglang:)"


class Address(NamedTuple):
    """What `--engine` says: the kind of engine, where it is, and how weights travel to it."""

    kind: Kind
    host: str
    port: int
    transport: str = "files"

    @property
    def url(self) -> str:
        """As a browser would write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def address_of(text: str) -> Address:
    """An engine's kind and URL; the kind may be left out for etude's own.

    >>> address_of("vllm+nccl:http://127.0.0.1:8000")
    Address(kind='vllm', host='127.0.0.1', port=8000, transport='nccl')
    >>> address_of("http://127.0.0.1:8000").kind
    'native'

    Raises: ConfigError for anything else. Whether the host is allowed is for `check_host`, which asks the network.
    """
    rest = text.removeprefix(PUBLIC)
    before, scheme, _ = rest.partition("http://")
    kind, _, transport = (before.removesuffix(":") or "native").partition("+")
    transport = transport or "files"
    found = next((k for k in KINDS if k == kind), None)
    if not scheme or before == ":" or (before and not before.endswith(":")) or found is None:
        raise ConfigError(f"--engine must be {FORM}, got {text!r}.")
    if transport not in TRANSPORTS or (transport != "files" and found != "vllm"):
        raise ConfigError(
            f"Weights travel to an engine by files, and to vLLM also by nccl or ipc; got {transport!r} for {found}."
        )
    try:
        parts = urlsplit(rest.removeprefix(before))
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.path not in ("", "/") or parts.query or parts.username:
        raise ConfigError(f"--engine must be {FORM}, with a host and a port and nothing behind them; got {text!r}.")
    return Address(found, host, port, transport)


def check_host(text: str, what: str = "An engine") -> str:
    """The host alone, if nobody but this machine or a private network reaches it, or if it is asked for in words.

    >>> check_host("127.0.0.1"), check_host("10.0.0.7"), check_host("public 203.0.113.5")
    ('127.0.0.1', '10.0.0.7', '203.0.113.5')

    Raises: ConfigError for others, and for a name that is not known here.
    """
    host = text.removeprefix(PUBLIC)
    if text.startswith(PUBLIC):
        return host
    try:
        found = [ipaddress.ip_address(host)]
    except ValueError:
        try:
            found = [ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)]
        except OSError as error:
            raise ConfigError(f"The host {host!r} is not known here ({error.strerror}).") from None
    for address in found:
        if not _within(address):
            raise ConfigError(
                f"{what} at {host} can be reached from outside: who reaches it may change its weights and read files. "
                f"Take 127.0.0.1 or an address of a private network, or say so in words: '{PUBLIC}{host}'."
            )
    return host


def _within(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether only this machine or a private network reaches it; 0.0.0.0 is every address that there is."""
    if address.is_unspecified or address.is_multicast:
        return False
    if address in DOCUMENTED:
        return False
    return address.is_loopback or address.is_private or address.is_link_local


class _Documented:
    """Networks for examples, which the standard library counts as private."""

    networks = tuple(ipaddress.ip_network(n) for n in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"))

    def __contains__(self, address: object) -> bool:
        return any(address in network for network in self.networks)


DOCUMENTED = _Documented()
