"""`fedkin federation` from the command line: what it writes, and what newcomers get wrong."""

import datetime
import json
import socket
import stat
import sys
import tomllib

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.cli import app as cli
from fedkin.cli.federation.run import read_and_show_fit
from fedkin.errors import InputError
from fedkin.flower import certificates, processes
from fedkin.flower import trial as trial_module
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.layout import SUPERLINK, Layout, Running
from fedkin.flower.node_settings import node_settings


class Answer:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def fedkin(monkeypatch, capsys, tmp_path):
    """Run `fedkin federation` in a directory of its own; nothing is ever started here."""
    monkeypatch.chdir(tmp_path)

    def start(command, variables, log):
        raise AssertionError(f"this would start {command}")

    monkeypatch.setattr(processes, "start", start)

    def run(*arguments) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedkin", "federation", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return Answer(left.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def trial(fedkin, tmp_path):
    """A federation of two nodes that draw digits."""
    assert fedkin("init", "trial", "--nodes", 2).status == 0
    return tmp_path / "trial"


@pytest.fixture
def tables(tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b", "c", "own"):
        value = random.normal(size=40)
        frame = pd.DataFrame({"value": value, "note, spoken": "x", "outcome": value > 0})
        frame["outcome"] = frame.outcome.map({True: "ill", False: "well"})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    return ["--node", "a.csv", "--node", "b.csv", "--label", "outcome"]


def was_started(layout):
    """Leave what a start leaves that has ended by now."""
    certificates.make_token(layout.token)
    layout.write_running(Running(ports={SUPERLINK: processes.free_ports(1)[0]}))


def refused(answer, *parts):
    assert answer.status == 2
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    for part in parts:
        assert part in answer.err
    assert answer.out == ""


# init


def test_init_writes_keys_and_configuration(fedkin, tmp_path):
    answer = fedkin("init", "f", "--nodes", 4, "--host", "link.example.org", "--json")
    assert answer.status == 0
    told = json.loads(answer.out)
    layout = Layout(tmp_path / "f")
    names = [node.name for node in layout.read().node]
    assert told["nodes"] == names == ["minority-1", "minority-2", "majority-1", "majority-2"]
    described = certificates.describe(layout.server_certificate)
    assert described.hosts == ("link.example.org", "localhost", "127.0.0.1")
    private = [layout.authority_key, layout.server_key, *map(layout.node_key, names)]
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(layout.directory.stat().st_mode) == 0o700
    keys = {certificates.public_key_path(layout.node_key(name)).read_text() for name in names}
    assert len(keys) == 4


def test_a_federation_is_read_as_it_was_written(trial):
    layout = Layout(trial)
    federation = layout.read()
    layout.write(federation)
    assert layout.read() == federation
    assert federation.data["minority-nodes"] == federation.data["majority-nodes"] == 1
    assert {node.data for node in federation.node} == {"digits"}


def test_rows_held_out_of_a_node_are_nowhere_else(fedkin, tables, tmp_path):
    options = ["--target-node", "a", "--validation-fraction", 0.25, "--test-fraction", 0.25]
    assert fedkin("init", "f", *tables, *options).status == 0
    federation = Layout(tmp_path / "f").read()
    held = tmp_path / "f" / "center"
    parts = [pd.read_csv(held / "validation.csv"), pd.read_csv(held / "test.csv")]
    own = next(node for node in federation.node if node.name == "a")
    parts.append(pd.read_csv(tmp_path / "f" / own.data))
    assert [len(part) for part in parts] == [10, 10, 20]
    together = pd.concat(parts).sort_values("value", ignore_index=True)
    whole = pd.read_csv(tmp_path / "a.csv").sort_values("value", ignore_index=True)
    pd.testing.assert_frame_equal(together, whole)
    other = next(node for node in federation.node if node.name == "b")
    assert other.data == str(tmp_path / "b.csv")


def test_the_centers_own_table_stays_where_it_is(fedkin, tables, tmp_path):
    assert fedkin("init", "f", *tables, "--validation", "own.csv").status == 0
    assert Layout(tmp_path / "f").read().center == {"validation": str(tmp_path / "own.csv")}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["--nodes 4", "--node FILE"]),
        (["--nodes", "1"], ["no federation"]),
        (["--nodes", "-1"], ["--nodes"]),
        (["--nodes", "four"], ["--nodes"]),
        (["--nodes", "2", "--node", "a.csv"], ["--nodes 4", "--node FILE"]),
        (["--nodes", "2", "--label", "outcome"], ["--label", "--node FILE"]),
        (["--nodes", "2", "--dataset", "digit"], ["digit"]),
        (["--nodes", "2", "--target", "both"], ["--target"]),
        (["--nodes", "2", "--host", "https://link.example.org"], ["not the name or address"]),
        (["--nodes", "2", "--port", "70000"], ["--port"]),
        (["--node", "a.csv", "--node", "b.csv"], ["--label"]),
        (["--node", "a.csv", "--node", "none.csv", "--label", "outcome"], ["judge"]),
    ],
)
def test_init_refuses(fedkin, tables, tmp_path, arguments, parts):
    refused(fedkin("init", "f", *arguments), *parts)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--node", "none.csv"], ["there is no file none.csv"]),
        (["--node", "x y=c.csv"], ["'x y'", "NAME=FILE"]),
        (["--node", "superlink=c.csv"], ["'superlink'"]),
        (["--node", "a.csv"], ["two nodes are called 'a'"]),
        (["--categorical", "valeu"], ["valeu", "value"]),
        (["--host", "a b"], ["not the name or address"]),
    ],
)
def test_init_refuses_tables(fedkin, tables, tmp_path, more, parts):
    refused(fedkin("init", "f", *tables, "--validation", "own.csv", *more), *parts)
    assert not (tmp_path / "f").exists()


