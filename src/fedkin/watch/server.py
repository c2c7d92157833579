"""Serves the page of what is watched, to browsers on this machine and to nobody else.

A site that a browser on this machine has open must not read the page. It could if its name were made to point
to this machine, so requests with another name in their `Host` are refused. Nothing but the page is served: a
request names no file.
"""

import errno
import re
import threading
import time
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedkin.errors import FedkinError, InputError
from fedkin.report.html import asset
from fedkin.watch import page
from fedkin.watch.directory import Watched

ADDRESS = "127.0.0.1"
OWN_NAMES = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.IGNORECASE)
"""Any port: a tunnel may have another one at its other end."""
FRESH_SECONDS = 0.3
"""Files are read at most this often, however many browsers look."""
LONGEST_QUERY = 4000


class LivePage:
    """The page at any moment; several threads may ask for it.

    Args:
        watched: What is watched.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._guard = threading.Lock()
        self._read_at = float("-inf")
        self._report: tuple[float, str] | None = None

    def get(self, chosen: str | None) -> tuple[str, str]:
        """Return the page and its content security policy.

        Args:
            chosen: The name of the run to show; None for the one with the latest news, or for the report
                of what is over.
        """
        with self._guard:
            if time.monotonic() - self._read_at > FRESH_SECONDS:
                self._watched.refresh()
                self._read_at = time.monotonic()
            trouble = ""
            if chosen is None and self._watched.is_over():
                try:
                    return self._final(), page.content_policy(asset("report.js"), asks=False)
                except FedkinError as error:
                    trouble = str(error)
            text = page.render(self._watched, chosen, trouble)
            return text, page.content_policy(asset(page.SCRIPT), asks=True)

    def _final(self) -> str:
        """Return the report, made once for what was known last."""
        news = self._watched.last_news
        if self._report is None or self._report[0] != news:
            self._report = news, self._watched.report()
        return self._report[1]


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "fedkin", ""
    timeout = 20.0  # a browser that says nothing does not hold a thread

    def __init__(self, live: LivePage, *connection: Any) -> None:
        self._live = live
        super().__init__(*connection)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if self.headers.get_all("Host") is None or not all(
            OWN_NAMES.fullmatch(name) for name in self.headers.get_all("Host", [])
        ):
            self._send(
                HTTPStatus.MISDIRECTED_REQUEST, "This page is for 127.0.0.1 only.", with_body
            )
            return
        try:
            address = urlsplit(self.path)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "This is no address.", with_body)
            return
        if address.path != "/" or address.scheme or address.netloc:
            self._send(HTTPStatus.NOT_FOUND, "There is only one page, at /.", with_body)
            return
        if len(address.query) > LONGEST_QUERY:
            self._send(HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long.", with_body)
            return
        asked = parse_qs(address.query, keep_blank_values=True)
        try:
            text, policy = self._live.get(asked["run"][0] if "run" in asked else None)
        except FedkinError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, str(error), with_body)
            return
        except Exception as error:
            # Files that others write can hold anything; the next request may find better ones.
            reason = f"The page cannot be made ({type(error).__name__}): are the files damaged?"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, reason, with_body)
            return
        self._send(HTTPStatus.OK, text, with_body, kind="text/html", policy=policy)

    def _send(
        self,
        status: HTTPStatus,
        text: str,
        with_body: bool,
        *,
        kind: str = "text/plain",
        policy: str = "default-src 'none'; frame-ancestors 'none'",
    ) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
        """Print no line per request."""


class PageServer(ThreadingHTTPServer):
    """The server of one page.

    Args:
        live: The page.
        port: Where to listen; 0 for any port that is free.
    """

    daemon_threads = True
    # Two servers on one port would take turns.
    allow_reuse_port = False

    def __init__(self, live: LivePage, port: int) -> None:
        try:
            super().__init__((ADDRESS, port), partial(_Handler, live))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = f"port {port} is in use: choose another with --port, or --port 0 for any free one"
            else:
                why = f"cannot listen on port {port}: {error.strerror}; choose one above 1023 with --port"
            raise InputError(why) from error

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent about a browser that went away."""
