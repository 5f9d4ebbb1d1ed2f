"""Groups do not multiply with depth: copies of a layer are decided once."""

import re
from collections import Counter

import pytest

import shardwright as sw
from shardwright.models import build


def analysed(name, **sizes):
    fn, args, options = build(name, preset="tiny", **sizes)
    return sw.analyse(fn, *args, **options)


def outline(analysis):
    """What is decided, without where it is copied: the name, sizes and conflicts of each group."""
    return Counter(
        (re.sub(r"\.\d+\.", ".*.", d.name), d.sizes, tuple((c.kind, str(c.source), c.consistent) for c in d.conflicts))
        for d in analysis.descriptions
    )


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_unrolled_gpt_offers_the_same_decisions_at_any_depth(kv_heads):
    few = analysed("gpt", scan=False, layers=4, kv_heads=kv_heads)
    more = analysed("gpt", scan=False, layers=24, kv_heads=kv_heads)
    assert outline(few) == outline(more)
    assert len(more.conflicts) == 6 * len(few.conflicts)


@pytest.mark.slow
def test_unrolled_gpt_of_96_layers():
    assert outline(analysed("gpt", scan=False, layers=96)) == outline(analysed("gpt", scan=False, layers=4))


def test_scanned_gpt_offers_the_same_decisions_as_the_unrolled_one():
    """Apart from the stacked layer dimension, which only the scanned one has."""
    layers = 6
    scanned, unrolled = analysed("gpt", scan=True, layers=layers), analysed("gpt", scan=False, layers=layers)

    def attached(analysis):
        """For each group the sizes and the parameters' dimensions it stands on, layers and stacking forgotten."""
        out = set()
        for d in analysis.descriptions:
            if d.sizes == (layers,):
                continue
            places = set()
            for argument in d.arguments:
                path, dimension = argument[:-1].rsplit("[", 1)
                parts = [p for p in path.split(".") if not p.isdigit()]
                stacked = "layers" in parts and analysis is scanned
                places.add((".".join(parts), int(dimension) - stacked))
            if places:
                out.add((d.sizes, frozenset(places), len(d.conflicts)))
        return out

    assert attached(scanned) == attached(unrolled)


def test_graph_network_of_any_number_of_steps():
    assert outline(analysed("gns", steps=4)) == outline(analysed("gns", steps=12))


def test_unet_of_any_number_of_blocks():
    few, more = (analysed("unet", blocks=b) for b in (4, 7))
    assert len(few.groups) == len(more.groups)


def test_unrolled_vit_of_any_depth():
    assert outline(analysed("vit", scan=False, layers=4)) == outline(analysed("vit", scan=False, layers=10))


def test_layers_of_a_perceptron_alternate():
    few, more = analysed("mlp", layers=6), analysed("mlp", layers=20)
    assert len(few.groups) == len(more.groups)
    # of the 19 dimensions between the layers, the first and the last differ from those in the middle
    assert sorted(d.copies for d in more.descriptions)[-2:] == [8, 9]
