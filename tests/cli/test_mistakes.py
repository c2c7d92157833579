"""A newcomer's mistakes on the command line: each ends with one line that says what to do, and status 2."""

import shlex

import numpy as np
import pandas as pd
import pytest

ROWS = 40
GOOD = "age,sex,stage,sick\n" + "".join(
    f"5{row % 10},{'fm'[row % 2]},{row % 4},{('yes', 'no')[row // 3 % 2]}\n" for row in range(ROWS)
)
NODES = "--node a.csv --node b.csv --node c.csv"
FIT = f"fit {NODES} --validation own.csv --label sick --out out"
FLOWER = "federation node --superlink localhost:8000 --table a.csv --label sick"


@pytest.fixture
def files(tmp_path):
    written = {
        **dict.fromkeys(["a.csv", "b.csv", "c.csv", "own.csv"], GOOD),
        "mixed.csv": GOOD.replace(",", ";").replace("sex;", "sex|"),
        "commas.csv": GOOD.replace(",", ";").replace("\n5", "\n5,"),
        "empty.csv": "",
        "head.csv": GOOD[: GOOD.index("\n") + 1],
        "short.csv": "age,sex,stage,sick\n50,f,1\n",
        "numbers.csv": "50,1,2,0\n" * 20,
        "unlabeled.csv": "age,sex,stage,sick\n" + "50,f,1,\n" * 20,
        "twice.csv": "age,age,stage,sick\n1,2,3,yes\n",
        "index.csv": pd.DataFrame({"age": np.arange(20), "sick": ["yes", "no"] * 10}).to_csv(),
        "mine/notes.txt": "mine",
        "key.toml": 'dataset = "digits"\nmethd = "fedavg"\n',
        "broken.toml": "dataset = [\n",
        "data.toml": 'dataset = "digit"\nmethod = "fedavg"\n',
        "method.toml": 'dataset = "digits"\nmethod = "fedvag"\n',
        "steps.toml": 'dataset = "digits"\nmethod = "fedavg"\nsteps = -1\n',
        "none.toml": 'method = "fedavg"\n',
        "good.toml": 'dataset = "digits"\nmethod = "fedavg"\nmodel = "logistic"\nsteps = 1\n',
    }
    (tmp_path / "mine").mkdir()
    for name, content in written.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "sheet.xlsx").write_bytes(b"PK\x03\x04")
    (tmp_path / "latin.csv").write_bytes("age,sex,stage,sick\n50,é,1,yes\n".encode("latin1"))


def with_node(name):
    return f"fit --node {name} --node b.csv --validation own.csv --label sick --out out"


