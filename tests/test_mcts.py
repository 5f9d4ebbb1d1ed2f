"""The tree search alone, on games that have nothing to do with sharding."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.mcts import Game, Settings, search

Subset = frozenset[int]


def subsets(values: dict[Subset, float], count: int) -> Game[Subset, int]:
    """Take numbers one after the other, in any order; what counts is which were taken."""
    return Game(
        frozenset(),
        lambda taken: [k for k in range(count) if k not in taken],
        lambda taken, k: taken | {k},
        lambda taken: taken,
        lambda taken: values[taken],
    )


def random_values(count: int, seed: int) -> dict[Subset, float]:
    random = Random(seed)
    return {frozenset(k for k in range(count) if bits >> k & 1): random.random() for bits in range(2**count)}


def lock(length: int, seed: int = 3) -> Game[tuple[int, ...], int]:
    """A combination lock that tells how many of the first digits are right."""
    secret = [Random(seed).randrange(10) for _ in range(length)]

    def value(digits: tuple[int, ...]) -> float:
        right = 0
        while right < len(digits) and digits[right] == secret[right]:
            right += 1
        return right - 0.1 * (len(digits) - right)

    return Game(
        (),
        lambda digits: range(10) if len(digits) < length else (),
        lambda digits, d: (*digits, d),
        lambda digits: digits,
        value,
    )


@given(st.integers(1, 6), st.integers(0, 10_000), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_small_game_is_searched_to_the_end(count: int, game: int, seed: int) -> None:
    values = random_values(count, game)
    result = search(subsets(values, count), simulations=10_000, seed=seed)
    assert result.exhausted
    assert result.value == max(values.values())
    assert values[result.state] == result.value


def test_states_reached_in_several_ways_are_one_node() -> None:
    result = search(subsets(random_values(6, 1), 6), simulations=10_000)
    assert result.nodes == 2**6  # and not one for each of the 1,957 ways to take some of them in order


def test_each_simulation_ends_the_search_of_at_least_one_node() -> None:
    result = search(subsets(random_values(6, 1), 6), simulations=10_000, settings=Settings(width=100))
    assert result.simulations <= 2**6


def test_the_value_of_children_leads_the_way() -> None:
    result = search(lock(8), simulations=200, seed=1)
    assert result.value == 8
    assert not result.exhausted


def test_a_state_met_on_a_random_play_is_kept() -> None:
    values = {frozenset(range(k)): 0.0 for k in range(5)} | {frozenset(range(5)): 1.0}
    game = Game(
        0, lambda k: [1] if k < 5 else [], lambda k, a: k + a, lambda k: k, lambda k: values[frozenset(range(k))]
    )
    result = search(game, simulations=1, settings=Settings(rollout_stop=0.0, rollout_steps=9))
    assert (result.state, result.value) == (5, 1.0)


def test_the_same_seed_gives_the_same_search() -> None:
    met: list[list[tuple[int, ...]]] = []
    for seed in (5, 5, 6):
        game, seen = lock(6), []
        watched = Game(
            game.root, game.actions, game.apply, game.key, lambda s, g=game, m=seen: m.append(s) or g.value(s)
        )
        search(watched, simulations=30, seed=seed)
        met.append(seen)
    assert met[0] == met[1]
    assert met[0] != met[2]


def test_it_ends_when_told() -> None:
    told = []
    result = search(lock(8), simulations=200, after=lambda n: told.append(n) or n == 7)
    assert result.simulations == 7
    assert told == list(range(1, 8))


def test_without_a_simulation_it_stays_at_the_root() -> None:
    assert search(lock(3), simulations=0).state == ()


def test_a_game_without_actions_is_over() -> None:
    result = search(subsets({frozenset(): 2.0}, 0), simulations=10)
    assert (result.value, result.simulations, result.exhausted) == (2.0, 0, True)


def test_an_action_that_changes_nothing_does_not_trap_it() -> None:
    """Two actions that lead to one state are one edge."""
    game = Game(0, lambda k: ["a", "b"] if k < 3 else [], lambda k, _: k + 1, lambda k: k, float)
    result = search(game, simulations=50)
    assert (result.state, result.exhausted, result.nodes) == (3, True, 4)
