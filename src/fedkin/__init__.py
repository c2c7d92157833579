"""fedkin: whom should I learn with, and how much?"""

from fedkin.errors import DivergedError, FedkinError, InputError
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.studies.store import results
from fedkin.training.fit import fit
from fedkin.training.result import Result, load
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
