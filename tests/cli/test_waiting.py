"""How waiting for a run at the center ends, and what is said then; the SuperLink here is none."""

import os
import signal

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.cli.federation import waiting
from fedkin.cli.output import StoppedByUserError
from fedkin.errors import InputError
from fedkin.flower.internals.control import LostError, RunStatus
from fedkin.flower.layout import Layout

GO_ON = "continue with the same command and --resume: finished steps are kept"


class Link:
    """A SuperLink whose run goes as a test says: states, errors, or calls."""

    def __init__(self, *course):
        self.course = list(course)
        self.stopped = []

    def start_run(self, application, configuration):
        return 7

    def run_status(self, number):
        now = self.course.pop(0) if len(self.course) > 1 else self.course[0]
        if isinstance(now, Exception):
            raise now
        return now() if callable(now) else now

    def stop_run(self, number):
        self.stopped.append(number)


def status(ended=False, outcome="", details=""):
    return RunStatus(7, "out", ended, outcome, details, 0)


@pytest.fixture
def wait(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.01)
    (tmp_path / "out.123.checkpoint.npz").touch()

    def run(link):
        configuration = {"out": str(tmp_path / "out")}
        return waiting.wait_for_run(Layout(tmp_path), link, configuration, lambda state: None)

    return run


@pytest.mark.parametrize(
    ("outcome", "details", "words"),
    [
        ("failed", "the program at the center was killed by SIGKILL", f"SIGKILL; {GO_ON}"),
        ("failed", waiting.NO_SIGN, f"no sign of life for a minute; {GO_ON}"),
        ("stopped", "", f"the run was stopped; {GO_ON}"),
        ("failed", f"{waiting.OF_THE_PROGRAM}no room", f"no room; when that is mended, {GO_ON}"),
        ("failed", f"{waiting.OF_THE_PROGRAM}use --resume", "use --resume (the whole log"),
    ],
)
def test_every_end_says_how_to_go_on(outcome, details, words, wait):
    assert words in wait(Link(status(), status(True, outcome, details)))


def test_a_completed_run_has_no_failure(wait):
    assert wait(Link(status(), status(True, "completed"))) is None


def test_a_superlink_that_is_gone_is_noticed_at_the_next_look(wait):
    with pytest.raises(InputError, match=f"nobody there; the run has ended .* then {GO_ON}"):
        wait(Link(status(), LostError("nobody there", gone=True)))


def test_a_superlink_that_is_busy_is_given_time(wait, monkeypatch):
    busy = LostError("busy", gone=False)
    assert wait(Link(status(), busy, busy, status(True, "completed"))) is None
    monkeypatch.setattr(waiting, "SILENT_SECONDS", 0.05)
    with pytest.raises(InputError, match="busy; the run has ended"):
        wait(Link(status(), busy))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_that_is_asked_to_end_stops_its_run(number, wait):
    if signal.getsignal(number) == signal.SIG_IGN:  # under nohup, or in the background of a shell
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    before = signal.getsignal(number)
    link = Link(status(), lambda: os.kill(os.getpid(), number) or status())
    with pytest.raises(StoppedByUserError, match=f"stopped at the center; {GO_ON}"):
        wait(link)
    assert link.stopped == [7]
    assert signal.getsignal(number) == before


def test_what_has_kept_nothing_is_started_again(tmp_path):
    assert waiting.how_to_go_on(tmp_path / "other").startswith("give the same command again")
