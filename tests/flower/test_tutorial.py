"""docs/tutorial-federation.md: its commands run as they are written, in one directory per machine."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from documents import ROOT, differs
from flower.processes import BIN, free_port, wait_until

pytestmark = pytest.mark.flower

PAGE = ROOT / "docs" / "tutorial-federation.md"
BLOCK = re.compile(
    r"^    # on (?:the )?(?P<machine>\w+)\n(?P<lines>(?:    [^\n]*\n)+)"
    r"(?:\n```text\n(?P<printed>.*?)^```\n)?",
    re.M | re.S,
)
MACHINES = {
    "link.example.org": "server",
    "north.example.org": "north",
    "south.example.org": "south",
}
FILES = {"server": ("own", "new"), "north": ("north",), "south": ("south",)}
ENDLESS = ("superlink", "node")
"""Commands of `fedkin federation` that run until they are stopped."""
PATIENCE = 900


class Machines:
    """Three directories, in which commands run as on three machines."""

    def __init__(self, directory):
        self.directories = {name: directory / name for name in FILES}
        self.port = free_port()
        self.started = []

    def run(self, machine, line):
        """Run a command to its end, or start one that has none; return what it prints."""
        here = self.directories[machine]
        if line.startswith("scp "):
            _, file, host = line.split()
            shutil.copy(here / file, self.directories[MACHINES[host.rstrip(":")]])
            return ""
        command = shlex.split(
            line.replace("link.example.org", "localhost")
            .replace("8000", str(self.port))
            .replace("0.0.0.0", "127.0.0.1")
        )
        command[0] = str(BIN / command[0])
        if command[1] == "federation" and command[2] in ENDLESS:
            with (here / f"{command[2]}.log").open("ab") as log:
                self.started.append(
                    subprocess.Popen(command, cwd=here, stdout=log, stderr=subprocess.STDOUT)
                )
            return ""
        done = subprocess.run(
            command, cwd=here, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait(self, server):
        """Wait until the SuperLink answers, and as many nodes are online as have been started."""

        def ready():
            command = [str(BIN / "fedkin"), "federation", "status", "link", "--json"]
            done = subprocess.run(command, cwd=server, capture_output=True, text=True, check=False)
            return done.returncode == 0 and done.stdout.count('"state": "online"') >= (
                len(self.started) - 1
            )

        wait_until(ready, PATIENCE, "the SuperLink and its nodes")

    def stop(self):
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(60)


def test_the_commands_of_the_tutorial_run_on_three_machines(tmp_path, monkeypatch):
    page = PAGE.read_text(encoding="utf-8")
    machines = Machines(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    code = re.search(r"```python\n(.*?)```", page, re.S)[1]
    subprocess.run([sys.executable, "-c", code], check=True)
    for machine, names in FILES.items():
        machines.directories[machine].mkdir()
        for name in names:
            shutil.move(f"{name}.csv", machines.directories[machine])
    server = machines.directories["server"]
    study = re.search(r"```toml\n(.*?)```", page, re.S)[1]
    (server / "study.toml").write_text(study)
    try:
        for block in BLOCK.finditer(page):
            for line in re.sub(r" *\\\n *", " ", block["lines"]).strip().split("\n"):
                printed = machines.run(block["machine"], line.strip())
                if machines.started:
                    machines.wait(server)
            assert block["printed"] is None or not differs(block["printed"], printed), printed
    finally:
        machines.stop()
    weights = json.loads((server / "result" / "weights.json").read_text())
    assert weights["north"] > 0.9 > 0.1 > weights["south"]
    assert len((server / "predictions.csv").read_text().splitlines()) == 1 + 109
