"""Claude by its API: which credential there is, and which road a request takes.

    a plain key or token, or a local server that wants none ──▶ http_road (no package imported)
    a profile, federation, a proxy, an unusual address      ──▶ sdk_road  (the `anthropic` package)

A profile that is merely found on disk is not used for a server on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from forkrun.errors import ConfigurationError

from .access import Access, finds_profile, names_credential, plain_headers, read_access
from .base import Model
from .http_road import HttpModel, Server

if TYPE_CHECKING:
    from .sdk_road import SdkModel

_HINT = "set ANTHROPIC_API_KEY, or run without a key: --model offline, or --model script:FILE"


def open_anthropic(name: str, *, environ: Mapping[str, str], base_url: str | None = None) -> Model:
    """Open a Claude model with the credential that the environment gives.

    Raises `ConfigurationError` where there is none, and for an address or a value that cannot be
    sent. Profiles and federation are read by the `anthropic` package itself, from the process's
    own environment.
    """
    access = read_access(environ, base_url=base_url)
    address = _address(access.base_url)
    is_local = _is_loopback(address.hostname or "")
    if access.has_static_credential or (is_local and not names_credential(environ)):
        if is_plain(address, environ=environ):
            return HttpModel(
                name,
                server=_server(address),
                headers=plain_headers(access),
                secrets=access.secrets,
            )
        return _sdk_model(name, access, is_open=is_local)
    if names_credential(environ) or finds_profile(environ):
        return _sdk_model(name, access, is_open=False)
    raise ConfigurationError(f"no credential for the model {name}", hint=_HINT)


def is_plain(address: SplitResult, *, environ: Mapping[str, str]) -> bool:
    """Whether `http.client` can send to this address: no proxy, nothing unusual in the address."""
    host = address.hostname or ""
    return not (
        address.username
        or address.query
        or not host.isascii()
        or "%" in host
        or _is_proxied(address.scheme, host=host, environ=environ)
    )


def _sdk_model(name: str, access: Access, *, is_open: bool) -> SdkModel:
    from .sdk_road import SdkModel, make_client

    return SdkModel(
        name, client=make_client(access, is_open=is_open), secrets=access.secrets, is_ours=True
    )


def _address(base_url: str) -> SplitResult:
    try:
        address = urlsplit(base_url)
        if address.scheme in ("http", "https") and address.hostname and address.port != 0:
            return address
    except ValueError:
        pass
    raise ConfigurationError(
        "ANTHROPIC_BASE_URL is not an http or https address",
        hint="for example http://127.0.0.1:11434 for a local server",
    )


def _server(address: SplitResult) -> Server:
    tls = address.scheme == "https"
    return Server(
        host=address.hostname or "",
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
