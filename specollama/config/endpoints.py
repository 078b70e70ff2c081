"""Where a server is: addresses as Ollama reads them, and the endpoint that the program works with."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypedDict
from urllib.parse import quote, urlsplit

from specollama.errors import ConfigError

DEFAULT_PORT = "11434"
DEFAULT_HOST = "127.0.0.1"
SCHEME_PORTS = {"http": "80", "https": "443"}
THIS_MACHINE = "http://localhost"
"""A URL of this machine, for models that no server has."""
REDACTED = "(not shown)"


class ConnectionSettings(TypedDict):
    """How a server is reached."""

    token: str | None
    source: str
    connect_timeout: float  # seconds
    idle_timeout: float  # seconds


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that serves models.

    `source` says where the URL was set, for messages: "OLLAMA_HOST", "default", "--target", or a file and its
    key. The token is not kept here, only the name of the environment variable that holds it.
    """

    url: str  # scheme, host, port and perhaps a path; no slash at the end
    source: str
    name: str | None = None  # as in the configuration file; None: it has none there
    token_env: str | None = None
    connect_timeout: float = 10.0  # seconds
    idle_timeout: float = 600.0  # seconds without a byte, the loading of a model included

    def __str__(self) -> str:
        return f"{self.url} (set by {self.source})"

    def connection_settings(self, environ: Mapping[str, str]) -> ConnectionSettings:
        """What a client of its server is made with, beside the URL. Raises ConfigError as `token` does."""
        return {
            "token": self.token(environ),
            "source": self.source,
            "connect_timeout": self.connect_timeout,
            "idle_timeout": self.idle_timeout,
        }

    def token(self, environ: Mapping[str, str]) -> str | None:
        """The bearer token to send, or None when the endpoint wants none.

        Raises ConfigError when its variable is unset, empty, or can't travel in an HTTP header.
        """
        if self.token_env is None:
            return None
        token = environ.get(self.token_env, "").strip()
        if is_header_token(token):
            return token
        fault = "holds spaces or characters that no HTTP header can carry" if token else "is not set"
        raise ConfigError(
            f"the environment variable {self.token_env} {fault}; it has to hold the bearer token of "
            f"endpoint {self.name}, {self.url}"
        )


def is_header_token(token: str) -> bool:
    """Whether a bearer token can travel in an HTTP header as it is."""
    return token != "" and token.isascii() and token.isprintable() and " " not in token


def resolve_host(environ: Mapping[str, str]) -> Endpoint:
    """The server to use where none is named: `OLLAMA_HOST`, read as Ollama's client reads it, or its default.

    Like Ollama, a port that is none becomes the default one. Raises ConfigError for what can't be a server.
    """
    given = environ.get("OLLAMA_HOST", "").strip().strip("\"'").strip()
    source = "OLLAMA_HOST" if given else "default"
    try:
        return Endpoint(url=_url(given, lenient=True), source=source)
    except ValueError as fault:
        value = REDACTED if "@" in given else redacted(given)
        raise ConfigError(f"OLLAMA_HOST = {value}: {fault}") from None


def server_url(text: str) -> str:
    """The base URL for `host`, `host:port` (Ollama's port when left out) or a URL (its scheme's port).

    Raises ValueError saying what is wrong; the text may hold a password, so show it by `redacted` only.
    """
    return _url(text.strip(), lenient=False)


def on_different_machines(one: str, other: str) -> bool:
    """Whether two base URLs are of different machines, as far as their names tell; this one has several."""
    hosts = [urlsplit(url).hostname for url in (one, other)]
    return len({"this" if host is None or is_loopback(host) else host for host in hosts}) > 1


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine's loopback, however it is written: `127.1`, `[::ffff:127.0.0.1]`."""
    name = host.strip("[]").lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    if _is_ip(name):
        address = ip_address(name)
        mapped = address.ipv4_mapped if address.version == 6 else None
        return (mapped or address).is_loopback
    try:
        return re.fullmatch(r"[0-9a-fx.]+", name) is not None and socket.inet_aton(name)[0] == 127
    except OSError:
        return False


def redacted(value: object) -> str:
    """A value as it may stand in a message: short, and without what may be a password."""
    if isinstance(value, Mapping) or (isinstance(value, str) and re.search(r"(://|@).*@", value)):
        return REDACTED
    text = str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:79] + "…"


def _url(text: str, *, lenient: bool) -> str:
    """`envconfig.ConnectableHost` of Ollama; not lenient: wrong ports, queries and "" are refused."""
    scheme, rest, default_port = _scheme(text)
    authority, _, path = rest.partition("/")
    if "@" in rest:
        raise ValueError("a user or password in a URL is refused; name the variable with the token as token_env")
    host, port = _host_port(authority, default_port)
    if not lenient and (not authority or "?" in path or "#" in path):
        raise ValueError("must be a host or a URL, as tower:11434 or https://tower/ollama")
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", port) or not 0 <= int(port) <= 65535:
        if not lenient:
            raise ValueError(f"{redacted(port)} is no port; it must be a number from 0 to 65535")
        port = default_port
    path = quote(path.strip("/"), safe="/%:@!$&'()*+,;=~")
    return f"{scheme}://{_connectable(host)}:{int(port)}" + (f"/{path}" if path else "")


def _scheme(text: str) -> tuple[str, str, str]:
    """Scheme, the rest, and the port where none is given."""
    if text == "ollama.com":
        return "https", text, SCHEME_PORTS["https"]
    scheme, found, rest = text.partition("://")
    if not found:
        return "http", text, DEFAULT_PORT
    scheme = scheme.lower()
    if scheme not in SCHEME_PORTS:
        raise ValueError("the scheme must be http or https")
    return scheme, rest, SCHEME_PORTS[scheme]


def _host_port(authority: str, default_port: str) -> tuple[str, str]:
    """As Go's `net.SplitHostPort` does, and as Ollama goes on where that fails."""
    both = re.fullmatch(r"(?:\[([^\[\]]*)\]|([^\[\]:]*)):([^\[\]:]*)", authority)
    if both:
        return both[1] or both[2] or "", both[3]
    return authority.strip("[]") if _is_ip(authority.strip("[]")) else authority, default_port


def _connectable(host: str) -> str:
    """The host as a client can reach it: a server's "all addresses" is this machine."""
    if not host:
        return DEFAULT_HOST
    if not _is_ip(host):
        if not re.fullmatch(r"[\w.-]+", host):
            raise ValueError(f"{redacted(host)} is no host; give a name or an IP address, as tower:11434")
        return host
    address = ip_address(host)
    if address.version == 4:
        return DEFAULT_HOST if address.is_unspecified else str(address)
    return "[::1]" if address.is_unspecified else f"[{address}]"


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def loopback_port(url: str) -> int | None:
    """The port of a server on this machine's loopback; None for any other server."""
    _, _, rest = url.partition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    return int(port) if is_loopback(host.strip("[]")) else None


def parse_model_at(text: str) -> tuple[str, str | None]:
    """`MODEL` or `MODEL@SERVER` in its two parts; None where no server is named.

    Raises ValueError when a part is empty, or the model holds white space.
    """
    model, found, server = text.strip().partition("@")
    if not model or re.search(r"\s", model) or (found and not server):
        raise ValueError("must be MODEL or MODEL@SERVER, as qwen2.5-coder:32b@http://tower:11434")
    return model, server or None
