"""Claude by its API: which credential there is, and which road a request takes.

    a plain key or token, or a local server that wants none ──▶ http_road (no package imported)
    a profile, federation, a proxy, an unusual address      ──▶ sdk_road  (the `anthropic` package)

Names and order of credentials are those of the `anthropic` package (2.14): ANTHROPIC_API_KEY, then
ANTHROPIC_AUTH_TOKEN, then a profile that ANTHROPIC_PROFILE names, then federation, then the active
profile on disk. A profile that is merely found on disk is not sent to a server on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import msgspec

from forkrun.errors import ConfigurationError

from .base import Model
from .http_road import HttpModel, Server

if TYPE_CHECKING:
    from .sdk_road import SdkModel

DEFAULT_BASE_URL = "https://api.anthropic.com"
API_VERSION = "2026-10-21"
USER_AGENT = "forkrun"
_HINT = "set ANTHROPIC_API_KEY, or run without a key: --model offline, or --model script:FILE"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the API. `headers` are the user's own; they go before ours."""

    base_url: str
    key: str | None
    token: str | None
    headers: dict[str, str]

    @property
    def has_static_credential(self) -> bool:
        """Whether the request can carry its credential as it stands."""
        return bool(self.key or self.token or {"authorization", "x-api-key"} & self.headers.keys())

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be printed."""
        own = (self.headers.get("authorization", ""), self.headers.get("x-api-key", ""))
        bare = [value.rpartition(" ")[2] for value in own]
        return tuple(value for value in (self.key, self.token, *bare) if value)


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


def read_access(environ: Mapping[str, str], *, base_url: str | None = None) -> Access:
    """Read the plain credentials, the address and the user's headers; a blank value is none."""
    key = _sendable("ANTHROPIC_API_KEY", environ=environ)
    return Access(
        base_url=base_url or environ.get("ANTHROPIC_BASE_URL", "").strip() or DEFAULT_BASE_URL,
        key=key,
        token=None if key else _sendable("ANTHROPIC_AUTH_TOKEN", environ=environ),
        headers=_custom_headers(environ),
    )


def plain_headers(access: Access) -> dict[str, str]:
    """Give the headers of a request, names in lower case, as the `anthropic` package sends them."""
    bearer = access.key or access.token
    return {
        "accept": "application/json",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": USER_AGENT,
        "anthropic-version": API_VERSION,
        **({"authorization": f"Bearer {bearer}"} if bearer else {}),
        **access.headers,
    }


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


def names_credential(environ: Mapping[str, str]) -> bool:
    """Whether the environment names a profile or a federation."""
    return bool(
        environ.get("ANTHROPIC_PROFILE")
        or (
            environ.get("ANTHROPIC_FEDERATION_RULE_ID")
            and environ.get("ANTHROPIC_ORGANIZATION_ID")
            and (
                environ.get("ANTHROPIC_IDENTITY_TOKEN")
                or environ.get("ANTHROPIC_IDENTITY_TOKEN_FILE")
            )
        )
    )


def finds_profile(environ: Mapping[str, str]) -> bool:
    """Whether there is an active profile on disk."""
    directory = environ.get("ANTHROPIC_CONFIG_DIR") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".config", "anthropic"
    )
    names = (os.path.join("configs", "default.json"), "active_config")
    return any(os.path.isfile(os.path.join(directory, name)) for name in names)


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


def _sendable(variable: str, *, environ: Mapping[str, str]) -> str | None:
    value = environ.get(variable, "")
    if not value.isascii() or not value.isprintable() or value != value.strip():
        raise ConfigurationError(
            f"{variable} holds what cannot stand in a header (a line break, or a space at its end)"
        )
    return value or None


def _custom_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """Read ANTHROPIC_CUSTOM_HEADERS: a header a line, `name: value`."""
    headers = {}
    for line in environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n"):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            continue
        if not name or not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            raise ConfigurationError(
                f"ANTHROPIC_CUSTOM_HEADERS: {name!r} is not the name of a header"
            )
        if not value.isprintable():
            raise ConfigurationError(f"ANTHROPIC_CUSTOM_HEADERS: {name} holds a control character")
        headers[name.lower()] = value
    return headers
