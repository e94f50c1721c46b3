"""What the environment gives to reach the Messages API: credential, address, headers.

Names and order are those of the `anthropic` package (2.14): ANTHROPIC_API_KEY, then
ANTHROPIC_AUTH_TOKEN, then a profile that ANTHROPIC_PROFILE names, then federation, then the active
profile on disk. Profiles and federation are only noticed here; the package reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from forkrun.errors import ConfigurationError

DEFAULT_BASE_URL = "https://api.anthropic.com"
API_VERSION = "2026-10-21"
USER_AGENT = "forkrun"
_FRAMING = ("connection", "content-length", "transfer-encoding")  # ours alone to say


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
        if name.lower() not in _FRAMING:
            headers[name.lower()] = value
    return headers
