"""What a node says when its SuperLink is not there, or is one that it can never talk to."""

import http.server
import ssl
import threading
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.flower import certificates
from fedkin.flower.internals.supernode import find_problem, wait_for_superlink
from fedkin.flower.processes import free_ports


class Health(http.server.BaseHTTPRequestHandler):
    """Answers as a SuperLink does to who asks for its health."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """An authority and a server's certificate; and another authority."""
    place = tmp_path_factory.mktemp("certificates")
    for name in ("ca", "other"):
        certificates.make_authority(place / f"{name}.pem", place / f"{name}.key")
    for name, host in (("server", "127.0.0.1"), ("elsewhere", "link.example.org")):
        certificates.make_server_certificate(
            place / "ca.pem", place / "ca.key", [host], place / f"{name}.pem", place / f"{name}.key"
        )
    return place


@contextmanager
def superlink(place=None, name="server", port=0):
    """Serve; return the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
    if place is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place / f"{name}.pem", place / f"{name}.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_superlink_that_fits_is_no_problem(authority):
    with superlink() as address:
        assert find_problem(address, None) is None
    with superlink(authority) as address:
        assert find_problem(address, authority / "ca.pem") is None


def test_a_node_without_tls_is_told_that_the_superlink_has_it(authority):
    with superlink(authority) as address:
        problem = wait_for_superlink(address, None, pytest.fail)
    assert f"the SuperLink at {address} talks with TLS only" in problem
    assert "give --ca and --key" in problem


def test_a_node_with_tls_is_told_that_the_superlink_has_none(authority):
    with superlink() as address:
        problem = wait_for_superlink(address, authority / "ca.pem", pytest.fail)
    assert f"the SuperLink at {address} was started with --insecure" in problem
    assert "ask its owner" in problem


@pytest.mark.parametrize(("trusted", "name"), [("other", "server"), ("ca", "elsewhere")])
def test_a_certificate_that_is_not_accepted_is_told(trusted, name, authority):
    with superlink(authority, name) as address:
        problem = wait_for_superlink(address, authority / f"{trusted}.pem", pytest.fail)
    assert f"the certificate of the SuperLink at {address} is not accepted" in problem
    assert "CERTIFICATE_VERIFY_FAILED" in problem
    assert "is ca.pem that of its owner" in problem


def test_a_superlink_that_is_not_there_is_waited_for(authority):
    """And the reason is told once."""
    (port,) = free_ports(1)
    told, slept = [], []
    with ExitStack() as stack:

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 3:
                stack.enter_context(superlink(port=port))

        assert wait_for_superlink(f"127.0.0.1:{port}", None, told.append, sleep) is None
    (line,) = told
    assert "does not answer" in line
    assert "trying again until it answers" in line
    assert slept == sorted(slept)
