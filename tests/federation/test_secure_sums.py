"""Sums of masked words: they are the sums of the vectors, and whatever lacks one summand is noise."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from federations import classification_nodes, problem
from fedkin.errors import InputError
from fedkin.federation.base import PerNode, Revealed, WeightedSum
from fedkin.federation.secure import masks
from fedkin.federation.secure.fixed_point import (
    FIRST_BOUND,
    choose_exponent,
    decode,
    encode,
    largest_summand,
)
from fedkin.federation.secure.orders import WORDS
from fedkin.federation.secure.simulation import SecureSums
from fedkin.methods.bilevel.node import GRADIENT, HESSIAN_PRODUCT, SLOPE
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.models.linear import Logistic
from fedkin.studies.cell import draw_problem, simulate
from fedkin.training.runner import Budget
from flower.trials import config

NODES = 5
SECRET = bytes(range(32))


def secrets_of(nodes, seed=0):
    """Return the pair secrets of some nodes, drawn from a seed."""
    random = np.random.default_rng(seed)
    found = {node: {} for node in range(nodes)}
    for one, other in itertools.combinations(range(nodes), 2):
        found[one][other] = found[other][one] = random.bytes(32)
    return found


def masked(words, secrets, label, members=None):
    """Return what each member sends."""
    members = tuple(words) if members is None else members
    return {
        node: masks.add_masks(words[node], node, members, secrets[node], label) for node in members
    }


def looks_random(words):
    """Test bytes for uniformity; chance alone fails once in a million."""
    counts = np.bincount(np.ascontiguousarray(words).view(np.uint8).ravel(), minlength=256)
    return stats.chisquare(counts).pvalue > 1e-6


vectors = st.integers(2, 8).flatmap(
    lambda nodes: st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=6, max_size=6),
        min_size=nodes,
        max_size=nodes,
    )
)


@given(vectors, st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8))
def test_masked_sums_are_the_sums_up_to_the_stated_error(rows, weights):
    values = np.array(rows) * np.array(weights)[: len(rows), None]
    exponent = choose_exponent(max(np.abs(values).max(), 1e-3), len(rows))
    words = {node: encode(row, exponent) for node, row in enumerate(values)}
    sent = masked(words, secrets_of(len(rows)), b"a sum")
    error = np.abs(decode(sum(sent.values()), exponent) - values.sum(axis=0))
    rounding = 4 * len(rows) * np.finfo(float).eps * np.abs(values).max()
    assert error.max() <= len(rows) * 2.0 ** (-exponent - 1) + rounding


@given(st.floats(1e-30, 1e30), st.integers(2, 1000))
def test_no_sum_overflows(bound, nodes):
    exponent = choose_exponent(bound, nodes)
    assert largest_summand(exponent, nodes) >= bound
    total = nodes * np.ldexp(largest_summand(exponent, nodes), exponent)
    assert total < 2.0**63


@given(st.sets(st.integers(0, NODES - 1), min_size=1, max_size=NODES - 1), st.integers(0, 2**32))
@settings(max_examples=20)
def test_a_sum_that_lacks_anybody_is_noise_even_when_all_other_vectors_are_known(known, seed):
    """An attacker has all words of the exchange and some nodes' plaintexts, and subtracts both."""
    random = np.random.default_rng(seed)
    words = {node: encode(random.normal(size=500), 30) for node in range(NODES)}
    sent = masked(words, secrets_of(NODES, seed), b"a sum")
    others = set(range(NODES)) - known
    if len(others) == 1:  # what is left is that node's by arithmetic: the others work together
        (victim,) = others
        left = sum(sent.values()) - sum(words[node] for node in known)
        np.testing.assert_array_equal(left, words[victim])
    for victim in others:
        for chosen in (known, others - {victim}, set()):
            left = sent[victim] + sum(sent[node] - words[node] for node in chosen)
            everybody = chosen | {victim} == set(range(NODES))
            assert everybody or looks_random(left)
            assert everybody or np.abs(decode(left - words[victim], 30)).max() > 1e6


