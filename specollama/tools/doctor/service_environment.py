"""How the environment of an Ollama service is set, in the form of each way in which it is run."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from specollama.config.endpoints import DEFAULT_PORT, loopback_port

Environment = Mapping[str, str]

_BLOB = re.compile(r"^.*/blobs/(?=sha256-)")
_UNITS = (Path("/etc/systemd/system/ollama.service"), Path("/usr/lib/systemd/system/ollama.service"))


class Service(StrEnum):
    """The ways in which Ollama is run."""

    SYSTEMD = "systemd"
    LAUNCHD = "launchd"
    DOCKER = "docker"
    WINDOWS = "windows"
    SHELL = "shell"


def likely_service(system: str, units: tuple[Path, ...] = _UNITS) -> Service:
    """How Ollama is run on this machine, by the name that `platform.system()` gives it."""
    if system == "Darwin":
        return Service.LAUNCHD
    if system == "Windows":
        return Service.WINDOWS
    return Service.SYSTEMD if any(unit.exists() for unit in units) else Service.SHELL


def likely_local_service() -> Service:
    """How Ollama is run on this machine."""
    return likely_service(platform.system())


def service_lines(service: Service, environment: Environment) -> tuple[str, ...]:
    """The commands and the lines to write, in order."""
    return _FORMS[service](environment)


def _systemd(environment: Environment) -> tuple[str, ...]:
    """A drop-in file: `systemctl edit` opens it. A % stands for itself when doubled."""
    settings = (f"{name}={value}".replace("\\", "\\\\").replace('"', '\\"') for name, value in environment.items())
    return (
        "sudo systemctl edit ollama.service",
        "    [Service]",
        *(f'    Environment="{setting.replace("%", "%%")}"' for setting in settings),
        "sudo systemctl restart ollama",
    )


def _launchd(environment: Environment) -> tuple[str, ...]:
    """What `launchctl setenv` sets is seen by programs that are started afterwards, until the next login."""
    return (
        *(f"launchctl setenv {name} {quote(value)}" for name, value in environment.items()),
        "osascript -e 'quit app \"Ollama\"' && open -a Ollama",
    )


def _docker(environment: Environment, port: str = DEFAULT_PORT) -> tuple[str, ...]:
    """A container's environment is set when it is made. What of the store is named lies elsewhere within it.

    `port`: of the machine; within the container it is always Ollama's own.
    """
    within = {name: _BLOB.sub("/root/.ollama/models/blobs/", value) for name, value in environment.items()}
    settings = " ".join(f"-e {quote(f'{name}={value}')}" for name, value in within.items())
    return (
        "docker rm -f ollama",
        "# below: --gpus=all, or --device, as it had before",
        f"docker run -d --name ollama -v ollama:/root/.ollama -p {port}:{DEFAULT_PORT} {settings} ollama/ollama",
    )


def _windows(environment: Environment) -> tuple[str, ...]:
    """Of the user, in PowerShell; Ollama has to be quit (in the notification area) and started again."""
    return (
        *(
            f"[Environment]::SetEnvironmentVariable('{name}', '{value.replace(chr(39), chr(39) * 2)}', 'User')"
            for name, value in environment.items()
        ),
        'Stop-Process -Name "ollama*"; Start-Process "$env:LOCALAPPDATA\\Programs\\Ollama\\ollama app.exe"',
    )


def _shell(environment: Environment) -> tuple[str, ...]:
    settings = " ".join(f"{name}={quote(value)}" for name, value in environment.items())
    return (f"{settings} ollama serve",)


_FORMS: Mapping[Service, Callable[[Environment], tuple[str, ...]]] = {
    Service.SYSTEMD: _systemd,
    Service.LAUNCHD: _launchd,
    Service.DOCKER: _docker,
    Service.WINDOWS: _windows,
    Service.SHELL: _shell,
}


def lines_for(service: Service | None, url: str, environment: Environment) -> tuple[str, ...]:
    """The same for the server at a URL, in the way that is named; else as it is likely to run there.

    Of another machine nothing is known: a shell's form says it shortest. It listens where it did before.
    """
    here = loopback_port(url) is not None
    chosen = service or (likely_local_service() if here else Service.SHELL)
    if chosen is Service.DOCKER:
        return _docker(environment, _port(url) or DEFAULT_PORT)
    address = _address(url, here=here) if chosen is Service.SHELL else {}  # a service's own stays
    return service_lines(chosen, {**address, **environment})


def _address(url: str, *, here: bool) -> Environment:
    """Where a server listens that is reached by this URL; nothing where that is its default, or isn't known."""
    port = _port(url)
    if port is None or (here and port == DEFAULT_PORT):
        return {}
    host = urlsplit(url).netloc.rpartition(":")[0]
    everywhere = "[::]" if host.startswith("[") else "0.0.0.0"
    return {"OLLAMA_HOST": f"{host if here else everywhere}:{port}"}


def _port(url: str) -> str | None:
    """Ollama's own; None where another server passes requests on to it: it has neither TLS nor a path."""
    parts = urlsplit(url)
    return None if parts.scheme == "https" or parts.path or parts.port is None else str(parts.port)
