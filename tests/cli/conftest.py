import sys
from typing import NamedTuple

import pytest

from fedkin.cli import app as cli


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `fedkin` in a directory of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedkin", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return Answer(int(left.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def refused(command):
    """Run a command that must end with one line on stderr, and return that line."""

    def run(*arguments) -> str:
        answer = command(*arguments)
        assert answer.status == 2
        assert answer.out == ""
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1
        return answer.err

    return run
