"""The tables of all tasks and questions in docs/federation.md and docs/security.md, from what they declare.

`python -m fedkin.flower.tasks_table` prints them, for copying into the pages.
"""

import sys
from collections.abc import Iterable

from fedkin.federation.questions import QUESTIONS
from fedkin.federation.task import Task
from fedkin.flower.guard import remote_tasks
from fedkin.methods.local_svrg.alone import TRAIN_ALONE

HEADER = ("task", "what it does", "vectors", "numbers", "options", "reply", "memory")

REVEALED_HEADER = ("task", "what the center gets", "what that reveals")


def render_tasks(tasks: Iterable[Task]) -> str:
    """Return the table as Markdown.

    >>> from fedkin.methods.bilevel.node import SLOPE
    >>> print(render_tasks([SLOPE]).splitlines()[2][:70])
    | `slope` | Reply with one number, −∇L_k(θ)ᵀv (`eq:approxgrade`). | `v
    """
    lines = [_line(HEADER), "|---" * len(HEADER) + "|", *(_line(_row(task)) for task in tasks)]
    return "\n".join(lines) + "\n"


def render_revealed(tasks: Iterable[Task]) -> str:
    """Return the table of what replies reveal as Markdown.

    >>> from fedkin.methods.bilevel.node import GRADIENT
    >>> print(render_revealed([GRADIENT]).splitlines()[2][:60])
    | `gradient` | d numbers (`gradient`); 1 number (`loss`) | T
    """
    lines = [_line(REVEALED_HEADER), "|---" * len(REVEALED_HEADER) + "|"]
    for task in tasks:
        vectors, numbers = task.vector_replies, task.number_replies
        got = [f"d numbers ({_names(vectors)})" if vectors else ""]
        count = f"{len(numbers)} number{'s' if len(numbers) > 1 else ''}"
        got.append(f"{count} ({_names(numbers)})" if numbers else "")
        lines.append(_line((f"`{task.name}`", _joined(got), task.reveals)))
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _row(task: Task) -> tuple[str, ...]:
    begin = f"at the beginning also {_names(task.begin_vectors)}" if task.begin_vectors else ""
    return (
        f"`{task.name}`",
        task.summary,
        _joined([_names(task.vectors), begin]),
        _joined([f"`{name}` {_range(ends)}" for name, ends in task.numbers.items()]),
        _joined([f"`{name}` {_range(allowed)}" for name, allowed in task.options.items()]),
        _joined([_replies("vector", task.vector_replies), _replies("number", task.number_replies)]),
        _joined(f"`{slot.name}`{' (lasting)' if slot.lasting else ''}" for slot in task.slots),
    )


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(part for part in parts if part)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _range(allowed: tuple[float, float] | tuple[int, int] | tuple[str, ...]) -> str:
    if isinstance(allowed[0], str):
        return " or ".join(f"`{name}`" for name in allowed)
    least, largest = allowed
    return f"{least:,.9g} to {largest:,.9g}"


def _replies(kind: str, names: tuple[str, ...]) -> str:
    return f"{kind}{'s' if len(names) > 1 else ''} {_names(names)}" if names else ""


if __name__ == "__main__":
    owners_tasks = [*QUESTIONS.values(), TRAIN_ALONE]
    for render in (render_tasks, render_revealed):
        sys.stdout.write(render(remote_tasks().values()) + "\n")
        sys.stdout.write(render(owners_tasks) + "\n")