@given(
    st.sets(st.integers(0, NODES - 1), max_size=NODES - 3),
    st.sets(st.integers(0, NODES - 1), max_size=NODES - 3),
    st.integers(0, 2**32),
)
@settings(max_examples=30)
def test_who_drops_out_spoils_the_sum_and_the_next_number_has_it(missing, later, seed):
    random = np.random.default_rng(seed)
    values = random.normal(size=(NODES, 64))
    words = {node: encode(values[node], 40) for node in range(NODES)}
    secrets, members = secrets_of(NODES, seed), tuple(range(NODES))
    for number, gone in enumerate((missing, later)):
        sent = masked(words, secrets, b"%d" % number, members)
        arrived = [sent[node] for node in members if node not in gone]
        found = decode(sum(arrived), 40)
        expected = values[[node for node in members if node not in gone]].sum(axis=0)
        assert bool(gone & set(members)) == bool(np.abs(found - expected).max() > 1e-3)
        members = tuple(node for node in members if node not in gone)
    if len(members) > 0:
        sent = masked(words, secrets, b"the last", members)
        expected = values[list(members)].sum(axis=0)
        np.testing.assert_allclose(decode(sum(sent.values()), 40), expected, atol=1e-9)


def test_masked_words_are_uniform_and_never_the_same_twice():
    words = {node: np.zeros(20_000, "<u8") for node in range(NODES)}
    secrets = secrets_of(NODES)
    one, other = (masked(words, secrets, label) for label in (b"one", b"other"))
    for node in range(NODES):
        assert looks_random(one[node])
        assert looks_random(one[node] - other[node])
        assert not looks_random(words[node])  # the test can fail
    assert not sum(one.values()).any()


def test_members_who_were_told_different_things_make_noise():
    words = {node: np.zeros(2_000, "<u8") for node in range(3)}
    secrets = secrets_of(3)
    sent = masked(words, secrets, b"told")
    sent[1] = masks.add_masks(words[1], 1, (0, 1, 2), secrets[1], b"told otherwise")
    assert looks_random(sum(sent.values()))


def test_both_ends_of_a_pair_have_the_same_secret_and_nobody_else_has():
    private = [masks.new_private_key() for _ in range(3)]
    public = [masks.public_key(each) for each in private]

    def secret(one, other, context=b"run"):
        return masks.pair_secret(private[one], public[one], public[other], context)

    assert secret(0, 1) == secret(1, 0)
    assert len({secret(0, 1), secret(0, 2), secret(1, 2), secret(0, 1, b"another run")}) == 4


def test_a_key_that_makes_every_secret_the_same_is_refused():
    private = masks.new_private_key()
    with pytest.raises(ValueError, match="shared"):
        masks.pair_secret(private, masks.public_key(private), bytes(32), b"run")


def test_streams_are_chacha20_of_a_key_by_hkdf():
    """The same words by the standard library and RFC 8439's own arithmetic."""
    import hmac

    key = hmac.digest(SECRET, masks.MASK_PURPOSE + b"label" + b"\x01", "sha256")
    words = np.frombuffer(_chacha20(key, blocks=3), "<u8")
    np.testing.assert_array_equal(masks.stream(SECRET, b"label", 24), words)
    np.testing.assert_array_equal(masks.stream(SECRET, b"label", 5), words[:5])


def _chacha20(key, blocks):
    def quarter(state, a, b, c, d):
        for one, two, three, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[one] = (state[one] + state[two]) & 0xFFFFFFFF
            mixed = state[three] ^ state[one]
            state[three] = (mixed << turn | mixed >> 32 - turn) & 0xFFFFFFFF

    made = b""
    for count in range(blocks):
        text = b"expand 32-byte k" + key + count.to_bytes(16, "little")
        first = [int.from_bytes(text[i : i + 4], "little") for i in range(0, 64, 4)]
        state = list(first)
        for _ in range(10):
            for column in range(4):
                quarter(state, *(column + 4 * row for row in range(4)))
            for diagonal in range(4):
                quarter(state, *((diagonal + row) % 4 + 4 * row for row in range(4)))
        made += b"".join(
            ((a + b) & 0xFFFFFFFF).to_bytes(4, "little") for a, b in zip(first, state, strict=True)
        )
    return made


WEIGHTS = jnp.array([0.4, 0.3, 0.1, 0.2])


def federation():
    nodes, validation = classification_nodes((30, 17, 24, 20))
    return problem(Logistic(classes=3, l2=0.1), nodes, validation).federation


def asked(size):
    at = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)
    two = jnp.stack([at, -2 * at])
    both = jnp.stack([WEIGHTS, jnp.array([0.0, 0.3, 0.3, 0.4])])
    numbers = {"learning_rate": 0.3, "proximal": 0.0}
    return {
        "sum": WeightedSum(DESCENT_ROUND, {"point": at, **numbers}, weights=WEIGHTS, steps=3),
        "sums": WeightedSum(DESCENT_ROUND, {"point": two, **numbers}, weights=both, steps=3),
        "gradient": WeightedSum(GRADIENT, {"theta": at}, weights=WEIGHTS, begin=True),
        "product": WeightedSum(HESSIAN_PRODUCT, {"vector": two}, weights=both),
        "slope": PerNode(SLOPE, {"vector": at}),
    }


