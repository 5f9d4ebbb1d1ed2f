"""The loop: compile the plan, learn what its prices were off by, search again; then try options of the compiler."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardwright._progress import tuning_bar
from shardwright.compiler.options import Setting, settings_of
from shardwright.errors import PlanError
from shardwright.plan import Plan
from shardwright.plan.tuning import Compiled, KeptOption, Tuning
from shardwright.plan.verdicts import CompilerVerdict
from shardwright.tune.judge import Judge, compiled_by, refuses_option
from shardwright.tune.learn import largest_corrections
from shardwright.tune.states import States

WORTH = 0.01
"""The part of a step from which on a plan that is predicted to be faster is compiled, and an option kept."""
_LEAST_PLANS, _FOR_OPTIONS, _WITHIN = 4, 3, 0.1
"""How many plans are compiled before what was learned is relied on, if they may be as good as that; how many
compilations are left for options, if there are so many to try."""
_SHORTEST_SEARCH_SECONDS = 5.0

Tell = Callable[[str, int, float | None, float | None], None]


def tune_plan(
    plan: Plan,
    on: str,
    *,
    compiles: int = 8,
    seconds: float | None = None,
    progress: bool | None = None,
    seed: int = 0,
    judge: Judge | None = None,
) -> Plan:
    """The best plan and options that a compiler was asked about, at least as fast as ``plan`` without options.

    ``judge`` stands in for the compiler. An interrupt (Ctrl-C) ends the loop, and the best so far is returned.
    """
    if compiles < 1:
        raise PlanError(f"tuning compiles at least one plan, so compiles= cannot be {compiles}.")
    judge = judge or compiled_by(plan, on)
    with tuning_bar(progress, compiles) as tell:
        return Loop(plan, on, judge, compiles, seconds, seed, tell).run()


@dataclass(frozen=True, eq=False)
class Trial:
    """A plan under some of our options, and what the compiler said of it."""

    plan: Plan
    options: tuple[KeptOption, ...]
    verdict: CompilerVerdict
    what: str
    predicted_seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        """Its compiled step, if it is a plan at all."""
        return self.verdict.step_seconds if self.verdict.ok else None


class _Over(Exception):  # noqa: N818 (nothing went wrong)
    """There is nothing left to spend; its text is "compiles" or "seconds"."""


class Loop:
    """One run of tuning, and what was compiled in it."""

    def __init__(
        self, plan: Plan, on: str, judge: Judge, compiles: int, seconds: float | None, seed: int, tell: Tell
    ) -> None:
        self.plan, self.on, self.judge, self.compiles, self.tell, self.seed = plan, on, judge, compiles, tell, seed
        self.started = time.perf_counter()
        self.deadline = None if seconds is None else self.started + seconds
        self.trials: list[Trial] = []
        self.notes: list[str] = []
        self.kept: Trial | None = None
        """The best with options that pay, if there are any."""
        self.unknown: set[str] = set()

    def run(self) -> Plan:
        """All of it, until there is nothing better to try, or nothing left to spend."""
        ended = "converged"
        try:
            self._compile(self.plan, (), "the plan without tuning")
            self._choose_plans()
            self._choose_options()
        except _Over as over:
            ended = str(over)
        except KeyboardInterrupt:
            ended = "interrupted"
        return self._tuned(ended)

    @property
    def best(self) -> Trial | None:
        """The fastest so far that fits, with options only if they pay; of equals the first."""
        plain = [trial for trial in self.trials if not trial.options and trial.seconds is not None]
        found = [*plain, *([self.kept] if self.kept is not None else [])]
        return min(found, key=lambda trial: trial.seconds or 0.0, default=None)

    # Plans.

    def _choose_plans(self) -> None:
        """Compile what is predicted to be better than all that was compiled, by more than it is worth."""
        options = self._settings()
        most = max(self.compiles - min(_FOR_OPTIONS, len(options)), (self.compiles + 1) // 2)
        states = States(self.plan, self.seed)
        while len(self.trials) < most:
            seen = [(trial.plan, trial.verdict) for trial in self.trials if not trial.options]
            self._tell("searching")
            left = self._seconds_left()
            found = states.candidates(seen, None if left is None else max(left / 2, _SHORTEST_SEARCH_SECONDS))
            if states.interrupted:
                raise KeyboardInterrupt
            if not found:
                return
            predicted, state = found[0]
            best = self.best
            if best is not None and best.seconds is not None:
                enough = len(self.trials) >= _LEAST_PLANS
                if predicted > (1 - WORTH if enough else 1 + _WITHIN) * best.seconds:
                    return
            self._compile(states.plan_of(state), (), f"plan {len(self.trials) + 1}", predicted)

    # Options.

    def _settings(self) -> list[KeptOption]:
        """The options that the compiler knows, in the order to try them; ``saved`` is not known yet."""
        return [
            KeptOption(record.name, dict(record.effect.options), 0.0)
            for record in settings_of(self.plan.device.platform, self.plan.device.generation)
            if record.effect is not None and record.name not in self.unknown
        ]

    def _choose_options(self) -> None:
        """Try options on the best plan, each on top of those that were kept; and these on the next best."""
        ranked = sorted(
            (t for t in self.trials if t.seconds is not None and not t.options), key=lambda t: t.seconds or 0.0
        )
        if not ranked:
            return
        first, *others = ranked
        current = first
        effects: dict[str, Setting] = {
            r.name: r.effect for r in settings_of(self.plan.device.platform) if r.effect is not None
        }
        for option in self._settings():
            if effects[option.name].matters(current.verdict.counts):
                current = self._try(current, (option,)) or current
        gained = 1 - (current.seconds or 0.0) / (first.seconds or 1.0)
        for other in others:
            may_win = (1 - gained) * (other.seconds or 0.0) < (current.seconds or 0.0)
            if current.options and may_win:
                current = self._try(other, current.options, current) or current

    def _try(self, base: Trial, options: tuple[KeptOption, ...], beat: Trial | None = None) -> Trial | None:
        """A plan with further options; it is kept, and returned, if it is better by what is worth it."""
        wanted = (*base.options, *options)
        trial = self._compile(base.plan, wanted, base.what)
        if refuses_option(trial.verdict):
            for option in options:
                self.unknown.add(option.name)
                names = ", ".join(option.settings)
                self.notes.append(f"{option.name} was left out: the compiler does not know {names}")
            return None
        before, now = (beat or base).seconds, trial.seconds
        if before is None or now is None or now > (1 - WORTH) * before:
            return None
        if beat is None:
            saved = 1 - now / before
            wanted = (*base.options, *(dataclasses.replace(option, saved=saved) for option in options))
        trial = dataclasses.replace(trial, options=wanted)
        self.kept = trial
        return trial

    # Compiling.

    def _compile(
        self, plan: Plan, options: tuple[KeptOption, ...], what: str, predicted_seconds: float | None = None
    ) -> Trial:
        if len(self.trials) >= self.compiles:
            raise _Over("compiles")
        left = self._seconds_left()
        if left is not None and left <= 0 and self.trials:
            raise _Over("seconds")
        name = what if self.trials and plan is not self.plan else "plan 1"
        self._tell(f"compiling {name}{' with options' * bool(options)}")
        settings = {name: value for option in options for name, value in option.settings.items()}
        trial = Trial(plan, options, self.judge(plan, settings), what, predicted_seconds)
        self.trials.append(trial)
        return trial

    def _seconds_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.perf_counter()

    def _tell(self, doing: str) -> None:
        """Show how it stands; how long it may take yet is told by what compilations took so far."""
        done, best = len(self.trials), self.best
        left = (time.perf_counter() - self.started) / done * (self.compiles - done) if done else None
        until = self._seconds_left()
        left = until if left is None else left if until is None else min(left, max(until, 0.0))
        self.tell(doing, done, best.seconds if best is not None else None, left)

    # What comes of it.

    def _tuned(self, ended: str) -> Plan:
        taken, best = time.perf_counter() - self.started, self.best
        compiled = tuple(map(_row, self.trials))
        notes = tuple(self.notes)
        if best is None:
            plan, verdict = self._smallest(interrupted=ended == "interrupted")
            tuning = Tuning(self.on, compiled=compiled, notes=notes, ended=ended, seconds=taken)
            return dataclasses.replace(plan, verdict=verdict, tuning=tuning, given_costs=plan.costs)
        plain = next((t for t in self.trials if t.plan is best.plan and not t.options), best)
        tuning = Tuning(
            self.on,
            best.options,
            self.trials[0].seconds,
            best.seconds,
            compiled,
            largest_corrections(plain.plan, plain.verdict),
            notes,
            ended,
            taken,
        )
        others = [t for t in self.trials if t.plan is not best.plan and not t.options]
        others.sort(key=lambda t: (t.seconds is None, t.seconds or 0.0))
        alternatives = tuple(dataclasses.replace(t.plan, verdict=t.verdict) for t in others)
        return dataclasses.replace(
            best.plan, verdict=best.verdict, tuning=tuning, alternatives=alternatives, given_costs=best.plan.costs
        )

    def _smallest(self, *, interrupted: bool) -> tuple[Plan, CompilerVerdict | None]:
        """The plan that needs least where none fits; ``PlanError`` where the compiler refuses them all otherwise."""
        refused = [t for t in self.trials if t.verdict.fits is False and t.verdict.peak_bytes is not None]
        if refused:
            smallest = min(refused, key=lambda t: t.verdict.peak_bytes or 0)
            return smallest.plan, smallest.verdict
        if interrupted or not self.trials:
            return self.plan, None
        reasons = "; ".join(dict.fromkeys(trial.verdict.message for trial in self.trials))
        raise PlanError(f"the compiler for {self.on} takes none of the {len(self.trials)} plans: {reasons}.")


def _row(trial: Trial) -> Compiled:
    verdict = trial.verdict
    return Compiled(
        trial.what,
        tuple(option.name for option in trial.options),
        verdict.step_seconds,
        verdict.peak_bytes,
        verdict.fits,
        verdict.message,
        trial.predicted_seconds,
        verdict.compile_seconds,
    )
