"""What Flower runs at the center: a job, with the nodes behind Flower's Grid."""

import logging
import sys
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkin.compilation import keep_compiled_code_like_parent
from fedkin.errors import InputError
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.messenger import Messenger

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the job that the run configuration names (docs/federation.md)."""
    config = context.run_config
    job, out = (str(config.get(name, "")) for name in ("job", "out"))
    if not job or not out:
        raise InputError('name the job and a directory for its results: job="…" out="…"')
    _log_to_flower()
    keep_compiled_code_like_parent()
    work = load_job(Path(job))
    options = work.federation
    messenger = Messenger(grid, patience=options.patience, interval=options.interval)
    work.carry_out(messenger, Path(out), resume=bool(config.get("resume", False)))


def _log_to_flower() -> None:
    """Print fedkin's log: Flower keeps what is printed, and `flwr log` shows it."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("fedkin")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
