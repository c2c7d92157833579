"""docs/federation.md lists the tasks as they declare themselves."""

from pathlib import Path

from fedkin.federation.questions import QUESTIONS
from fedkin.flower.guard import remote_tasks
from fedkin.flower.node_settings import NodeSettings
from fedkin.flower.tasks_table import render_revealed, render_tasks
from fedkin.methods.local_svrg.alone import TRAIN_ALONE

PAGE = Path(__file__).parents[2] / "docs" / "federation.md"
SECURITY = PAGE.with_name("security.md")


def test_the_page_has_the_table_of_all_tasks():
    """Print it with `python -m fedkin.flower.tasks_table` where a task has changed."""
    own = [task for task in remote_tasks().values() if task.is_fedkins_own]
    table = render_tasks(own)
    assert len(table.splitlines()) == 2 + len(own) >= 2 + 7
    assert table in PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_table_of_all_questions():
    """Those that a node answers as an owner."""
    assert render_tasks([*QUESTIONS.values(), TRAIN_ALONE]) in PAGE.read_text(encoding="utf-8")


def test_the_page_on_security_says_what_every_request_reveals():
    tasks = [task for task in remote_tasks().values() if task.is_fedkins_own]
    for own in (tasks, [*QUESTIONS.values(), TRAIN_ALONE]):
        assert all(task.reveals.endswith(".") for task in own)
        assert render_revealed(own) in SECURITY.read_text(encoding="utf-8")


def test_the_page_has_every_setting_of_a_node():
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("## A node's settings") : text.index("## The messages")]
    for name in NodeSettings.model_fields:
        assert f"`{name.replace('_', '-')}`" in table, name
