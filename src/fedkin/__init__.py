"""fedkin: whom should I learn with, and how much?"""

from fedkin.api import fit
from fedkin.errors import DivergedError, FedkinError, InputError
from fedkin.numerics.simplex import project_capped_simplex
from fedkin.result import Result, load

__version__ = "0.1.0"

__all__ = [
    "DivergedError",
    "FedkinError",
    "InputError",
    "Result",
    "fit",
    "load",
    "project_capped_simplex",
]