FILES = {
    with_node("aa.csv"): "there is no file aa.csv; did you mean a.csv?",
    with_node("mine"): "name one CSV or Parquet file in it",
    with_node("sheet.xlsx"): "save the sheet as 'CSV UTF-8'",
    with_node("latin.csv"): "is not UTF-8 text (line 2); save it as",
    with_node("empty.csv"): "needs a line with the columns' names, and rows",
    with_node("head.csv"): "no rows: add rows, or leave it out",
    with_node("short.csv"): "line 2 has 3 cells, but there are 4 columns; fill the line up",
    with_node("numbers.csv"): "name the columns (--columns a,b,c)",
    with_node("mixed.csv"): "separated by ';', not ','; say so (--separator)",
    with_node("commas.csv"): "has numbers with a comma, such as '5,0': write 3.5, not 3,5",
    with_node("unlabeled.csv"): "fill it in, name another label, or leave the table out",
    with_node("twice.csv"): "two columns called 'age'; rename one",
    with_node("index.csv"): "save with index=False",
    with_node("b.csv"): "--node b1=b.csv --node b2=b.csv",
    f"fit {NODES} --validation a.csv --label sick --out out": "every table needs its own rows",
}
FITS = {
    "fitt": "Did you mean 'fit'?",
    "fit": "Missing option '--label': the column to predict",
    f"fit {NODES} --validation own.csv --label sick": "'--out': the directory for the results",
    f"fit {NODES} --label sick --out out": "give the center's own data (--validation FILE)",
    "fit --node a.csv b.csv --label sick --out out": "every node's file needs its own --node",
    "fit --nodes a.csv --label sick --out out": "Did you mean one of: '--model', '--node'",
    f"fit {NODES} --validation own.csv --label Sick --out out": "did you mean 'sick'?",
    f"fit {NODES} --validation own.csv --label dead --out out": "it has: 'age', 'sex'",
    f"fit {NODES} --owner d --label sick --out out": "there is no node 'd'; it has: 'a', 'b'",
    f"fit {NODES} --owner a --validation-fraction 30 --label sick --out out": "between 0 and 1",
    f"{FIT} --task regression": "regression needs numbers",
    f"{FIT} --task regress": "is not one of 'classification', 'regression'",
    f"{FIT} --cap 2": "cap must be a number above 0 and at most 1",
    f"{FIT} --cap 0.1": "with 3 nodes it must be between 1/3",
    f"{FIT} --cap half": "'half' is not a number",
    f"{FIT} --steps 1.5": "'1.5' is not a whole number",
    f"{FIT} --steps 0": "0 must be at least 1",
    f"{FIT} --seed -1": "-1 must be from 0 to 4294967295",
    f"{FIT} --method sgd": "choose one of bilevel, fedavg,",
    f"{FIT} --method fedavg --cap 0.5": "cap is not a setting of the method 'fedavg'",
    f"{FIT} --model ridge": "use logistic or mlp, or choose the task regression",
    f"{FIT} --minimum-rows 100": "join it with another, or lower the minimum",
    f"{FIT} --drop ages": "did you mean 'age'?",
    f"{FIT} --drop sick": "the label 'sick' cannot be left out",
    f"{FIT} --missing age": "takes COLUMN=NUMBER, for example chol=0",
    f"{FIT} --separator semicolon": "must be one character",
    f"{FIT} --positive maybe": "is it spelled as in the files?",
    f"{FIT} --columns age,sex": "2 column names were given; name all of them",
    f"{FIT} --columns age,sex,stage,sick": "leave out the list of column names",
    f"{FIT} --owner a": "give either --validation or --target-node, not both",
    f"{FIT} --orders 20": "changes nothing without --contributions",
    f"{FIT} --contributions --orders 5": "must be even, since each order is drawn with its",
    f"{FIT} --contributions --contribution-score auc": "choose one of loss, accuracy",
    "fit a.csv --site sx --owner f --label sick --out out": "did you mean 'sex'?",
    "fit --site sex --owner f --label sick --out out": "give the table's file too",
    f"fit {NODES} --validation own.csv --label sick --out mine": "choose another --out",
    f"fit {NODES} --validation own.csv --label sick --out mine --force": "did not write, such as",
    f"fit {NODES} --validation own.csv --label sick --out a.csv": "the name of a directory",
    f"fit {NODES} --validation own.csv --label sick --out a.csv/out": "would be in a file",
}
OTHERS = {
    "map --node a.csv --label sick --out out": "give every node's file with its own --node",
    f"map {NODES} --label sick --out out --validation own.csv": "No such option '--validation'",
    f"map {NODES} --label sick --out out --own-cap 7": "own_cap must be a number above 0",
    f"advise {NODES} --label sick": "give the owner's own rows (--own FILE)",
    f"advise {NODES} --own own.csv --owner a --label sick": "give either --own or",
    f"advise {NODES} --own own.csv --label sick --folds 100": "collect more, or choose fewer folds",
    f"advise {NODES} --own own.csv --label sick --force": "add --out DIR, or leave it out",
    "predict": "Missing argument 'DIR': a result of fedkin fit",
    "predict nowhere own.csv": "make it with fedkin fit --out",
    "predict mine own.csv": "it is not a result of fedkin fit",
    "predict own.csv a.csv": "name the directory that was the --out of fedkin fit",
    "report nowhere": "name the directory of a study or a fit",
    "report mine": "name the directory that was the --out of fedkin run",
    "run nowhere.toml --out o": "there is no file nowhere.toml",
    "run key.toml --out o": "unknown key methd; did you mean method?",
    "run broken.toml --out o": "is not valid TOML",
    "run data.toml --out o": "did you mean digits?",
    "run method.toml --out o": "did you mean fedavg?",
    "run steps.toml --out o": "steps: must be greater than 0",
    "run none.toml --out o": "dataset: is missing: add it",
    "run method.toml": "Missing option '--out': the directory for the results",
    "run good.toml --out o --cluster here": "neither local nor an address such as ray://HOST:10001",
    "run good.toml --out o --cluster ray://head": "neither local nor an address such as",
    "run good.toml --out o --cluster http://head:10001": "neither local nor an address such as",
    "run good.toml --out o --cluster ray://head:port": "neither local nor an address such as",
    "run good.toml --out o --cluster": "Option '--cluster' requires an argument",
    "run good.toml --out o --cluter local": "Did you mean one of: '--cluster'",
    "run good.toml --out o --cluster local --jobs 0": "0 must be at least 1",
    "reproduce --out o": "Missing option '--dataset': a data set; may be repeated",
    "reproduce --dataset mnst --out o": "did you mean mnist?",
    "reproduce --dataset digits --setting 5 --out o": "5 must be from 1 to 4",
    "reproduce --dataset digits --tune --learning-rate 0.1 --out o": "leave one out",
    "data --data nowhere": "name the one that contains mnist/",
    "data shw": "Did you mean 'show'?",
    "data show digits": "say how the data are divided: --setting 1, 2, 3 or 4",
    "data show digits --setting 7": "choose 1, 2, 3 or 4",
    "data show digits --partition dirichlet": "needs --alpha",
    "data show digits --nodes 5": "is of no use without --partition",
    "demo --out mine": "choose a new or empty directory",
    "demo digits": "leave it out, or see --help",
}
FEDERATIONS = {
    "federation int": "Did you mean 'init'?",
    "federation init": "Missing argument 'DIR': the directory to make",
    "federation init t": "say which nodes there are: --nodes 4, or --node FILE",
    "federation init t --nodes 4 --node a.csv": "for each node with a table, not both",
    "federation init t --nodes 1": "give two or more",
    "federation init t --nodes 100": "100 must be from 0 to 64",
    "federation init mine --nodes 4": "choose another directory",
    "federation init t --node a.csv --node b.csv": "--label is missing: the column to predict",
    "federation up nowhere": "create a federation with fedkin federation init",
    "federation run mine --out o": "create one with fedkin federation init",
    "federation status nowhere": "create a federation with fedkin federation init",
    "federation logs nowhere a": "create a federation with fedkin federation init",
    "federation stop nowhere": "create a federation with fedkin federation init",
    "federation down mine": "create one with fedkin federation init",
    "federation unregister nowhere a": "create a federation with fedkin federation init",
    "federation superlink nowhere": "create a federation with fedkin federation init",
    "federation renew nowhere": "create a federation with fedkin federation init",
    "federation audit nowhere": "give that of a federation, or what --state names",
    "federation register nowhere key.pub": "Missing argument 'KEY.pub': ",
    "federation key a.csv": "a key is never overwritten; remove it first",
    FLOWER: "--ca is missing: give the ca.pem of the SuperLink's owner",
    f"{FLOWER} --ca a.csv --key b.csv": "give the ca.pem that fedkin federation init made",
    f"{FLOWER} --insecure --name 'my node'": "use up to 40 letters, digits",
    f"{FLOWER} --insecure --minimum-points 1000": "the node would refuse to take part",
    f"{FLOWER} --insecure --validation-fraction 2": "validation-fraction: must be less than 1",
    FLOWER.replace("localhost:8000", "localhost"): "takes HOST:PORT, for example link.example.org",
    FLOWER.replace("localhost", "https://localhost"): "without http:// or a path",
}


def test_there_are_more_than_fifty():
    assert len(FILES | FITS | OTHERS | FEDERATIONS) > 100


@pytest.mark.parametrize("line", [*FILES, *FITS, *OTHERS])
def test_one_line_that_says_what_to_do(refused, files, line, monkeypatch):
    monkeypatch.delenv("FEDKIN_DATA", raising=False)
    said = refused(*shlex.split(line))
    assert (FILES | FITS | OTHERS)[line] in said


def test_a_cluster_that_nobody_answers_for(refused, files):
    pytest.importorskip("ray", reason="needs the extra cluster")
    line = refused("run", "good.toml", "--out", "o", "--cluster", "ray://127.0.0.1:1")
    assert "nobody answers at ray://127.0.0.1:1" in line
    assert "start the cluster with ray start --head" in line


@pytest.mark.parametrize("line", FEDERATIONS)
def test_one_line_that_says_what_to_do_about_a_federation(refused, files, line):
    pytest.importorskip("flwr", reason="needs the extra flower")
    assert FEDERATIONS[line] in refused(*shlex.split(line))
