"""The only place that leans on Flower's internals.

`flwr.app`, `flwr.clientapp` and `flwr.serverapp` are Flower's documented interface, and the rest of
`fedkin.flower` imports nothing else of it. What they do not offer is done here: a worker that stays between
messages (`runtime`), whole messages in single requests (`bundles`, `node_bundles`), the commands to a
SuperLink (`control`), a SuperLink behind a gate (`superlink`), the program of a run (`serverapp`), a
SuperNode that fetches messages soon (`supernode`), and the variables that steer Flower's processes
(`environment`).

Flower may move any of this in a release. `pyproject.toml` pins the version, and
`tests/flower/test_internals.py` lists every name that is used here and says which one has moved.

`superlink.py`, `serverapp.py` and `supernode.py` are programs, run by their path (`launch.py`). They import
nothing of fedkin but the bundles and what these need: they do not compute, and what guards a port is one file
that can be read alone.
"""
