"""The tree search alone, on games that have nothing to do with sharding."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.mcts import Game, Settings, search

Subset = frozenset[int]


def subsets(values: dict[Subset, float], count: int) -> Game[Subset, int]:
    """Take numbers one after the other, in any order; what counts is which were taken."""
    return Game(
        [frozenset()],
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
        [()],
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


def test_every_action_of_every_node_is_tried_once() -> None:
    result = search(subsets(random_values(6, 1), 6), simulations=10_000)
    assert result.simulations == 6 * 2**5


def test_values_lead_the_way() -> None:
    result = search(lock(8), simulations=400, seed=1)
    assert result.value == 8
    assert not result.exhausted


def hills(heights: list[float], reach: int) -> Game[int, int]:
    """Steps to the left and to the right on a ring, each of which ends on the top of the hill that it leads to."""

    def climbed(place: int) -> int:
        while True:
            best = max((place - 1) % len(heights), (place + 1) % len(heights), key=heights.__getitem__)
            if heights[best] <= heights[place]:
                return place
            place = best

    return Game(
        [climbed(0)],
        lambda _: [k for k in range(-reach, reach + 1) if k],
        lambda place, k: climbed((place + k) % len(heights)),
        lambda place: place,
        lambda place: heights[place],
    )


def test_a_game_may_lead_in_circles() -> None:
    random = Random(4)
    heights = [random.random() for _ in range(200)]
    result = search(hills(heights, 4), simulations=10_000)
    assert result.exhausted
    assert result.value == max(heights)
    tops = [k for k in range(200) if heights[k] >= max(heights[k - 1], heights[(k + 1) % 200])]
    assert result.nodes <= len(tops)


def test_nothing_is_left_where_every_action_leads_back() -> None:
    result = search(hills([3.0, 2.0, 1.0, 0.0, 1.0, 2.0], 2), simulations=100)
    assert (result.state, result.simulations, result.nodes, result.exhausted) == (0, 4, 1, True)


def test_every_start_is_a_root() -> None:
    """One has a low value, and the best state behind it."""
    values = {**dict.fromkeys(range(9), 0.0), 9: 10.0, **dict.fromkeys(range(100, 110), 5.0)}

    def of(*starts: int) -> Game[int, int]:
        return Game(starts, lambda k: [1] if k % 100 < 9 else [], lambda k, a: k + a, lambda k: k, values.__getitem__)

    assert search(of(100), simulations=100).value == 5
    assert search(of(100, 0), simulations=100).state == 9
    assert search(of(100, 0, 0, 100), simulations=100).nodes == 20


def test_what_gained_elsewhere_is_tried_first() -> None:
    """Of ten actions one is good everywhere: after it was met once, no new node tries another before it."""
    tried: list[tuple[tuple[int, ...], int]] = []

    def play(taken: tuple[int, ...], k: int) -> tuple[int, ...]:
        tried.append((taken, k))
        return (*taken, k)

    game = Game(
        [()], lambda t: range(10) if len(t) < 20 else (), play, lambda t: t, lambda t: t.count(7) - 0.1 * len(t)
    )
    search(game, simulations=200)
    first: dict[tuple[int, ...], int] = {}
    known = False
    for taken, k in tried:
        if taken not in first:
            first[taken] = k
            assert k == 7 or not known
        known = known or k == 7
    assert len(first) > 5


def test_the_same_seed_gives_the_same_search() -> None:
    met: list[list[tuple[int, ...]]] = []
    for seed in (5, 5, 6):
        game, seen = lock(6), []
        watched = Game(
            game.starts, game.actions, game.play, game.key, lambda s, g=game, m=seen: m.append(s) or g.value(s)
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


def test_without_a_simulation_it_stays_where_it_starts() -> None:
    assert search(lock(3), simulations=0).state == ()


def test_a_game_without_actions_is_over() -> None:
    result = search(subsets({frozenset(): 2.0}, 0), simulations=10)
    assert (result.value, result.simulations, result.exhausted) == (2.0, 0, True)


def test_two_actions_that_lead_to_one_state_make_one_node() -> None:
    game = Game([0], lambda k: ["a", "b"] if k < 3 else [], lambda k, _: k + 1, lambda k: k, float)
    result = search(game, simulations=50)
    assert (result.state, result.exhausted, result.nodes) == (3, True, 4)


def islands(count: int) -> Game[int, int]:
    """Of each state all that can be reached is the next on its island of three; the last island has the best one."""
    return Game(
        [0],
        lambda place: [1] if place % 3 < 2 else [],
        lambda place, step: place + step,
        lambda place: place,
        lambda place: 1.0 + place % 3 if place // 3 == count - 1 else 0.1 * (place % 3),
        lambda random, _: 3 * random.randrange(count),
    )


def test_what_no_action_leads_to_is_drawn_and_becomes_a_root() -> None:
    game = islands(8)
    alone = Game(game.starts, game.actions, game.play, game.key, game.value)
    assert search(alone, simulations=1_000).value < 1
    found = search(game, simulations=1_000)
    assert (found.value, found.state, found.nodes) == (3.0, 23, 24)
    assert found.exhausted  # at last draws meet nothing new


def test_a_part_of_the_simulations_draws() -> None:
    for part in (0.0, 0.25, 0.5, 1.0):
        drawn: list[int] = []

        def draw(random: Random, _: object, drawn: list[int] = drawn) -> tuple[int, ...]:
            drawn.append(1)
            return tuple(random.randrange(10) for _ in range(4))

        game = lock(8)
        with_draws = Game(game.starts, game.actions, game.play, game.key, game.value, draw)
        assert search(with_draws, simulations=80, settings=Settings(drawn=part)).simulations == 80
        assert len(drawn) == 80 * part


def test_who_draws_is_told_the_best_states() -> None:
    told: list[tuple[int, ...]] = []
    game = Game(
        [0],
        lambda _: (),
        lambda place, _: place,
        lambda place: place,
        lambda place: -abs(place - 40),
        lambda random, best: told.append(tuple(best)) or random.randrange(100),
    )
    search(game, simulations=50, settings=Settings(few=3))
    assert told[0] == (0,)
    for before, after in pairwise(told):
        assert list(after) == sorted(after, key=lambda place: abs(place - 40))
        assert len(after) <= 3
        assert abs(after[0] - 40) <= abs(before[0] - 40)


def test_the_same_seed_draws_the_same() -> None:
    first, second = (search(islands(50), simulations=20, seed=4) for _ in range(2))
    assert first == second