@pytest.mark.parametrize("ask_all", [False, True])
def test_a_simulation_with_secure_sums_replies_what_one_without_replies(ask_all):
    plain, secure = federation(), SecureSums(federation())
    plain.ask_all = secure.ask_all = ask_all
    requests = asked(plain.objective.size)
    for number in range(3):  # from the second on, the scale follows the norms of the first
        key = jax.random.fold_in(jax.random.key(0), number)
        expected, found = (each.exchange(key=key, **requests) for each in (plain, secure))
        for name in requests:
            for part, array in expected.replies[name].items():
                assert found.replies[name][part].shape == array.shape
                np.testing.assert_allclose(
                    found.replies[name][part], array, rtol=1e-5, atol=1e-6 * np.abs(array).max()
                )
        assert found.cost.bytes_up > expected.cost.bytes_up
        assert found.cost.synchronizations == 1


def test_what_the_center_of_a_simulation_sees_looks_random_and_is_new_each_time():
    seen = []
    secure = SecureSums(federation(), watch=seen.append)
    at = jnp.zeros(secure.objective.size)
    request = WeightedSum(
        DESCENT_ROUND,
        {"point": jnp.tile(at, (40, 1)), "learning_rate": 0.3, "proximal": 0.0},
        weights=jnp.tile(WEIGHTS, (40, 1)),
        steps=3,
    )
    for _ in range(2):
        secure.exchange(key=jax.random.key(0), train=request)
    for node in range(4):
        one, other = (each.sent[node][WORDS] for each in seen)
        assert one.shape == (40, secure.objective.size + 1)
        assert looks_random(one)
        assert looks_random(one - other)


def test_numbers_that_grow_by_far_are_written_more_coarsely_and_nothing_is_lost():
    secure, seen = SecureSums(federation()), []
    secure._watch = seen.append
    for size in (1e-6, 1.0, 1e6 * FIRST_BOUND):
        vector = jnp.full(secure.objective.size, size)
        begin = {"theta": jnp.zeros(secure.objective.size)}
        plain = federation()
        request = WeightedSum(
            HESSIAN_PRODUCT, {"vector": vector, **begin}, weights=WEIGHTS, begin=True
        )
        key = jax.random.key(0)
        found, expected = (
            each.exchange(key=key, product=request).product["product"] for each in (secure, plain)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    exponents = [each.orders[0].exponents["product"] for each in seen]
    assert exponents[2] < exponents[1] - 20


def test_a_sum_of_two_nodes_and_single_vectors_are_refused():
    secure = SecureSums(federation())
    at = jnp.zeros(secure.objective.size)
    message = {"point": at, "learning_rate": 0.3, "proximal": 0.0}
    weights = jnp.array([0.5, 0.0, 0.5, 0.0])
    request = WeightedSum(DESCENT_ROUND, message, weights=weights, steps=3)
    with pytest.raises(InputError, match=r"fewer than 3 nodes .*smaller cap .*--plain-sums"):
        secure.exchange(key=jax.random.key(0), train=request)
    with pytest.raises(InputError, match=r"single nodes, which secure sums hide.*--plain-sums"):
        secure.exchange(key=jax.random.key(0), train=Revealed(DESCENT_ROUND, message, steps=3))


def test_numbers_that_are_not_finite_show_that_training_has_diverged():
    secure = SecureSums(federation())
    at = jnp.full(secure.objective.size, 1e30)
    message = {"point": at, "learning_rate": 1e6, "proximal": 1e5}
    request = WeightedSum(DESCENT_ROUND, message, weights=WEIGHTS, steps=3)
    reply = secure.exchange(key=jax.random.key(0), train=request)
    assert np.isnan(reply.train["point"]).all()


@pytest.mark.parametrize("case", ["bilevel-cg", "bilevel-svrg", "fedavg", "ditto", "pfedme"])
def test_methods_learn_the_same_with_secure_sums(case):
    run = config(case, steps=2)

    def trained(wrap):
        drawn = draw_problem(run, engine=lambda *given: lambda o: wrap(simulate(*given)(o)))
        return drawn.problem.train(run.chosen_method, budget=Budget(steps=2)).state.kept_theta

    plain, secure = trained(lambda engine: engine), trained(SecureSums)
    assert np.linalg.norm(plain - secure) <= 1e-5 * np.linalg.norm(plain)
