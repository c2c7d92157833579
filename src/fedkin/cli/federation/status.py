"""`fedkin federation status`: which parts of a federation are running and online."""

from rich.table import Table
from rich.text import Text

from fedkin.cli.federation.options import DirectoryArgument
from fedkin.cli.output import JsonOption, print_json, print_note, print_result, results
from fedkin.federation.secure.cards import fingerprint_of, read_identity
from fedkin.flower import trial
from fedkin.flower.certificates import public_key_path, require_flower
from fedkin.flower.jobs.options import FederationOptions
from fedkin.flower.layout import SUPERLINK, Layout

SECURE = (
    "sums are secure: no run sees a single node's vectors, unless it was started with --plain-sums"
)
PLAIN = "sums are plain: with fewer than three nodes, the center sees every node's vectors"


def status(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Show whether the SuperLink is running and which nodes are online."""
    require_flower()
    layout = Layout(directory)
    superlink, *nodes = trial.status(layout)
    running = layout.read_running()
    port = None if running is None or superlink.process is None else running.ports[SUPERLINK]
    secure = FederationOptions.model_validate({}).secure_sums(len(nodes))
    if json:
        answer = {
            "superlink": {"state": superlink.state, "process": superlink.process, "port": port},
            "nodes": {
                node.name: {
                    "state": node.state,
                    "process": node.process,
                    "fingerprint": _fingerprint(layout, node.name),
                }
                for node in nodes
            },
            "secure_sums": secure,
        }
        print_json(answer, schema="federation.status/1")
        return
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for title in ("", "state", "process", "log"):
        table.add_column(title, no_wrap=True)
    for member in (superlink, *nodes):
        good = member.state in {"running", "online"}
        log = layout.log(member.name)
        table.add_row(
            Text(member.name),
            Text(member.state, style="green" if good else "red"),
            "–" if member.process is None else str(member.process),
            Text(str(log) if log.exists() else "–"),
        )
    results.print(table)
    if superlink.state == "silent":
        print_note("note: the SuperLink does not answer: it is still starting, or see its log")
    elif port is not None:
        print_result(f"\nthe SuperLink listens at port {port}")
    print_result(SECURE if secure else PLAIN)


def _fingerprint(layout: Layout, name: str) -> str | None:
    """Return the fingerprint of a node's key, if the key is here."""
    public = public_key_path(layout.node_key(name))
    return fingerprint_of(read_identity(public)) if public.is_file() else None
