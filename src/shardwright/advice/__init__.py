"""What a plan would gain if layers were recomputed in the backward pass, or were not: said, never done."""

from shardwright.advice.advice import Advice, give_advice

__all__ = ["Advice", "give_advice"]