def test_init_never_writes_into_a_directory_with_content(fedkin, trial):
    before = (trial / "federation.toml").read_text()
    refused(fedkin("init", "trial", "--nodes", 2), "not empty")
    assert (trial / "federation.toml").read_text() == before
    refused(fedkin("init", trial / "federation.toml", "--nodes", 2), "is a file")


# up, status, logs, down


@pytest.mark.parametrize("command", ["up", "down", "status", "logs", "superlink", "renew"])
def test_commands_say_what_is_no_federation(fedkin, tmp_path, command):
    refused(fedkin(command, "none"), "there is no directory", "fedkin federation init")
    (tmp_path / "empty").mkdir()
    refused(fedkin(command, "empty"), "no federation.toml", "fedkin federation init")
    (tmp_path / "empty" / "federation.toml").write_text("format = ")
    refused(fedkin(command, "empty"), "not valid TOML")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda text: text.replace('"127.0.0.1"', '"::"'), ["superlink.listen", "0.0.0.0"]),
        (lambda text: text.replace("listen", "lisen"), ["unknown key superlink.lisen"]),
        (lambda text: text + "port = 99999\n", ["node.1.port"]),
        (lambda text: text.replace("majority-1", "minority-1"), ["two nodes are called"]),
        (lambda text: text.replace('"majority-1"', '"../x"'), ["'../x'"]),
        (lambda text: text.replace("format = 2", "format = 3"), ["format"]),
        (lambda text: text.replace('id = "', 'id = "x'), ["id"]),
        (lambda text: text.split("[[node]]")[0], ["no nodes to start", "superlink"]),
        (lambda text: text + 'label = "y"\ndata = "none.csv"\n', ["not valid TOML"]),
        (
            lambda text: text.replace('data = "digits"', 'data = "none.csv"'),
            ["no data at", "none.csv"],
        ),
        (lambda text: text + "minimum_pints = 4\n", ["majority-1", "minimum_pints"]),
    ],
)
def test_up_refuses_a_wrong_file(fedkin, trial, change, parts):
    file = trial / "federation.toml"
    file.write_text(change(file.read_text()))
    refused(fedkin("up", "trial"), *parts)


