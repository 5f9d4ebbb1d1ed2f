"""The price of a program that nobody has written: of one state, which is all that is asked of it."""

from __future__ import annotations

from shardwright.advice.draft import Draft
from shardwright.advice.finish import ChangedPlaces
from shardwright.price import Cost, CostModel
from shardwright.price.collectives import local_bytes
from shardwright.price.shardings import shard_value
from shardwright.space.state import State


def price(model: CostModel, places: ChangedPlaces, state: State) -> Cost:
    """What a changed program costs in a state of the model's program, with what the model has weighed already."""
    whole = tuple([frozenset([places.numbers[v] for v in values if v in places.numbers]) for values in state.whole])
    once = _Once(places, model.mesh, model.device, whole, assigner=model.assigner)
    return once.price(once.view(state.lists))


def least_bytes(model: CostModel, draft: Draft, state: State) -> float:
    """What a draft needs at least: its new stacks and the arguments, which are there at the same time."""
    mesh, values = model.mesh, draft.values
    view = model.view(state.lists)
    of_value = model.classes.of_value
    held = sum(model.bytes_in(of_value[v], model.sharding(of_value[v], view)) for v in model.classes.buffers.held)
    for v in draft.stacks:
        sharding = shard_value(values[v].shape, draft.groups(v), draft.pairs(v), (), mesh, state.lists)
        held += local_bytes(values[v].bytes, sharding, mesh)
    return held


class _Once(CostModel):
    """Prices no state before it is asked to."""

    def _start(self) -> None:
        pass
