"""What the studies of the investigation add to the page: the tables' claims under other conditions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from fedkin.report.reading import Run
from reproduction.page import comparison, solvers
from reproduction.page.collected import SOLVER_STUDIES, Reproduction, StudyState
from reproduction.page.comparison import Count
from reproduction.page.condensed import EVIDENCE_STUDIES

FIRST_SOLVER_STUDIES = "why-first-solvers-"
"""Studies whose names begin like this are the damped-CG half of a former second table."""

EVEN_SOLVER_STUDIES = "why-even-solvers-"
"""Studies whose names begin like this give the paper's solver as many choices as damped CG has."""

FIRST_TABLES = "why-first-table-"
"""Studies whose names begin like this are what the table was at first: each solve for h began at zero."""

UNSEEN_STUDIES = "why-unseen-"
"""Studies whose names begin like this continue the first tables with seeds that decided nothing."""

UNSEEN_SEEDS = (3, 4)
"""The seeds that played no part in the choice of what damped CG chooses from."""


class Pairing(NamedTuple):
    """The two solvers side by side, each with some choice of parameters."""

    what: str
    """What is different from the second table."""
    papers: str
    """Where the runs of the paper's solver are."""
    ours: str
    """Where those of damped CG are."""
    table: pd.DataFrame
    """See `solvers.compare_solvers`."""
    partial: bool
    """Whether runs are missing."""

    @property
    def counts(self) -> tuple[Count, Count]:
        """The cells that support the claim: each solver to its own mark, and both to the same accuracy."""
        return (
            solvers.cg_is_faster(self.table),
            solvers.cg_is_faster(self.table, ratio="common_ratio"),
        )


def solver_pairings(reproduction: Reproduction) -> list[Pairing]:
    """Compare the solvers as in the second table, and under the other conditions there are runs for."""
    table = reproduction.table_studies
    ours = reproduction.studies_of(SOLVER_STUDIES)
    first = reproduction.studies_of(FIRST_SOLVER_STUDIES)
    even = reproduction.studies_of(EVEN_SOLVER_STUDIES)
    from_zero = [
        *reproduction.studies_of(FIRST_TABLES),
        *reproduction.studies_of(UNSEEN_STUDIES),
    ]
    as_in_table, as_in_solvers = "as in the paper's table", f"`{SOLVER_STUDIES}…`"
    found = [
        _pair(
            "the table above",
            papers=as_in_table,
            papers_studies=table,
            ours=as_in_solvers,
            our_studies=ours,
        ),
        _pair(
            "a former table: fewer choices for CG, extended after its outcome was known, and h from zero",
            papers=f"`{FIRST_TABLES}…`, `{UNSEEN_STUDIES}…`",
            papers_studies=from_zero,
            ours=f"`{FIRST_SOLVER_STUDIES}…`",
            our_studies=first,
        ),
        _pair(
            f"seeds {' and '.join(map(str, UNSEEN_SEEDS))} alone, which played no part in that",
            papers=as_in_table,
            papers_studies=table,
            ours=as_in_solvers,
            our_studies=ours,
            seeds=UNSEEN_SEEDS,
        ),
        _pair(
            "each solve for h from zero, as in the first table",
            papers=f"`{FIRST_TABLES}…`, `{UNSEEN_STUDIES}…`",
            papers_studies=from_zero,
            ours=as_in_solvers,
            our_studies=ours,
        ),
        _pair(
            "as many choices for Local-SVRG: the same τ and η, γ_h in place of CG's iterations; h from zero",
            papers=f"`{EVEN_SOLVER_STUDIES}…`",
            papers_studies=even,
            ours=as_in_solvers,
            our_studies=ours,
        ),
    ]
    return [pairing for pairing in found if len(pairing.table)]


def _pair(
    what: str,
    *,
    papers: str,
    papers_studies: list[StudyState],
    ours: str,
    our_studies: list[StudyState],
    seeds: Sequence[int] | None = None,
) -> Pairing:
    """Compare the runs of some studies; of certain seeds only, if there is a list of them."""
    studies = [*papers_studies, *our_studies]
    runs = [run for run in _runs(studies) if seeds is None or run.seed in seeds]
    partial = any(
        each.method == "bilevel"
        and each.cell in solvers.CELLS
        and (seeds is None or each.seed in seeds)
        for study in studies
        for each in study.missing
    )
    # Nine decimals, as in the tables: the last digits of a mean may depend on the processor.
    return Pairing(what, papers, ours, solvers.compare_solvers(runs).round(9), partial)


def _runs(studies: Iterable[StudyState]) -> list[Run]:
    return [run for study in studies for run in study.runs]


class EndShares(NamedTuple):
    """What the similar nodes end with in a study, by setting and target, means over seeds."""

    study: StudyState
    dataset: str
    variant: str
    """What distinguishes the study's variants of Bi-level; just its name if there is one."""
    means: dict[tuple[str, str], float]


def end_shares(reproduction: Reproduction) -> list[EndShares]:
    """Return what the similar nodes end with outside the paper's table: with CG, and in the evidence."""
    rows = []
    wanted = {(cell.setting, cell.target) for cell in comparison.WEIGHT_CELLS}
    studies = [s for p in (SOLVER_STUDIES, EVIDENCE_STUDIES) for s in reproduction.studies_of(p)]
    for study in studies:
        ends: dict[tuple[str, str], dict[tuple[str, str], list[float]]] = {}
        for run in study.runs:
            place = (run.cell.setting, run.cell.target)
            if run.method == "bilevel" and place in wanted:
                of_variant = ends.setdefault((run.cell.dataset, run.label), {})
                of_variant.setdefault(place, []).append(run.outcome["last_similar_weight"])
        for (dataset, label), places in ends.items():
            means = {place: sum(each) / len(each) for place, each in places.items()}
            rows.append(EndShares(study, dataset, label, means))
    return rows