def test_a_file_of_format_1_is_read(fedkin, tables, trial):
    """Its table `[center]` was called `[centre]`."""
    layout = Layout(trial)
    text = layout.file.read_text() + '\n[center]\nvalidation = "own.csv"\n'
    layout.file.write_text(text)
    new = layout.read()
    old = text.replace("format = 2", "format = 1").replace("[center]", "[centre]")
    assert old.count("centre") == 1
    layout.file.write_text(old)
    assert layout.read() == new
    assert new.center == {"validation": "own.csv"}
    layout.file.write_text(text.replace("[center]", "[centre]"))
    refused(fedkin("up", "trial"), "unknown key centre")


def test_up_refuses_missing_and_open_keys(fedkin, trial):
    layout = Layout(trial)
    key = layout.node_key("minority-1")
    key.chmod(0o644)
    refused(fedkin("up", "trial"), "others can read", "chmod 600")
    key.unlink()
    refused(fedkin("up", "trial"), "there is no file", "node.key")
    layout.server_certificate.unlink()
    refused(fedkin("up", "trial"), "server.pem is missing")


def test_up_refuses_a_port_in_use(fedkin, trial):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file = trial / "federation.toml"
        file.write_text(file.read_text().replace("[superlink]", f"[superlink]\nport = {port}"))
        refused(fedkin("up", "trial"), f"port {port}", "in use")


def test_status_and_down_of_what_is_down(fedkin, trial):
    answer = json.loads(fedkin("status", "trial", "--json").out)
    assert answer["superlink"] == {"state": "down", "process": None, "port": None}
    assert {node["state"] for node in answer["nodes"].values()} == {"down"}
    assert json.loads(fedkin("down", "trial", "--json").out)["stopped_processes"] == []


def test_a_stale_record_of_a_start_does_no_harm(fedkin, trial):
    """As after a power cut: a port is remembered, and nobody listens there."""
    was_started(Layout(trial))
    assert fedkin("status", "trial").status == 0
    assert "nothing was running" in fedkin("down", "trial").out
    refused(fedkin("run", "trial", "--out", "r", "--steps", 1), "is down", "fedkin federation up")
    Layout(trial).running.write_text("{")
    assert fedkin("status", "trial").status == 0


def test_status_while_the_superlink_does_not_answer(fedkin, trial, monkeypatch):
    was_started(Layout(trial))
    monkeypatch.setattr(processes, "find", lambda identity: {12345: SUPERLINK})
    answer = json.loads(fedkin("status", "trial", "--json").out)
    assert answer["superlink"]["state"] == "silent"
    assert {node["state"] for node in answer["nodes"].values()} == {"unknown"}
    assert "does not answer" in fedkin("status", "trial").err


def test_logs(fedkin, trial):
    refused(fedkin("logs", "trial"), "not written a log yet")
    refused(fedkin("logs", "trial", "minority-9"), "no log of 'minority-9'", "minority-1")
    refused(fedkin("logs", "trial", "--lines", 0), "--lines")
    refused(fedkin("logs", "trial", "--follow", "--json"), "--follow")
    log = Layout(trial).log(SUPERLINK)
    log.parent.mkdir()
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert fedkin("logs", "trial", "-n", 2).out == "line 98\nline 99\n"
    assert json.loads(fedkin("logs", "trial", "-n", 1, "--json").out)["lines"] == ["line 99"]


# run


@pytest.mark.parametrize(
    ("content", "more", "parts"),
    [
        (None, [], ["there is no file study.toml"]),
        ("method = ", [], ["not valid TOML"]),
        ('method = "bilevl"', [], ["method"]),
        ("stepss = 3", [], ["unknown key stepss", "steps"]),
        ("seed = 5", [], ["seed is 5", "drawn with 0"]),
        ('dataset = "mnist"', [], ["dataset is mnist", "drawn with digits"]),
        ("setting = [1, 2]", [], ["setting is [1, 2]"]),
        ("steps = 1", ["--steps", 2], ["steps is in study.toml and among the options"]),
        ("steps = 1", ["--method", "bilevl"], ["method"]),
        ("[federation]\npatience = -1", [], ["federation.patience"]),
        ("steps = 1", [], ["is down", "fedkin federation up"]),
    ],
)
def test_run_refuses(fedkin, trial, tmp_path, content, more, parts):
    if content is not None:
        (tmp_path / "study.toml").write_text(content)
    refused(fedkin("run", "trial", "study.toml", "--out", "r", *more), *parts)
    assert not (tmp_path / "r").exists()


