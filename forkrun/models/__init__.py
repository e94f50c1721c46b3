"""What answers a run: Claude by its API, a script, or the embedded offline model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from forkrun.errors import UsageError

from .base import Model

if TYPE_CHECKING:
    from .connections import Connections

OFFLINE = "offline"
SCRIPT = "script:"


def open_model(
    name: str,
    *,
    environ: Mapping[str, str],
    client: object | None = None,
    base_url: str | None = None,
    connections: Connections | None = None,
) -> Model:
    """Open the model of this name: `offline`, `script:FILE`, or else the id of a Claude model.

    `environ` is where credentials, base URL, custom headers and proxies are read from; `client` is
    a client of the `anthropic` package that takes the place of all these. `base_url` goes before
    ANTHROPIC_BASE_URL. `connections` are used, and then closed with the model, where they are those
    to its server. Whoever opens a model closes it.

    Raises `UsageError` for a name that cannot be meant, `InputError` for a script that is not
    valid, `ConfigurationError` where there is no credential.
    """
    if name == OFFLINE:
        from .offline import OfflineModel

        return OfflineModel()
    if name.startswith(SCRIPT):
        from .script import open_script

        return open_script(name)
    _check_id(name)
    if client is not None:
        from .sdk_road import SdkModel

        return SdkModel(name, client=client)
    from .anthropic import open_anthropic

    return open_anthropic(name, environ=environ, base_url=base_url, connections=connections)


def begin_connecting(name: str | None, *, environ: Mapping[str, str]) -> Connections | None:
    """Begin to connect to where a model of this name (None: not known yet, but a Claude model) will
    be asked; not a byte of a request is sent. Gives the connections, for `open_model`; None where
    the model has no server, or is reached by another road than the plain one.
    """
    if name is not None and (name == OFFLINE or name.startswith(SCRIPT)):
        return None
    from .anthropic import plain_server
    from .connections import Connections

    server = plain_server(environ)
    if server is None:
        return None
    connections = Connections(server)
    connections.begin()
    return connections


def _check_id(name: str) -> None:
    if not name or not name.isprintable() or name != name.strip() or " " in name:
        raise UsageError(
            f"no model has this name: {name!r}",
            hint="name a Claude model id, script:FILE or offline",
        )
