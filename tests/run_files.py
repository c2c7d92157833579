"""What a run of a study leaves behind, for comparison."""

from pathlib import Path

import numpy as np
import pandas as pd

from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory


def files(parent: Path, run: RunConfig) -> tuple[str, dict[str, bytes], str]:
    """Return everything a run leaves behind, except for times."""
    path = RunDirectory(parent, run).path
    history = pd.read_parquet(path / "history.parquet").drop(columns="seconds")
    with np.load(path / "models.npz") as models:
        arrays = {name: models[name].tobytes() for name in models.files}
    return history.to_csv(index=False), arrays, (path / "weights.json").read_text()