def test_open_parameters_come_from_the_data(fedkin, trial, tmp_path):
    """The paper's need many synchronizations: two steps of them would teach a model nothing."""
    refused(fedkin("run", "trial", "--out", "r", "--steps", 2), "is down")
    (job,) = (trial / "jobs").glob("options-*.toml")
    assert load_job(job).study.runs()[0].settings["preset"] == "automatic"
    for preset, more in (("automatic", ""), ("paper", "\n[settings]\npreset = 'paper'")):
        (tmp_path / f"{preset}.toml").write_text(f"steps = 2{more}")
        refused(fedkin("run", "trial", f"{preset}.toml", "--out", "r"), "is down")
        (job,) = (trial / "jobs").glob(f"{preset}-*.toml")
        assert load_job(job).study.runs()[0].settings["preset"] == preset


def test_results_of_tables_are_not_written_over(fedkin, tables, tmp_path, monkeypatch):
    assert fedkin("init", "f", *tables, "--validation", "own.csv").status == 0
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "weights.json").write_text("{}")
    monkeypatch.setattr("fedkin.cli.federation.run.check_ready", lambda *_: None)
    was_started(Layout(tmp_path / "f"))
    answer = fedkin("run", "f", "--out", "r")
    refused(answer, "is not empty", "another --out")
    assert "--force" not in answer.err


def test_a_study_whose_damaged_file_was_deleted_is_resumed(fedkin, trial, tmp_path, monkeypatch):
    """As its message says, and as `fedkin run` does."""

    def start(*_):
        raise InputError("the run was started")

    monkeypatch.setattr("fedkin.cli.federation.run.check_ready", lambda *_: None)
    monkeypatch.setattr("fedkin.cli.federation.run.wait_for_run", start)
    was_started(Layout(trial))
    (tmp_path / "r" / "runs").mkdir(parents=True)
    command = ("run", "trial", "--steps", 1, "--out", "r")
    refused(fedkin(*command), "has other files")
    refused(fedkin(*command, "--resume"), "the run was started")
    (tmp_path / "r" / "study.json").write_text("{")
    refused(fedkin(*command, "--resume"), "is damaged: delete it")


