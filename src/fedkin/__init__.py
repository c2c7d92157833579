"""fedkin: whom should I learn with, and how much?"""

import fedkin_start as _fedkin_start  # noqa: F401  first: Ctrl-C may come while the rest is loaded

# isort: split
from fedkin.advice.advise import advise
from fedkin.advice.result import Advice
from fedkin.errors import DivergedError, FedkinError, InputError
from fedkin.methods.base import Method
from fedkin.methods.bilevel.hypergradient import AdjointSolver, register_solver
from fedkin.methods.bilevel.method import Bilevel
from fedkin.methods.bilevel.solvers import ConjugateGradients, LocalSvrgSolver, NeumannSeries
from fedkin.methods.bilevel.theory import TheoryBilevel
from fedkin.methods.ditto.center import Ditto
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import LocalTraining
from fedkin.methods.pfedme.center import PFedMe
from fedkin.methods.registry import register
from fedkin.models.named import register_model
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.studies.store import results
from fedkin.training.collaboration import Collaboration
from fedkin.training.fit import fit
from fedkin.training.fit_all import fit_all
from fedkin.training.problem import Problem
from fedkin.training.result import Result, load
from fedkin.valuation.contributions import contributions
from fedkin.valuation.result import Contributions
from fedkin.version import __version__

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
    "FedkinError",
    "InputError",
    "LocalSvrgSolver",
    "LocalTraining",
    "Method",
    "NeumannSeries",
    "PFedMe",
    "Problem",
    "Result",
    "TheoryBilevel",
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
