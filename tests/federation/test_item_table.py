"""Numbers of items."""

import numpy as np

from fedkin.federation.item_table import ItemTable


def test_a_table_that_grows_by_nodes_does_not_grow_by_models():
    table = ItemTable()
    for node in range(2000):
        table.set(np.array([[0, node]]), node)
    assert table._values.size < 5000
    assert table.get(np.array([[0, 0], [0, 1999], [1, 5]])).tolist() == [0, 1999, -1]


def test_of_repeated_items_the_first_counts():
    table = ItemTable()
    table.set(np.array([[2, 1], [2, 1], [0, 3]]), np.array([4, 5, 6]))
    assert table.items().tolist() == [[0, 3], [2, 1]]
    assert table.get(np.array([[2, 1]])).tolist() == [4]
    assert table.models_among([2, 9]).tolist() == [[2, 1]]
