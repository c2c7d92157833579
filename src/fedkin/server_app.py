"""What Flower runs at the centre: the experiment runner, with the nodes behind Flower's Grid."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkin.errors import InputError
from fedkin.federation.flower.post import Post
from fedkin.jobs import carry_out_job, load_job

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the job that the run's configuration names (docs/federation.md)."""
    config = context.run_config
    job, out = (str(config.get(name, "")) for name in ("job", "out"))
    if not job or not out:
        raise InputError('name the job and a directory for its results: job="…" out="…"')
    work = load_job(Path(job))
    federation = work.federation
    post = Post(grid, patience=federation.patience, interval=federation.interval)
    carry_out_job(work, post, Path(out), resume=bool(config.get("resume", False)))
