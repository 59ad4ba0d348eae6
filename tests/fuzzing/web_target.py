"""Target of the web UI: its ASGI app in this process, as a client of a broker in a thread."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from fastapi import FastAPI

from kombu_opendata import QueueClient
from kombu_opendata.broker import memory
from kombu_opendata.web.actions import ACTIONS
from kombu_opendata.web.app import VIEWS, create_app
from kombu_opendata.web.settings import WebSettings

from .target import Target

#: for an answer, after which a stream of events is ended
_ANSWER_SECONDS = 2.0
#: of an address; h11, which reads requests for uvicorn, refuses others, and headers of other forms
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
_HEADER = re.compile(rb"([\w!#$%&'*+.^`|~-]+):([^\0-\x08\x0a-\x1f\x7f]*)", re.ASCII)


class Web(Target):
    """A request as text: a byte of flags, method and target, headers, an empty line, and the body.

    With flag 1, a login is needed.
    """

    name = "web"
    renewed_after = 1000
    tokens = (
        "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "--b\\x0d\\x0a",
        "Cookie: ", "Authorization: Basic dTpz", "X-CSRF-Token: ", "Content-Disposition: form-data; name=", "queue=q",
        "queue?name=q", "HX-Request: true", "%00", "%ff", "cursor=", "limit=", '{"queue": "q"}', "Origin: http://localhost",
    )  # fmt: skip

    def open(self) -> None:
        self._name = uuid.uuid4().hex
        url = f"opendata+memory://{self._name}"
        with QueueClient(url) as client:
            client.create("q")
            client.send("q", b"body", {"task": "t", "id": "i"})
        self._runner = asyncio.Runner()
        self._apps = [create_app(WebSettings(url)), create_app(WebSettings(url, is_open=False, hosts=("localhost",)))]
        self._lifespans = [app.router.lifespan_context(app) for app in self._apps]
        for lifespan in self._lifespans:
            self._runner.run(lifespan.__aenter__())
        self._log = logging.getLogger("kombu_opendata")
        self._level = self._log.level
        self._log.setLevel(logging.CRITICAL)

    def close(self) -> None:
        for lifespan in self._lifespans:
            self._runner.run(lifespan.__aexit__(None, None, None))
        self._runner.close()
        self._log.setLevel(self._level)
        memory.stop(self._name)

    def seeds(self) -> list[bytes]:
        pages = sorted({route.path for views in VIEWS for route in (*views.pages.routes, *views.api.routes)})
        given = "name=q&queue=q&id=1&task_id=i&limit=5&hours=6&tab=failed&state=available"
        found = [f"{prefix}{path}?{given}" for path in pages for prefix in ("", "/api/v1")]
        requests = [f"\0GET {target}\nHost: localhost\n\n" for target in found]
        form = "Host: localhost\nOrigin: http://localhost\nContent-Type: application/x-www-form-urlencoded\n\n"
        text = "Host: localhost\nContent-Type: application/json\n\n"
        for name in ACTIONS:
            requests.append(f"\0POST /actions/{name}\n{form}queue=q&target=q&id=1&ids=1&body=b&name=q")
            requests.append(f'\0POST /api/v1/actions/{name}/preview\n{text}{{"queue": "q", "id": 1, "name": "q"}}')
            requests.append(f'\0POST /api/v1/actions/{name}\n{text}{{"queue": "q", "target": "q", "ids": [1]}}')
        requests.append("\1POST /login\n" + form + "user=u&secret=s&next=queue%3Fname%3Dq")
        requests.append("\1GET /\nHost: localhost\nCookie: session=abc; a=b\nAuthorization: Basic dTpz\n\n")
        return [request.encode() for request in requests]

    def run(self, data: bytes) -> None:
        self._runner.run(self._answer(self._apps[data[0] & 1 if data else 0], data[1:]))

    async def _answer(self, app: FastAPI, data: bytes) -> None:
        head, _, body = data.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        method, _, target = first.partition(b" ")
        path, _, query = target.partition(b"?")
        raw_headers = [(match[1].lower(), match[2].strip()) for match in map(_HEADER.fullmatch, lines) if match]
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": method.decode().upper() if method.isalpha() else "GET", "scheme": "http", "root_path": "",
            "path": unquote_to_bytes(path).decode("utf-8", "replace") or "/", "raw_path": path,
            "query_string": quote(query, _VISIBLE).encode(),
            "headers": raw_headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        }  # fmt: skip
        parts = [body]
        ended = asyncio.Event()
        status = 0

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif b"text/event-stream" in dict(raw_headers).get(b"accept", b"") or not message.get("more_body"):
                ended.set()

        with suppress(TimeoutError):
            await asyncio.wait_for(app(scope, receive, send), _ANSWER_SECONDS)
        assert status != 500, f"an internal error at {first!r}"
