"""Claude by its API: which credential there is, and which road a request takes.

    a plain key or token, or a local server that wants none ──▶ http_road (no package imported)
    a profile, federation, a proxy, an unusual address      ──▶ sdk_road  (the `anthropic` package)

A profile that is merely found on disk is not used for a server on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from forkrun.errors import ConfigurationError

from .access import Access, finds_profile, names_credential, plain_headers, read_access
from .base import Model
from .connections import Connections, Server

if TYPE_CHECKING:
    from .sdk_road import SdkModel

_HINT = "set ANTHROPIC_API_KEY, or run without a key: --model offline, or --model script:FILE"
_IN_HOSTS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")
_IN_PATHS = _IN_HOSTS | frozenset("_~/")


class Address(NamedTuple):
    """A base URL, read. `host` is in lower case; `port` is None where none is named. `is_plain`
    says that nothing else stands in it, and nothing that would have to be encoded."""

    scheme: str
    host: str
    port: int | None
    path: str
    is_plain: bool


def open_anthropic(
    name: str,
    *,
    environ: Mapping[str, str],
    base_url: str | None = None,
    connections: Connections | None = None,
) -> Model:
    """Open a Claude model with the credential that the environment gives.

    `connections`, where they are those to its server, are used by it, and closed with it. Raises
    `ConfigurationError` where there is no credential, and for an address or a value that cannot be
    sent. Profiles and federation are read by the `anthropic` package itself, from the process's
    own environment.
    """
    access = read_access(environ, base_url=base_url)
    address = read_address(access.base_url)
    if _has_all(access, address, environ=environ):
        if is_plain(address, environ=environ):
            from .http_road import HttpModel

            server = _server(address)
            return HttpModel(
                name,
                server=server,
                headers=plain_headers(access),
                secrets=access.secrets,
                connections=connections if connections and connections.server == server else None,
            )
        return _sdk_model(name, access, is_open=_is_loopback(address.host))
    if names_credential(environ) or finds_profile(environ):
        return _sdk_model(name, access, is_open=False)
    raise ConfigurationError(f"no credential for the model {name}", hint=_HINT)


def plain_server(environ: Mapping[str, str]) -> Server | None:
    """Give the server that a Claude model is asked at by the plain road; None where another road
    would be taken, or none could."""
    try:
        access = read_access(environ)
        address = read_address(access.base_url)
    except ConfigurationError:
        return None
    has_all = _has_all(access, address, environ=environ)
    return _server(address) if has_all and is_plain(address, environ=environ) else None


def is_plain(address: Address, *, environ: Mapping[str, str]) -> bool:
    """Whether the plain road leads to this address: no proxy, nothing unusual in the address."""
    return address.is_plain and not _is_proxied(address.scheme, host=address.host, environ=environ)


def read_address(base_url: str) -> Address:
    """Read a base URL. Raises ConfigurationError for what is none, by its variable."""
    return _read_plain(base_url) or _read_unusual(base_url)


def _read_plain(base_url: str) -> Address | None:
    """Read `scheme://host[:port][/path]` of unreserved characters, which need no library."""
    scheme, _, rest = base_url.partition("://")
    authority, slash, path = rest.partition("/")
    host, colon, port = authority.partition(":")
    is_plain = (
        scheme in ("http", "https")
        and host
        and _IN_HOSTS.issuperset(host)
        and _IN_PATHS.issuperset(path)
        and (not colon or (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16))
    )
    if not is_plain:
        return None
    number = int(port) if port else None
    return Address(scheme, host.lower(), number, slash + path, is_plain=True)


def _read_unusual(base_url: str) -> Address:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(base_url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            host = parts.hostname
            is_plain = not (
                parts.username
                or parts.query
                or not (host + parts.path).isascii()
                or not parts.path.isprintable()
                or " " in parts.path
                or "%" in host
            )
            return Address(parts.scheme, host, parts.port, parts.path, is_plain)
    except ValueError:
        pass
    raise ConfigurationError(
        "ANTHROPIC_BASE_URL is not an http or https address",
        hint="for example http://127.0.0.1:11434 for a local server",
    )


def _has_all(access: Access, address: Address, *, environ: Mapping[str, str]) -> bool:
    """Whether a request has all that it needs: a plain credential, or a server that wants none."""
    return access.has_static_credential or (
        _is_loopback(address.host) and not names_credential(environ)
    )


def _sdk_model(name: str, access: Access, *, is_open: bool) -> SdkModel:
    from .sdk_road import SdkModel, make_client

    return SdkModel(
        name, client=make_client(access, is_open=is_open), secrets=access.secrets, is_ours=True
    )


def _server(address: Address) -> Server:
    tls = address.scheme == "https"
    return Server(
        host=address.host,
        port=address.port or (443 if tls else 80),
        path=address.path.rstrip("/") + "/v1/messages",
        tls=tls,
    )


def _is_loopback(host: str) -> bool:
    is_ipv4 = host.replace(".", "").isdecimal()
    return (
        host in ("localhost", "::1")
        or host.endswith(".localhost")
        or (is_ipv4 and host.startswith("127."))
    )


def _is_proxied(scheme: str, *, host: str, environ: Mapping[str, str]) -> bool:
    """Whether a proxy may be meant for this host; in doubt yes, as the package then decides."""
    proxies = {name.lower(): value for name, value in environ.items() if value}
    if not any(proxies.get(name) for name in (f"{scheme}_proxy", "all_proxy")):
        return False
    direct = [name.strip().lower() for name in proxies.get("no_proxy", "").split(",")]
    return "*" not in direct and host not in direct
