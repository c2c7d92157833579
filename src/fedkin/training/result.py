"""What `fedkin.fit` returns, and how it is kept in a file."""

import io
import json
import zipfile
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from pydantic import TypeAdapter, model_validator

from fedkin.data.arrays import check_inputs_like
from fedkin.errors import InputError
from fedkin.federation.base import Cost
from fedkin.federation.center import evaluate_in_chunks
from fedkin.files import write_atomically
from fedkin.messages import shorten
from fedkin.models.base import Model, Statistics, as_model, is_torch_module
from fedkin.models.named import BUILT_IN_MODELS
from fedkin.models.objective import Objective
from fedkin.training import plots
from fedkin.training.saved_files import (
    Archive,
    FiniteNumber,
    Name,
    Record,
    Text,
    as_sizes,
    describing_damage,
    read_arrays,
    read_record,
    read_table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1
"""The version of the file format; a file of another version is refused."""

STATE = "state/"
"""What the names of a PyTorch module's arrays begin with."""

LARGEST_POINT = 10_000_000
"""The largest number of entries of one input."""

SAVED_MODELS: dict[str, Any] = {model.__name__: model for model in BUILT_IN_MODELS}
"""Models whose settings are written into the file; of others only the parameters are kept."""


@dataclass(frozen=True, repr=False)
class Result:
    """The learned weights, the model trained with them, and how they came about.

    >>> import numpy as np, fedkin
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> nodes = {"north": (x, 2 * x[:, 0]), "south": (x, -x[:, 0])}
    >>> result = fedkin.fit(nodes, validation=(x, 2 * x[:, 0]), model="ridge", cap=1.0)
    >>> result.weights["north"] > 0.99
    True
    >>> abs(float(result.predict([[0.5]])[0]) - 1) < 0.05
    True
    >>> result.history.columns[0], result.stopped.split(":")[0]
    ('step', 'converged')
    """

    method: str
    weights: dict[str, float] | None
    """The weight of each node by its name; None for methods that do not weigh nodes."""
    history: pd.DataFrame
    """One row per evaluation: step, costs so far, losses and accuracies, weights, diagnostics."""
    cost: Cost
    """What the whole run has cost."""
    stopped: str
    """Why the run ended."""
    warnings: tuple[str, ...]
    """What went wrong and was mended."""
    classes: np.ndarray | None
    """The label of each column of `predict_proba`; None for regression."""
    theta: np.ndarray
    """All parameters of the model in one vector."""
    objective: Objective
    statistics: Statistics
    """Normalization statistics of the validation data, used for all predictions."""
    point_shape: tuple[int, ...]
    """The shape of one raw input point."""
    columns: tuple[str, ...] | None = None
    """The names of the features, where the model was trained on DataFrames: those of new ones are found
    by name, in any order."""
    cap: float | dict[str, float] | None = None
    """The largest weight that a node could get, by node where they differ; None for methods without a cap."""
    comparison: pd.DataFrame | None = None
    """Loss and accuracy on the validation rows of `alone` (cross-validated), of the weights at the start
    (`equal` or `prior`), and of the `learned` ones, for linear models whose weights were learned."""
    secure_sums: bool | None = None
    """Whether nodes of a real federation masked their vectors, so that the center saw sums only
    (docs/security.md); None where all data were at hand."""
    before: "Result | None" = None
    """Where the owner's rows were put back after the weights were chosen: the result without them, which
    scores on validation rows are of."""

    @property
    def at_cap(self) -> tuple[str, ...]:
        """The nodes whose weight the cap decides: without it, theirs would be larger."""
        return capped_nodes(self.weights, self.cap)

    @property
    def model(self) -> Model:
        """The model, without its parameters."""
        return self.objective.model

    @property
    def params(self) -> Any:
        """The parameters in the arrangement that the model knows."""
        return self.objective.unflatten(jnp.asarray(self.theta))

    def plot_weights(self, ax: Any = None) -> "Axes":
        """Draw the weight of each node as a bar, on these matplotlib axes or new ones; return the axes.

        Weights that the cap decides are orange.
        """
        if self.weights is None:
            raise InputError(f"the method {self.method!r} has no weights to draw: use plot_history")
        return plots.plot_bars(self.weights, ax, "weight", marked=self.at_cap)

    def plot_history(self, ax: Any = None) -> "Axes":
        """Draw the losses during training against the synchronizations; return the axes."""
        losses = [name for name in ("validation_loss", "test_loss") if name in self.history]
        return plots.plot_lines(self.history, "synchronizations", losses, ax, "loss")

    def __repr__(self) -> str:
        lines = [f"Result of {self.method}: {self.cost.synchronizations} synchronizations"]
        if self.weights is not None:
            table = self._weights_table().to_string(max_rows=20, index_names=False)
            lines += [f"  {line}".rstrip() for line in table.splitlines()]
        if self.comparison is not None:
            lines += ["  on the validation rows:"]
            lines += [f"    {line}" for line in self.comparison.round(4).to_string().splitlines()]
        lines.append(f"  {self.stopped}")
        return "\n".join([*lines, *(f"  warning: {warning}" for warning in self.warnings)])

    def _repr_html_(self) -> str:
        """Show the weights and what they have to beat in a notebook."""
        head, *_ = repr(self).split("\n")
        tables = "" if self.weights is None else self._weights_table().to_html(max_rows=20)
        if self.comparison is not None:
            tables += self.comparison.round(4).to_html()
        notes = "".join(f"<p>{escape(note)}</p>" for note in (self.stopped, *self.warnings))
        return f"<p>{escape(head)}</p>{tables}{notes}"

    def _weights_table(self) -> pd.DataFrame:
        """Return the nodes with their weights, the largest first."""
        table = pd.DataFrame({"weight": self.weights or {}}, dtype=float).rename_axis("node")
        table["at cap"] = ["yes" if name in self.at_cap else "" for name in table.index]
        return table.sort_values("weight", ascending=False, kind="stable").round(3)

    def module(self) -> Any:
        """Return a trained copy of the PyTorch module, in evaluation mode.

        Its layers of batch normalization have the statistics of the validation data, so it predicts what
        `predict` does.
        """
        if self.objective.in_jax:
            raise InputError(
                f"the model is a {type(self.model).__name__}, not a PyTorch module: use predict, or params"
            )
        from fedkin.models.torch_module import TorchObjective

        assert isinstance(self.objective, TorchObjective)
        return self.objective.trained_module(self.theta, self.statistics)

    def predict(self, inputs: Any) -> np.ndarray:
        """Return the label (or, in regression, the number) predicted for each point."""
        outputs = self._outputs(inputs)
        return outputs if self.classes is None else self.classes[np.argmax(outputs, axis=1)]

    def predict_proba(self, inputs: Any) -> np.ndarray:
        """Return the probability of each class for each point."""
        if self.classes is None:
            raise InputError(
                "predict_proba is for classification; this model predicts numbers: use predict"
            )
        return np.asarray(jax.nn.softmax(self._outputs(inputs), axis=1))

    def save(self, path: str | Path) -> None:
        """Write everything into one file, to be read by `fedkin.load`. Nothing in it is executable."""
        write_atomically(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return what `save` writes."""
        name = type(getattr(self.model, "module", self.model)).__name__
        known = type(self.model) in BUILT_IN_MODELS  # one derived from these may be anything
        classes = None if self.classes is None else self.classes.tolist()
        description = {
            "format": FORMAT,
            "method": self.method,
            "weights": self.weights,
            "cost": asdict(self.cost),
            "stopped": self.stopped,
            "warnings": self.warnings,
            "classes": classes,
            "point_shape": self.point_shape,
            "columns": self.columns,
            "cap": self.cap,
            "secure_sums": self.secure_sums,
            "comparison": None if self.comparison is None else _as_records(self.comparison),
            "point_dtype": self.objective.point_dtype,
            "model": {"name": name, "settings": asdict(self.model) if known else None},  # pyright: ignore
        }
        arrays = io.BytesIO()
        leaves = jax.tree.leaves(self.statistics)
        named: dict[str, Any] = {f"statistics_{i}": leaf for i, leaf in enumerate(leaves)}
        named |= {f"{STATE}{name}": array for name, array in self._state().items()}
        np.savez(arrays, theta=self.theta, **named)
        table = io.BytesIO()
        self.history.to_parquet(table, index=False)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("result.json", json.dumps(description, indent=2))
            archive.writestr("arrays.npz", arrays.getvalue())
            archive.writestr("history.parquet", table.getvalue())
        return content.getvalue()

    def to_onnx(self, path: str | Path) -> None:
        """Write the model in the ONNX format, for other programs and languages (extra `onnx`).

        `logistic`, `ridge`, `mlp` and PyTorch modules can be written. Its input `inputs` is what `predict`
        takes; its results are `label` and `probabilities`, or `prediction` for numbers.
        """
        from fedkin.training.onnx_export import to_onnx_bytes

        write_atomically(Path(path), to_onnx_bytes(self))

    def _state(self) -> dict[str, np.ndarray]:
        """Return the state dict of a PyTorch module as arrays; nothing for other models."""
        if self.objective.in_jax:
            return {}
        from fedkin.models.torch_module import state_arrays

        return state_arrays(self.module())

    def _outputs(self, inputs: Any) -> np.ndarray:
        checked = check_inputs_like(inputs, self.point_shape, self.columns)
        if (checked.dtype == np.uint8) != (self.objective.point_dtype == "uint8"):
            raise InputError(
                f"the model was trained on inputs of type {self.objective.point_dtype}, "
                f"these are {checked.dtype}"
            )
        prepared = np.asarray(self.model.prepare(jnp.asarray(checked)))
        return evaluate_in_chunks(
            self.objective, jnp.asarray(self.theta), prepared, self.statistics
        )


def load(path: str | Path, model: Any | None = None) -> Result:
    """Read what `Result.save` wrote.

    Args:
        path: The file.
        model: The model object, needed where it was not one of fedkin's own: the file has its parameters,
            but no code. A PyTorch module may have any parameters; those of the file replace them.

    >>> import tempfile, numpy as np, fedkin
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> result = fedkin.fit([(x, x[:, 0])] * 2, (x, x[:, 0]), model="ridge", method="fedavg", steps=1)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     result.save(f"{directory}/own.fedkin")
    ...     again = fedkin.load(f"{directory}/own.fedkin")
    >>> bool((again.predict(x) == result.predict(x)).all())
    True
    """
    return result_from_bytes(read_file(Path(path)), str(path), model)


def read_file(path: Path) -> bytes:
    """Return the content of a file that a user names."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}: check the path") from error
    except (OSError, ValueError) as error:  # a path may have characters that no file can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{str(path)!r} cannot be read: {reason}") from error


class SavedModel(Record):
    """What a file says about its model."""

    name: str
    settings: dict[str, Any] | None
    """Of fedkin's own models; None for others, of which the file has the parameters only."""


class SavedResult(Record):
    """What a file says in `result.json`."""

    method: Text
    weights: dict[Name, FiniteNumber] | None
    cost: Cost
    stopped: Text
    warnings: tuple[Text, ...]
    classes: tuple[bool | int | float | Name, ...] | None
    point_shape: tuple[int, ...]
    columns: tuple[Name, ...] | None = None
    cap: FiniteNumber | dict[Name, FiniteNumber] | None = None
    secure_sums: bool | None = None
    comparison: tuple[dict[str, Text | float | None], ...] | None = None
    point_dtype: Literal["uint8", "float32", "float64", "int32", "int64"]
    model: SavedModel

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        as_sizes(self.point_shape, LARGEST_POINT)
        if isinstance(self.cap, dict) and set(self.weights or ()) - set(self.cap):
            raise ValueError("a node with a weight has no cap")
        return self


class _Format(Record):
    format: int


def result_from_bytes(content: bytes, path: str, model: Any | None = None) -> Result:
    """Read what `Result.to_bytes` returned; `path` is for messages."""
    with describing_damage(path, "a saved fedkin result"):
        archive = Archive(content)
        written = archive.read("result.json")
        if (found := read_record(written, _Format).format) != FORMAT:
            raise InputError(f"{path} has format {found}, this version of fedkin reads {FORMAT}")
        saved = read_record(written, SavedResult)
        arrays = read_arrays(archive.read("arrays.npz"))
        history = read_table(archive.read("history.parquet"))
        theta = arrays.pop("theta")
        state = {
            name.removeprefix(STATE): arrays.pop(name)
            for name in list(arrays)
            if name.startswith(STATE)
        }
        leaves = [arrays[f"statistics_{i}"] for i in range(len(arrays))]
        classes = None if saved.classes is None else np.array(saved.classes)
        comparison = None
        if saved.comparison is not None:
            comparison = pd.DataFrame(list(saved.comparison)).set_index("weights")
        example = jnp.asarray(np.zeros((2, *saved.point_shape), saved.point_dtype))
    if model is None and saved.model.settings is not None:
        with describing_damage(path, "a saved fedkin result"):
            restored = _own_model(saved.model.name, saved.model.settings)
            objective = Objective.create(restored, restored.prepare(example))
    else:  # what a user's model raises is no damage of the file
        restored = _given_model(saved.model, model, classes, state)
        objective = Objective.create(restored, restored.prepare(example))
    if theta.shape != (objective.size,):
        raise InputError(
            f"{path} holds {theta.size} parameters, but the given model has {objective.size}"
        )
    with describing_damage(path, "a saved fedkin result"):
        if theta.dtype.kind != "f" or not np.isfinite(theta).all():
            raise ValueError("parameters that are not finite numbers")
        statistics = objective.arrange_statistics(leaves)
    return Result(
        method=saved.method,
        weights=saved.weights,
        history=history,
        cost=saved.cost,
        stopped=saved.stopped,
        warnings=saved.warnings,
        classes=classes,
        theta=theta,
        objective=objective,
        statistics=statistics,
        point_shape=saved.point_shape,
        columns=saved.columns,
        cap=saved.cap,
        secure_sums=saved.secure_sums,
        comparison=comparison,
    )


def _as_records(comparison: pd.DataFrame) -> list[dict[str, Any]]:
    return comparison.reset_index().to_dict(orient="records")


def capped_nodes(
    weights: dict[str, float] | None, cap: float | dict[str, float] | None
) -> tuple[str, ...]:
    """Return the nodes whose weight the cap decides.

    >>> capped_nodes({"a": 0.5, "b": 0.3, "c": 0.2}, 0.5), capped_nodes({"a": 1.0}, 1.0)
    (('a',), ())
    >>> capped_nodes({"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 0.8, "b": 0.3, "c": 0.3})
    ('b',)
    """
    if weights is None or cap is None:
        return ()
    caps = cap if isinstance(cap, dict) else dict.fromkeys(weights, cap)
    return tuple(
        name for name, weight in weights.items() if caps[name] < 1 and weight >= caps[name] - 1e-5
    )


def _own_model(name: str, settings: dict[str, Any]) -> Model:
    """Make one of fedkin's own models from its settings in a file, which must have the right types."""
    kind = SAVED_MODELS[name]
    if unknown := set(settings) - {field.name for field in fields(kind)}:
        raise ValueError(f"a {name} has no setting {min(unknown)}")
    return TypeAdapter(kind).validate_json(json.dumps(settings), strict=True)


def _given_model(
    saved: SavedModel,
    given: Any | None,
    classes: np.ndarray | None,
    state: dict[str, np.ndarray],
) -> Model:
    """Return the model that a user gives for a file without one, with the file's state."""
    if given is not None:
        task = "regression" if classes is None else "classification"
        if not state:
            return as_model(given, task)
        if not is_torch_module(given):
            raise InputError(
                f"the saved model is the PyTorch module {shorten(saved.name)}: give such a module as the "
                f"model, not a {type(given).__name__}"
            )
        from fedkin.models.torch_module import with_state

        return as_model(with_state(given, state), task)
    what = "PyTorch module " if state else ""
    like = "a module made like the one" if state else "the object"
    raise InputError(
        f"the saved model is the {what}{shorten(saved.name)}, which fedkin cannot build by itself: "
        f"call fedkin.load(path, model=...) with {like} used for training"
    )
