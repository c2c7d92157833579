"""Estimators for scikit-learn: one table of rows, a site for each row, and the site whose rows count.

    model = FederatedClassifier(owner="va").fit(X, y, sites=hospital)

Without sites all rows are the owner's, and the model is trained on them alone. A penalty that suits
standardized columns needs them: put a `StandardScaler` before the estimator.
"""

from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import BaseCrossValidator, KFold, StratifiedKFold, train_test_split
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from fedkin.data.arrays import FEWEST_ROWS
from fedkin.errors import InputError
from fedkin.methods.base import Method
from fedkin.methods.settings import LARGEST_SEED
from fedkin.training.alone import OwnRows, PenalizedLoss, add_ones, coefficients
from fedkin.training.fit import fit
from fedkin.training.result import Result

DEFAULT_L2 = 1e-3
"""The factor of ½‖θ‖² in the loss where none is given, as in `fedkin.fit`."""


class _FederatedEstimator(BaseEstimator):
    """What both estimators share: who is asked, and how the weights are learned.

    Args:
        owner: The site whose new rows the model is for.
        method: How to learn: a name or an object, as in `fedkin.fit`.
        cap: The largest weight of a site.
        l2: The factor of ½‖θ‖² in the loss; it includes the intercept, as in `fedkin.fit`.
        validation_fraction: The share of the owner's rows that choose the weights. They join as a site of
            their own once the weights are chosen.
        minimum_rows: The fewest rows that a site may have.
        steps: The largest number of outer steps.
        random_state: Decides everything random.
    """

    coef_: np.ndarray
    intercept_: Any

    def __init__(
        self,
        owner: Any = None,
        *,
        method: str | Method = "bilevel",
        cap: float | None = None,
        l2: float | None = None,
        validation_fraction: float = 0.3,
        minimum_rows: int = FEWEST_ROWS,
        steps: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.owner = owner
        self.method = method
        self.cap = cap
        self.l2 = l2
        self.validation_fraction = validation_fraction
        self.minimum_rows = minimum_rows
        self.steps = steps
        self.random_state = random_state

    def _learn(
        self, inputs: np.ndarray, labels: np.ndarray, sites: Any, classes: int
    ) -> np.ndarray:
        """Return the coefficients, a row per feature and a last one for the intercept; keep the weights."""
        task = "classification" if classes else "regression"
        l2 = DEFAULT_L2 if self.l2 is None else self.l2
        if sites is None:
            if self.owner is not None:
                raise InputError(
                    f"owner is {self.owner!r}, and no row says whose it is: give sites, the site of each row "
                    "(in a pipeline, with set_fit_request(sites=True)), or leave owner out"
                )
            rows = OwnRows(add_ones(inputs), labels, task, classes or 1)
            counts = np.full(rows.total, 1 / rows.total)
            loss = PenalizedLoss(rows, counts, np.full(rows.inputs.shape[1], l2))
            self.weights_, self.result_, self.n_iter_ = None, None, 1
            return loss.matrix(loss.minimize())
        of_rows = _check_sites(sites, len(inputs))
        owner = self._check_owner(of_rows)
        own = np.flatnonzero(of_rows == owner)
        seed = int(check_random_state(self.random_state).randint(LARGEST_SEED, dtype=np.int64))
        try:
            training, judging = train_test_split(
                own,
                test_size=self.validation_fraction,
                random_state=seed % 2**32,
                stratify=labels[own] if classes else None,
            )
        except ValueError as error:
            raise InputError(
                f"the owner {owner!r} has too few rows ({len(own)}) to hold some out by "
                f"validation_fraction={self.validation_fraction}: {error}"
            ) from error
        parts = {site: np.flatnonzero(of_rows == site) for site in np.unique(of_rows).tolist()}
        parts[owner] = np.asarray(training)
        result = fit(
            {site: (inputs[rows], labels[rows]) for site, rows in parts.items()},
            (inputs[judging], labels[judging]),
            model="logistic" if classes else "ridge",
            method=self.method,
            cap=self.cap,
            seed=seed,
            classes=classes or None,
            l2=l2,
            refit=None,
            minimum_rows=self.minimum_rows,
            steps=self.steps,
        )
        self.result_: Result | None = result
        self.weights_ = None if result.weights is None else pd.Series(result.weights, name="weight")
        self.n_iter_ = int(result.history["step"].iloc[-1])
        return coefficients(jnp.asarray(result.theta), result.objective)

    def _check_owner(self, of_rows: np.ndarray) -> str:
        known = np.unique(of_rows).tolist()
        owner = str(self.owner)
        if self.owner is None or owner not in known:
            named = "owner is not given" if self.owner is None else f"there is no site {owner!r}"
            raise InputError(f"{named}: choose one of {', '.join(known[:20])}")
        return owner

    def _outputs(self, inputs: Any) -> np.ndarray:
        check_is_fitted(self)
        checked: Any = validate_data(self, inputs, reset=False)
        return checked @ self.coef_.T + self.intercept_

    def __getstate__(self) -> dict[str, Any]:
        # The fitted coefficients are enough to predict; a run has functions that cannot be pickled.
        state: Any = super().__getstate__()
        return {**state, "result_": None} if "result_" in state else state


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):
    """Logistic regression for one site, with learned weights of all sites.

    After `fit`, `weights_` has the weight of each site, `result_` what `fedkin.fit` returned (it does not
    outlive pickling), and `coef_` and `intercept_` the model, arranged as in scikit-learn.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> X = draw.normal(size=(240, 2))
    >>> sites = np.repeat(["north", "south", "west"], 80)
    >>> y = np.where(sites == "west", X[:, 0] < 0, X[:, 0] > 0)
    >>> model = FederatedClassifier(owner="north", random_state=0).fit(X, y, sites=sites)
    >>> bool(model.weights_["west"] < 0.01), model.score(X[sites == "south"], y[sites == "south"]) > 0.95
    (True, True)
    """

    __doc__ = f"{__doc__}\n{_FederatedEstimator.__doc__ or ''}"

    def fit(self, X: Any, y: Any, sites: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Learn the weights and the model.

        Args:
            X: The rows of all sites.
            y: Their labels.
            sites: The site of each row; without it, all rows are the owner's.
        """
        checked: Any = validate_data(self, X, y, dtype=np.float64)
        inputs, y = checked
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"the labels have one class only, {self.classes_[0]!r}: two or more are needed"
            )
        matrix = self._learn(inputs, labels, sites, len(self.classes_))
        if len(self.classes_) == 2:
            matrix = matrix[:, 1:] - matrix[:, :1]
        self.coef_, self.intercept_ = matrix[:-1].T, matrix[-1]
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the outputs: one per class, or for two classes the log odds of the second."""
        outputs = self._outputs(X)
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the probability of each class."""
        outputs = self._outputs(X)
        if len(self.classes_) == 2:
            outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1)
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return shifted / shifted.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the likeliest class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]


class FederatedRegressor(RegressorMixin, _FederatedEstimator):
    """Ridge regression for one site, with learned weights of all sites.

    Labels are measured from the owner's mean, in the owner's standard deviation, while the weights are
    learned; predictions are in their own unit. After `fit` it has what `FederatedClassifier` has.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> X = draw.normal(size=(240, 2))
    >>> sites = np.repeat(["north", "south", "west"], 80)
    >>> y = 5 + np.where(sites == "west", -1, 1) * X[:, 0]
    >>> model = FederatedRegressor(owner="north", random_state=0).fit(X, y, sites=sites)
    >>> bool(model.weights_["west"] < 0.01), model.coef_.round(1).tolist(), round(model.intercept_, 1)
    (True, [1.0, 0.0], 5.0)
    """

    __doc__ = f"{__doc__}\n{_FederatedEstimator.__doc__ or ''}"

    def fit(self, X: Any, y: Any, sites: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Learn the weights and the model.

        Args:
            X: The rows of all sites.
            y: Their numbers.
            sites: The site of each row; without it, all rows are the owner's.
        """
        checked: Any = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        inputs, y = checked[0], np.asarray(checked[1], np.float64)
        of_rows = None if sites is None else _check_sites(sites, len(inputs))
        own = y if of_rows is None else y[of_rows == self._check_owner(of_rows)]
        middle, unit = float(own.mean()), float(own.std()) or 1.0
        matrix = self._learn(inputs, (y - middle) / unit, of_rows, 0)
        self.coef_ = unit * matrix[:-1, 0]
        self.intercept_ = float(middle + unit * matrix[-1, 0])
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the number predicted for each row."""
        return self._outputs(X)


class OwnerSplit(BaseCrossValidator):
    """Folds of the owner's rows; the rows of all other sites are in every training set.

    For `cross_val_score` and `GridSearchCV`, with the sites as `groups`: the score is then that of the
    owner's rows.

    Args:
        owner: The site whose rows are divided.
        n_splits: The number of folds.
        random_state: Decides the division.

    >>> sites = ["a", "a", "b", "a", "a", "b"]
    >>> folds = OwnerSplit("a", n_splits=2, random_state=0).split([0] * 6, None, sites)
    >>> [(train.tolist(), test.tolist()) for train, test in folds]
    [([0, 1, 2, 5], [3, 4]), ([2, 3, 4, 5], [0, 1])]
    """

    __metadata_request__split: ClassVar = {"groups": True}  # scikit-learn then passes them on

    def __init__(self, owner: Any, *, n_splits: int = 5, random_state: Any = 0) -> None:
        self.owner = owner
        self.n_splits = n_splits
        self.random_state = random_state

    def get_n_splits(  # pyright: ignore[reportIncompatibleMethodOverride] - its base has no type
        self,
        X: Any = None,  # noqa: N803
        y: Any = None,
        groups: Any = None,
    ) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Any:  # noqa: N803
        """Yield the numbers of the rows to train on, and of the owner's rows to test on."""
        if groups is None:
            raise InputError("OwnerSplit needs the site of each row: give groups=sites")
        of_rows = _check_sites(groups, len(groups))
        own = np.flatnonzero(of_rows == str(self.owner))
        others = np.flatnonzero(of_rows != str(self.owner))
        if len(own) < self.n_splits:
            raise InputError(
                f"the owner {self.owner!r} has {len(own)} rows, too few for {self.n_splits} folds"
            )
        labels = None if y is None else np.asarray(y)[own]
        stratify = labels is not None and type_of_target(labels) in ("binary", "multiclass")
        folds = (StratifiedKFold if stratify else KFold)(
            self.n_splits, shuffle=True, random_state=self.random_state
        )
        for kept, held in folds.split(own, labels):
            yield np.sort(np.concatenate([own[kept], others])), own[held]


def _check_sites(sites: Any, rows: int) -> np.ndarray:
    """Return the name of the site of each row."""
    found = np.asarray(sites)
    if found.shape != (rows,):
        raise InputError(f"sites must name one site for each of {rows} rows, not {found.shape}")
    missing = pd.isna(found)
    if missing.any():
        raise InputError(
            f"sites has {int(missing.sum())} missing values, the first in row {int(np.argmax(missing))}"
        )
    return found.astype(str)
