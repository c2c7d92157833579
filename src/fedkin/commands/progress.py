"""A line that shows how far a method has come."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedkin.experiments.runner import Evaluation


@contextmanager
def live_progress(title: str, console: Console) -> Iterator[Callable[[Evaluation], None]]:
    """Show a spinner with step and validation score; nothing where there is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(f"{title}: compiling")

        def show(evaluation: Evaluation) -> None:
            score = evaluation.validation
            what = f"loss {score.loss:.4f}"
            if score.accuracy is not None:
                what = f"accuracy {score.accuracy:.3f}"
            progress.update(task, description=f"{title}: step {evaluation.step}, validation {what}")

        yield show