def test_nodes_whose_names_look_like_numbers_are_shown(
    fedkin, tables, tmp_path, monkeypatch, capsys
):
    arguments = ["--node", "01=a.csv", "--node", "NA=b.csv", "--label", "outcome"]
    arguments += ["--validation", "own.csv", "--out", "r"]
    monkeypatch.setattr(sys, "argv", ["fedkin", "fit", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 0
    capsys.readouterr()
    read_and_show_fit(tmp_path / "r", json=False)
    shown = capsys.readouterr().out
    assert "01" in shown
    assert "NA" in shown
    read_and_show_fit(tmp_path / "r", json=True)
    assert json.loads(capsys.readouterr().out)["rows"] == {"01": 40, "NA": 40}


def test_run_needs_out(fedkin, trial):
    refused(fedkin("run", "trial", "--steps", 1), "--out")


def test_tables_learn_by_one_method(fedkin, tables):
    assert fedkin("init", "f", *tables, "--validation", "own.csv").status == 0
    refused(
        fedkin("run", "f", "--out", "r", "--method", "bilevel", "--method", "fedavg"),
        "one method at a time",
    )
    refused(fedkin("run", "f", "--out", "r", "--model", "cnn"), "model")


def test_a_job_names_the_centers_tables_from_its_own_file(fedkin, tmp_path):
    """On a server whose nodes are elsewhere, the study says everything."""
    assert fedkin("init", "link", "--nodes", 0).status == 0
    (tmp_path / "studies").mkdir()
    study = tmp_path / "studies" / "heart.toml"
    study.write_text('validation = "own.csv"\nlabel = "outcome"\n[federation]\nnodes = 3\n')
    refused(fedkin("run", "link", study, "--out", "r"), "is down")
    refused(fedkin("run", "link", study, "--out", "r"), "is down")
    first, second = (tmp_path / "link" / "jobs").glob("heart-*.toml")  # a file for each
    assert first.read_text() == second.read_text()
    job = tomllib.loads(first.read_text())
    assert job["validation"] == str(tmp_path / "studies" / "own.csv")
    study.write_text('validation = "own.csv"\nlabel = "outcome"\n')
    refused(fedkin("run", "link", study, "--out", "r"), "how many nodes take part")


# node, superlink, keys


@pytest.fixture
def become(monkeypatch):
    """What a command would turn into, in place of turning into it."""
    became = []

    def note(command, variables):
        became.append((command, variables))
        raise SystemExit(0)

    monkeypatch.setattr("fedkin.cli.federation.foreground.become", note)
    return became


@pytest.fixture
def credentials(fedkin, trial, tmp_path):
    assert fedkin("key", "node.key").status == 0
    return ["--ca", trial / "certificates" / "ca.pem", "--key", "node.key"]


NODE = ["node", "--superlink", "localhost:8000", "--table", "a.csv", "--label", "outcome"]


def test_a_node_is_started_with_tls_and_its_key(fedkin, tables, credentials, become, tmp_path):
    more = [
        "--name",
        "zurich",
        "--minimum-points",
        20,
        "--state",
        "state",
        "--drop",
        "'note, spoken'",
    ]
    more[-1] = '"note, spoken"'
    answer = fedkin(*NODE, *credentials, *more)
    assert answer.status == 0, answer.err
    assert "40 rows" in answer.err
    ((command, variables),) = become
    assert "--insecure" not in command
    assert command[command.index("--root-certificates") + 1].endswith("ca.pem")
    assert command[command.index("--auth-supernode-private-key") + 1] == str(tmp_path / "node.key")
    assert command[command.index("--isolation") + 1] == "process"
    told = tomllib.loads((tmp_path / "state" / "node.toml").read_text())
    assert told["name"] == "zurich"
    assert told["data"] == str(tmp_path / "a.csv")
    assert told["minimum-points"] == 20
    assert told["minimum-batch"] == 5
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"


@pytest.mark.parametrize("ending", [".dat", ""])
def test_a_table_of_any_ending_is_one_of_a_trial(fedkin, tables, tmp_path, ending):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").rename(tmp_path / f"{name}{ending}")
    nodes = ["--node", f"a=a{ending}", "--node", f"b=b{ending}", *tables[4:]]
    assert fedkin("init", "f", *nodes, "--validation", "own.csv").status == 0
    layout = Layout(tmp_path / "f")
    node = layout.read().node[0]
    assert node_settings(trial_module._node_configuration(layout, layout.read(), node)).is_table
    (tmp_path / f"a{ending}").unlink()
    refused(fedkin("up", "f"), "node 'a'", "no data at")


def test_insecure_has_to_be_asked_for(fedkin, tables, credentials, become):
    answer = fedkin(*NODE, "--insecure")
    assert answer.status == 0, answer.err
    assert "warning: --insecure" in answer.err
    assert "--insecure" in become[0][0]
    refused(fedkin(*NODE, "--insecure", *credentials), "neither --ca nor --key")
    refused(fedkin(*NODE), "--ca is missing")
    refused(fedkin(*NODE, *credentials[:2]), "--key is missing")


@pytest.mark.parametrize(
    ("replaced", "parts"),
    [
        ({"--superlink": "https://localhost:8000"}, ["HOST:PORT without http://"]),
        ({"--superlink": "localhost"}, ["HOST:PORT", "link.example.org:8000"]),
        ({"--superlink": "localhost:99999"}, ["HOST:PORT"]),
        ({"--table": "none.csv"}, ["there is no file", "none.csv"]),
        ({"--label": "outcom"}, ["no column 'outcom'", "outcome"]),
        ({"--name": "a b"}, ["'a b'", "--name"]),
        ({"--minimum-points": "41"}, ["40 rows", "--minimum-points is 41"]),
        ({"--allow": "slope,everything"}, ["everything"]),
        ({"--key": "a.csv"}, ["not a node's private key"]),
        ({"--key": "node.key.pub"}, ["not a node's private key"]),
        ({"--ca": "a.csv"}, ["not a certificate"]),
        ({"--columns": "x,y"}, ["3 columns, but 2"]),
        ({"--separator": ";;"}, ["separator"]),
    ],
)
def test_node_refuses(fedkin, tables, credentials, become, replaced, parts):
    words = [*NODE[1:], *map(str, credentials)]
    options = dict(zip(words[::2], words[1::2], strict=True)) | replaced
    refused(fedkin("node", *(part for pair in options.items() for part in pair)), *parts)
    assert not become


def test_the_superlink_is_started_with_tls_and_authentication(fedkin, trial, become):
    port = processes.free_ports(1)[0]
    answer = fedkin("superlink", "trial", "--port", port)
    assert answer.status == 0, answer.err
    command = become[0][0]
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    assert command[command.index("--database") + 1] == str(trial / "superlink.db")
    assert Layout(trial).read_running() == Running(ports={SUPERLINK: port})


def test_superlink_refuses(fedkin, trial, become):
    refused(fedkin("superlink", "trial", "--port", 0), "--port")
    for address in ("203.0.113.77", "::", "::1", "localhost"):
        refused(fedkin("superlink", "trial", "--listen", address), "--listen", address, "0.0.0.0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused(fedkin("superlink", "trial", "--port", taken.getsockname()[1]), "in use")
    layout = Layout(trial)
    layout.server_key.unlink()
    refused(fedkin("superlink", "trial"), "server.key is missing")
    assert not become


def test_an_expired_certificate_is_refused_and_an_old_one_is_warned_of(
    fedkin, trial, become, monkeypatch
):
    port = processes.free_ports(1)[0]
    assert fedkin("renew", "trial", "--days", 20).status == 0
    answer = fedkin("superlink", "trial", "--port", port)
    assert "warning" in answer.err
    assert "expires in 19 days" in answer.err

    class Later(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return super().now(zone) + datetime.timedelta(days=21)

    monkeypatch.setattr("fedkin.cli.federation.superlink.datetime.datetime", Later)
    refused(fedkin("superlink", "trial", "--port", port), "has expired", "renew")


def test_renew_keeps_the_names_or_takes_others(fedkin, trial):
    layout = Layout(trial)
    assert json.loads(fedkin("renew", "trial", "--json").out)["hosts"] == ["localhost", "127.0.0.1"]
    told = json.loads(fedkin("renew", "trial", "--host", "link.example.org", "--json").out)
    assert told["hosts"] == ["link.example.org", "localhost", "127.0.0.1"]
    refused(fedkin("renew", "trial", "--host", "a/b"), "not the name or address")
    refused(fedkin("renew", "trial", "--days", 0), "--days")
    layout.authority_key.write_text("x")
    refused(fedkin("renew", "trial"), "ca.key is not a private key")
    layout.authority_key.unlink()
    refused(fedkin("renew", "trial"), "there is no file", "ca.key")


def test_key_is_made_once(fedkin, tmp_path):
    answer = fedkin("key", "keys/node.key", "--json")
    assert json.loads(answer.out)["public_key"] == "keys/node.key.pub"
    refused(fedkin("key", "keys/node.key"), "never overwritten")
    refused(fedkin("key"), "FILE")
    (tmp_path / "file").write_text("")
    refused(fedkin("key", "file/node.key"), "cannot make the directory")
    assert fedkin("key", "keys").status == 2


def test_register_and_unregister_refuse(fedkin, trial, tmp_path):
    fedkin("key", "node.key")
    for command in (
        ("register", "trial", "zurich", "node.key.pub"),
        ("unregister", "trial", "zurich"),
    ):
        refused(fedkin(*command), "is down")
    refused(fedkin("register", "trial", "a/b", "node.key.pub"), "'a/b'")
    refused(fedkin("register", "trial", "zurich"), "KEY.pub")
    was_started(Layout(trial))
    for command in (
        ("register", "trial", "zurich", "node.key.pub"),
        ("unregister", "trial", "zurich"),
    ):
        refused(fedkin(*command), "cannot be reached")


def test_without_the_extra_every_command_says_what_to_install(fedkin, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    refused(fedkin("init", "f", "--nodes", 2), "pip install 'fedkin[flower]'")
