"""The command lines that start a SuperLink and a SuperNode, by default with TLS and authentication."""

import sys
from dataclasses import dataclass
from pathlib import Path

from fedkin.errors import InputError


@dataclass(frozen=True)
class Server:
    """How a SuperLink is started."""

    listen: str
    port: int
    database: Path | None
    """What a restarted SuperLink remembers; None for nothing, which is faster."""
    token: Path
    """The file with the token that commands and runs carry (`certificates.make_token`)."""
    certificate: Path | None
    """None for neither TLS nor authentication of nodes, which the user must ask for."""
    key: Path | None = None
    authority: Path | None = None


@dataclass(frozen=True)
class Node:
    """How a SuperNode is started."""

    superlink: str
    """HOST:PORT."""
    port: int
    """The port that its own processes use, reachable from its own machine only."""
    configuration: Path
    """A TOML file with the owner's settings, such as where the data are."""
    authority: Path | None
    """None for neither TLS nor authentication, which the user must ask for."""
    key: Path | None = None


def superlink_command(server: Server) -> list[str]:
    """Return the command that runs a SuperLink."""
    command = _script("superlink.py")
    command += ["--host", server.listen, "--port", str(server.port)]
    command += ["--token-file", str(server.token)]
    command += ["--disable-runtime-dependency-installation", "--isolation", "process"]
    if server.database is not None:
        command += ["--database", str(server.database)]
    if server.certificate is None:
        return [*command, "--insecure"]
    command += ["--ssl-certfile", str(server.certificate), "--ssl-keyfile", str(server.key)]
    return [*command, "--ssl-ca-certfile", str(server.authority), "--enable-supernode-auth"]


def supernode_command(node: Node) -> list[str]:
    """Return the command that runs a SuperNode."""
    command = _script("supernode.py")
    command += ["--superlink", node.superlink, "--host", "127.0.0.1", "--port", str(node.port)]
    command += ["--node-config", str(node.configuration), "--isolation", "process"]
    secret = node.configuration.with_name("worker.secret")
    command += ["--superexec-auth-secret-file", str(secret)]
    if node.authority is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(node.authority)]
    return [*command, "--auth-supernode-private-key", str(node.key)]


def _script(name: str) -> list[str]:
    """Run a program by its path: as a module it would load fedkin, and JAX with it, without need."""
    return [sys.executable, "-P", str(Path(__file__).parent / "internals" / name)]


def check_address(written: str, option: str) -> str:
    """Return an address if it is HOST:PORT."""
    host, _, port = written.rpartition(":")
    if "//" in written or "/" in written:
        raise InputError(f"{option} takes HOST:PORT without http:// or a path, not '{written}'")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(
            f"{option} takes HOST:PORT, for example link.example.org:8000, not '{written}'"
        )
    return written
