"""fedkin: whom should I learn with, and how much?"""

from fedkin.api import fit
from fedkin.errors import DivergedError, FedkinError, InputError
from fedkin.experiments.store import results
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.result import Result, load
from fedkin.version import __version__

__all__ = [
    "DivergedError",
    "FedkinError",
    "InputError",
    "Result",
    "__version__",
    "fit",
    "load",
    "project_capped_simplex",
    "results",
]
