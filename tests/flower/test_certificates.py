"""Certificates and keys, judged by others: Python's own TLS, OpenSSH, Flower."""

import shutil
import socket
import ssl
import stat
import subprocess
import threading

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.errors import InputError
from fedkin.flower import certificates


@pytest.fixture
def authority(tmp_path):
    certificate, key = tmp_path / "ca.pem", tmp_path / "ca.key"
    certificates.make_authority(certificate, key)
    return certificate, key


def server(tmp_path, authority, hosts, name="server", **options):
    paths = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
    certificates.make_server_certificate(*authority, hosts, *paths, **options)
    return paths


def shake_hands(paths, trusted, name):
    """Let a client that trusts one authority connect to a server that it knows by this name."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*paths)
    ends = socket.socketpair()

    def serve():
        try:
            with serving.wrap_socket(ends[0], server_side=True) as connection:
                connection.sendall(b"hello")
        except OSError:
            pass  # the client has turned away: its test says why

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client = ssl.create_default_context(cafile=trusted)
        with client.wrap_socket(ends[1], server_hostname=name) as connection:
            return connection.recv(5)
    finally:
        ends[1].close()
        thread.join()
        ends[0].close()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "link.example.org", "2001:db8::1"])
def test_a_client_with_the_authority_connects_by_every_name(tmp_path, authority, name):
    paths = server(
        tmp_path, authority, ["link.example.org", "localhost", "127.0.0.1", "2001:db8::1"]
    )
    assert shake_hands(paths, authority[0], name) == b"hello"


def test_a_client_turns_away_from_another_name(tmp_path, authority):
    paths = server(tmp_path, authority, ["link.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'evil\.example\.org'"):
        shake_hands(paths, authority[0], "evil.example.org")


def test_a_client_turns_away_from_a_server_of_another_authority(tmp_path, authority):
    other = tmp_path / "other.pem", tmp_path / "other.key"
    certificates.make_authority(*other)
    paths = server(tmp_path, other, ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(paths, authority[0], "localhost")


def test_a_server_certificate_cannot_sign_others(tmp_path, authority):
    paths = server(tmp_path, authority, ["localhost"])
    forged = server(tmp_path, paths, ["bank.example.org"], name="forged")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(forged[0].read_bytes() + paths[0].read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands((chain, forged[1]), authority[0], "bank.example.org")


def test_private_keys_are_their_owners_alone(tmp_path):
    folder = tmp_path / "new" / "inner"
    certificates.make_authority(folder / "ca.pem", folder / "ca.key")
    certificates.make_node_key(folder / "node.key")
    for path in (folder / "ca.key", folder / "node.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for directory in (folder, folder.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_key_is_never_written_over(tmp_path):
    path = tmp_path / "node.key"
    certificates.make_node_key(path)
    before = path.read_bytes(), certificates.public_key_path(path).read_bytes()
    with pytest.raises(InputError, match="never overwritten"):
        certificates.make_node_key(path)
    assert (path.read_bytes(), certificates.public_key_path(path).read_bytes()) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["node.key", "node.key.pub"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_openssh_finds_the_same_public_key(tmp_path):
    path = tmp_path / "node.key"
    certificates.make_node_key(path)
    found = subprocess.run(
        ["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True
    ).stdout
    assert found.split()[:2] == certificates.public_key_path(path).read_text().split()[:2]


def test_flower_reads_the_keys_alike(tmp_path):
    from flwr.cli.supernode.register import try_load_public_key

    path = tmp_path / "node.key"
    certificates.make_node_key(path)
    public = certificates.public_key_path(path)
    assert certificates.read_public_key(public) == try_load_public_key(public)
    certificates.check_private_key(path)


def test_renewing_keeps_what_nodes_trust(tmp_path, authority):
    paths = server(tmp_path, authority, ["localhost"])
    first = paths[0].read_bytes(), paths[1].read_bytes()
    paths = server(tmp_path, authority, ["localhost"], days=10)
    assert paths[0].read_bytes() != first[0]
    assert paths[1].read_bytes() != first[1]
    assert shake_hands(paths, authority[0], "localhost") == b"hello"
    assert certificates.describe(paths[0]).hosts == ("localhost",)


@pytest.mark.parametrize(
    "host", ["", "http://a.org", "a b", "-a.org", "a..org", "ä.org", "a" * 64, "10.0.0.0/8"]
)
def test_what_is_no_host_is_refused(tmp_path, authority, host):
    with pytest.raises(InputError, match="not the name or address of a host"):
        server(tmp_path, authority, [host])


def test_keys_that_do_not_belong_together_are_refused(tmp_path, authority):
    other = tmp_path / "other.pem", tmp_path / "other.key"
    certificates.make_authority(*other)
    with pytest.raises(InputError, match="not the key of"):
        server(tmp_path, (authority[0], other[1]), ["localhost"])


def test_bad_key_files_are_refused(tmp_path, authority):
    path = tmp_path / "node.key"
    certificates.make_node_key(path)
    with pytest.raises(InputError, match=r"give the file ending in \.pub"):
        certificates.read_public_key(path)
    with pytest.raises(InputError, match="not a node's private key"):
        certificates.check_private_key(authority[0])
    with pytest.raises(InputError, match="there is no file"):
        certificates.check_private_key(tmp_path / "none.key")
    path.chmod(0o644)
    with pytest.raises(InputError, match=r"others can read the private key .* chmod 600"):
        certificates.check_private_key(path)
    with pytest.raises(InputError, match="not a certificate in PEM format"):
        certificates.describe(path)
