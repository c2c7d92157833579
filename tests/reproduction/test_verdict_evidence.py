"""The evidence of docs/verdict.md, on a few federations."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes

from reproduction.verdict import federations, store, tables, tuning
from reproduction.verdict.exact import train_all
from reproduction.verdict.synthetic import Case, draw

RESULTS = Path(federations.__file__).parent / "results"


def test_hostile_nodes_contradict_and_kin_agree():
    for case, sign in ((Case(300, 10, "near"), 1), (Case(300, 0, "hostile"), -1)):
        made = draw(0, case)
        x, y = made.test
        away = np.mean(x[y == 1], axis=0) - np.mean(x[y == 0], axis=0)
        for inputs, labels in made.nodes.values():
            own = np.mean(inputs[labels == 1], axis=0) - np.mean(inputs[labels == 0], axis=0)
            assert np.sign(own @ away) == sign


def test_measuring_can_be_stopped_and_continued(tmp_path, monkeypatch, capsys):
    few = [Case(50, 0, "hostile"), Case(20, 10, "near")]
    monkeypatch.setattr(federations, "cases", lambda mix: few)
    out = tmp_path / "found.csv"
    federations.main(["--out", str(out), "--rounds", "1", "--fresh", "1"])
    whole = out.read_text()
    out.write_text("".join(whole.splitlines(keepends=True)[:2]))
    capsys.readouterr()
    federations.main(["--out", str(out), "--rounds", "1", "--fresh", "1"])
    assert out.read_text() == whole
    assert store.read(out)[0]["verdict"] == "alone"
    assert "hostile with 50 rows or more, 'alone': 1 of 1" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_the_figures_are_those_of_the_federations_kept(path, capsys):
    """Byte for byte; docs/verdict.md has its numbers from these."""
    program = tables if path.stem == "tables" else federations
    program.main(["--out", str(path)] + ["--summary"] * (program is federations))
    assert capsys.readouterr().out == path.with_suffix(".txt").read_text()


def test_every_summary_has_its_federations_and_regrets_follow_from_accuracies():
    assert {path.stem for path in RESULTS.glob("*.csv")} == {p.stem for p in RESULTS.glob("*.txt")}
    kept = pd.read_csv(RESULTS / "common.csv")
    assert (len(kept), kept["seed"].nunique()) == (288, 288)
    better = kept[["accuracy alone", "accuracy equal weights"]].max(axis=1)
    for name in ("final", "alone", "learned", "bi-level"):
        expected = 100 * (better - kept[f"accuracy {name}"])
        np.testing.assert_allclose(kept[f"regret {name}"], expected, atol=1e-4)


def test_limits_of_a_share_are_those_of_clopper_and_pearson():
    assert "limits 0.0% to 25.9%" in federations._share(0, 10)  # 1 - 0.05^(1/10)
    assert "limits 74.1% to 100.0%" in federations._share(10, 10)


def test_constants_can_be_replaced_for_tuning():
    made = draw(1, Case(50, 0, "near"))
    drawn = [(made, train_all(made.nodes, made.owner, "classification", repeats=1))]
    alone = tuning.describe(drawn, (0.997, 0.001, 0.001, 0.001), MIXTURE_STRENGTH=1e6)
    joined = tuning.describe(drawn, (0.001, 0.001, 0.001, 0.997), MIXTURE_STRENGTH=1e6)
    assert alone != joined


def test_sites_of_a_table_and_their_scores():
    data = load_diabetes()
    sites = tables.by_component("diabetes", "regression", data.data, data.target)
    assert sum(len(y) for _, y in sites.rows.values()) == len(data.target)
    found = tables.measure(sites, seed=0)
    losses = {each["candidate"]: each["loss"] for each in found if each["owner"] == "site 1"}
    assert losses["final"] == pytest.approx(losses["alone"], rel=0.3)
    assert losses["equal weights"] > losses["learned"]  # one of its four nodes is relabeled
    assert {each["owner"] for each in found} == {"site 1", "site 2", "site 3", "site 4"}
