"""One spelling for each path, so that what holds for a path holds for every way to write it."""

from __future__ import annotations

from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send


class CanonicalPath:
    """ASGI middleware, the outermost: `/x/../api/chat`, `/api/./chat` and `//api/chat` come in as `/api/chat`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (path := canonical_path(scope["path"])) != scope["path"]:
            scope = {**scope, "path": path, "raw_path": quote(path).encode()}
        await self._app(scope, receive, send)


def canonical_path(path: str) -> str:
    """A decoded path without empty segments and dot segments (RFC 3986, 5.2.4), and without a server before it.

    That is how a client asks which takes this server for a proxy (RFC 9112, 3.2.2).
    """
    if path.startswith(("http://", "https://")):
        path = "/" + path.partition("://")[2].partition("/")[2]
    if "//" not in path and "/." not in path:
        return path
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    slash = "/" if kept and path.endswith(("/", "/.", "/..")) else ""
    return "/" + "/".join(kept) + slash
