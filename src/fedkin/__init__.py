"""fedkin: whom should I learn with, and how much?

A name is loaded when it is first used: the libraries behind it take about two seconds.
"""

import fedkin_start as _fedkin_start  # noqa: F401  first: Ctrl-C may come while the rest is loaded

# isort: split
import importlib as _importlib
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from fedkin.advice.advise import advise
    from fedkin.advice.result import Advice
    from fedkin.errors import DivergedError, FedkinError, InputError
    from fedkin.estimators import FederatedClassifier, FederatedRegressor, OwnerSplit
    from fedkin.methods.base import Method
    from fedkin.methods.bilevel.hypergradient import AdjointSolver, register_solver
    from fedkin.methods.bilevel.method import Bilevel
    from fedkin.methods.bilevel.solvers import (
        ConjugateGradients,
        LocalSvrgSolver,
        NeumannSeries,
        OwnHessian,
    )
    from fedkin.methods.bilevel.theory import TheoryBilevel
    from fedkin.methods.ditto.center import Ditto
    from fedkin.methods.fedavg import FedAvg
    from fedkin.methods.local import LocalTraining
    from fedkin.methods.pfedme.center import PFedMe
    from fedkin.methods.registry import register
    from fedkin.models.named import register_model
    from fedkin.numerics.simplex import project_capped_simplex
    from fedkin.studies.store import results
    from fedkin.tracking.base import Tracker
    from fedkin.tracking.with_mlflow import MLflowTracker
    from fedkin.tracking.with_tensorboard import TensorBoardTracker
    from fedkin.training.collaboration import Collaboration
    from fedkin.training.fit import fit
    from fedkin.training.fit_all import fit_all
    from fedkin.training.problem import Problem
    from fedkin.training.result import Result, load
    from fedkin.valuation.contributions import contributions
    from fedkin.valuation.result import Contributions
    from fedkin.version import __version__

_PLACES = {
    "AdjointSolver": "methods.bilevel.hypergradient",
    "Advice": "advice.result",
    "Bilevel": "methods.bilevel.method",
    "Collaboration": "training.collaboration",
    "ConjugateGradients": "methods.bilevel.solvers",
    "Contributions": "valuation.result",
    "Ditto": "methods.ditto.center",
    "DivergedError": "errors",
    "FedAvg": "methods.fedavg",
    "FederatedClassifier": "estimators",
    "FederatedRegressor": "estimators",
    "FedkinError": "errors",
    "InputError": "errors",
    "LocalSvrgSolver": "methods.bilevel.solvers",
    "LocalTraining": "methods.local",
    "MLflowTracker": "tracking.with_mlflow",
    "Method": "methods.base",
    "NeumannSeries": "methods.bilevel.solvers",
    "OwnHessian": "methods.bilevel.solvers",
    "OwnerSplit": "estimators",
    "PFedMe": "methods.pfedme.center",
    "Problem": "training.problem",
    "Result": "training.result",
    "TensorBoardTracker": "tracking.with_tensorboard",
    "TheoryBilevel": "methods.bilevel.theory",
    "Tracker": "tracking.base",
    "__version__": "version",
    "advise": "advice.advise",
    "contributions": "valuation.contributions",
    "fit": "training.fit",
    "fit_all": "training.fit_all",
    "load": "training.result",
    "project_capped_simplex": "numerics.simplex",
    "register": "methods.registry",
    "register_model": "models.named",
    "register_solver": "methods.bilevel.hypergradient",
    "results": "studies.store",
}
"""The module of each public name; those above are for type checkers, and a test compares the two."""

__all__ = [
    "AdjointSolver",
    "Advice",
    "Bilevel",
    "Collaboration",
    "ConjugateGradients",
    "Contributions",
    "Ditto",
    "DivergedError",
    "FedAvg",
    "FederatedClassifier",
    "FederatedRegressor",
    "FedkinError",
    "InputError",
    "LocalSvrgSolver",
    "LocalTraining",
    "MLflowTracker",
    "Method",
    "NeumannSeries",
    "OwnHessian",
    "OwnerSplit",
    "PFedMe",
    "Problem",
    "Result",
    "TensorBoardTracker",
    "TheoryBilevel",
    "Tracker",
    "__version__",
    "advise",
    "contributions",
    "fit",
    "fit_all",
    "load",
    "project_capped_simplex",
    "register",
    "register_model",
    "register_solver",
    "results",
]


def __getattr__(name: str) -> _Any:
    """Load a public name, or a module of the package, when it is first used."""
    if name in _PLACES:
        found = getattr(_importlib.import_module(f"fedkin.{_PLACES[name]}"), name)
        globals()[name] = found
        return found
    if not name.startswith("_") and _find_spec(f"fedkin.{name}") is not None:
        return _importlib.import_module(f"fedkin.{name}")
    raise AttributeError(f"module 'fedkin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
