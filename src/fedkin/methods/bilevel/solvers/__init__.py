"""The solvers for h that come with fedkin, one per file."""

from fedkin.methods.bilevel.hypergradient import register_solver
from fedkin.methods.bilevel.solvers.conjugate_gradients import ConjugateGradients
from fedkin.methods.bilevel.solvers.local_svrg import LocalSvrgSolver
from fedkin.methods.bilevel.solvers.neumann import NeumannSeries
from fedkin.methods.bilevel.solvers.own_hessian import OwnHessian

__all__ = ["ConjugateGradients", "LocalSvrgSolver", "NeumannSeries", "OwnHessian"]

for own in (ConjugateGradients, LocalSvrgSolver, NeumannSeries, OwnHessian):
    register_solver(own)
