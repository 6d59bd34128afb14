"""A study in Optuna, as the process of one trial sees it: its settings, its reports, and whether it is worth going on."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import BaseTrial, FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from training.contracts import JsonObject, sha256_hex
from training.errors import UnavailableError, first_line
from training.process.waiting import without_waiting
from training.spec.sections.train import Train
from training.spec.sections.tuning import SearchSpace, Tune
from training.tuning.records import TrialRecord
from training.tuning.settings import Settings, grid, is_searched, project

logger = logging.getLogger(__name__)

SLOT: Final = "slot"
PRUNED: Final = "pruned"
REDUCTION: Final = 3
"""Of three trials at a rung one continues (Li et al., Hyperband, JMLR 2018; Optuna's default is 3, the paper's 3 or 4)."""
FIRST_LOOK: Final = 40
"""Hyperband looks first after the fortieth part of a training: two rounds of eighty, five of two hundred. At most four brackets."""
MAX_REPORTS: Final = 100
"""Of one trial: a thousand boosting rounds need not be a thousand writes."""
FEWEST_FOR_IMPORTANCE: Final = 4
"""Complete trials below which nothing can be said of which setting mattered."""
AWAY: Final = (StorageInternalError, SQLAlchemyError, OSError)
STATES: Final = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}

optuna.logging.set_verbosity(optuna.logging.WARNING)


def sampler_of(tune: Tune, slot: int) -> BaseSampler:
    """Return the sampler for one trial. Seeded by study and slot, so that a study of one worker is the same each time.

    TPE: Bergstra et al., NIPS 2011, multivariate, with running trials taken for bad ones (constant liar). CMA-ES: Hansen, 2016.
    """
    seed = int(sha256_hex(f"{tune.seed}/{slot}".encode())[:8], 16)
    if tune.sampler == "tpe":
        return TPESampler(seed=seed)
    if tune.sampler == "cmaes":
        return CmaEsSampler(seed=seed, warn_independent_sampling=False)
    # A grid's trials have all their settings given.
    return RandomSampler(seed=seed)


def pruner_of(tune: Tune, epochs: int) -> BasePruner:
    """Return the pruner of a study whose trainings have at most `epochs` epochs."""
    if tune.pruner == "hyperband":
        return Hyperband(epochs)
    if tune.pruner == "halving":
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION)
    return MedianPruner() if tune.pruner == "median" else NopPruner()


class Hyperband(BasePruner):
    """Hyperband (Li et al., JMLR 2018) whose sampler learns from all trials.

    With Optuna's own class, TPE would see the trials of one bracket alone: of a search of fifty trials a dozen, hardly more than
    it draws at random to begin with. Here as in BOHB (Falkner et al., ICML 2018) one model serves all brackets; TPE ranks what was
    pruned behind what was not, the longer trained first.
    """

    def __init__(self, epochs: int) -> None:
        # Losses after a single one of many rounds say little: on the benchmark's trainings the best trial then falls to that look.
        first = max(1, epochs // FIRST_LOOK)
        self._brackets = HyperbandPruner(min_resource=first, max_resource=max(epochs, 1), reduction_factor=REDUCTION)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        return self._brackets.prune(study, trial)


def most_epochs(tune: Tune, train: Train) -> int:
    """Return the epochs of the study's longest training."""
    space = tune.space.get("epochs")
    if space is None:
        return train.epochs
    return int(max(space.choices if space.choices is not None else space.bounds))


class Search:
    """One trial of a study. What is sent to a storage that is unavailable is lost to pruning, never to the study."""

    def __init__(self, tune: Tune, train: Train, *, name: str, slot: int, storage: BaseStorage) -> None:
        """Open or make the study.

        Raises:
            UnavailableError: `tuning.storage`.
        """
        self._tune = tune
        self._slot = slot
        self._epochs = most_epochs(tune, train)
        try:
            self.study: Study = optuna.create_study(
                study_name=name,
                storage=storage,
                sampler=sampler_of(tune, slot),
                pruner=pruner_of(tune, self._epochs),
                direction="minimize",
                load_if_exists=True,
            )
            # The study's own view of the storage, which may remember what it has read: two views would not know of one another.
            self._storage: BaseStorage = self.study._storage
            self._study_id = self._storage.get_study_id_from_name(name)
        except AWAY as err:
            raise _away(err) from err

    def restore(self, records: Sequence[TrialRecord]) -> int:
        """Add finished trials that the storage does not know, or takes for running; return their number."""
        known = {trial.user_attrs.get(SLOT): trial for trial in self.study.get_trials(deepcopy=False)}
        restored = 0
        for record in records:
            trial = known.get(record.slot)
            if trial is not None and trial.state.is_finished():
                continue
            restored += 1
            if trial is None:
                self.study.add_trial(_finished_trial(record, self._tune))
            else:
                self._finish(trial._trial_id, record)
        return restored

    def begin(self, given: Settings) -> tuple[Trial, Settings]:
        """Return this slot's trial and its settings: those of the attempt before, if there was one.

        Args:
            given: settings that are not to be drawn.

        Raises:
            UnavailableError: `tuning.storage`.
        """
        try:
            for trial in self.study.get_trials(deepcopy=False):
                if trial.user_attrs.get(SLOT) == self._slot and not trial.state.is_finished():
                    logger.info("trial %d continues", self._slot)
                    found = Trial(self.study, trial._trial_id)
                    return found, suggest(found, self._tune)
            # `Study.ask` would make a trial without an owner until a second write: killed in between, it would count as running forever.
            template = create_trial(state=TrialState.RUNNING, user_attrs={SLOT: self._slot}, system_attrs={"fixed_params": given})
            made = Trial(self.study, self._storage.create_new_trial(self._study_id, template_trial=template))
            return made, suggest(made, self._tune)
        except AWAY as err:
            raise _away(err) from err

    def given(self, train: Train, champion: JsonObject | None) -> Settings:
        """Return the settings that this slot's trial has by right: the grid's, or for the first one the champion's, else the spec's."""
        if self._tune.sampler != "grid" and self._slot != 0:
            return {}
        first = project(train if champion is None else Train.model_validate({**train.model_dump(mode="json"), **champion}), self._tune)
        if self._tune.sampler != "grid":
            return first
        found = grid(self._tune)
        return ([first, *(one for one in found if one != first)] if first in found else found)[self._slot]

    def finish(self, trial: Trial, record: TrialRecord) -> None:
        """Report the end of the trial to the storage. The record is in the store already: a failure here does no harm."""
        try:
            with without_waiting():
                self._finish(trial._trial_id, record)
        except AWAY as err:
            logger.warning("the study's storage does not answer; the next trial reports trial %d: %s", self._slot, err)

    def _finish(self, trial_id: int, record: TrialRecord) -> None:
        frozen = self._storage.get_trial(trial_id)
        state = STATES[record.state]
        value = record.value if record.state == "complete" else (record.losses[-1][1] if record.losses else None)
        values = [value] if value is not None and record.state != "failed" else None
        # Another process reported it first: the same value, since it is read from the same record.
        with suppress(UpdateFinishedTrialError):
            self.study.sampler.after_trial(self.study, frozen, state, values)
            self._storage.set_trial_state_values(trial_id, state, values)


class PruningCallback:
    """Reports the lowest validation loss so far after each epoch, and consults the pruner.

    The lowest and not the last, because it is what a training is worth: its best epoch's weights are kept.
    """

    def __init__(self, trial: Trial, epochs: int) -> None:
        self._trial = trial
        self._every = max(1, epochs // MAX_REPORTS)
        self._is_away = False
        self._known = dict(trial.study._storage.get_trial(trial._trial_id).intermediate_values)
        self._lowest = min(self._known.values(), default=math.inf)
        self.is_pruned = bool(trial.user_attrs.get(PRUNED))
        """Settled, also by an attempt before this one."""

    @property
    def losses(self) -> list[tuple[int, float]]:
        """What was reported, over all attempts: (epochs done, lowest validation loss so far)."""
        return sorted((epoch, loss) for epoch, loss in self._known.items() if math.isfinite(loss))

    def __call__(self, epoch: int, loss: float) -> bool:
        """Return whether training is to end here."""
        self._lowest = min(self._lowest, loss)
        if epoch % self._every or self.is_pruned:
            return self.is_pruned
        if epoch in self._known:
            # An earlier attempt came this far, and the pruner continued it.
            return False
        self._known[epoch] = self._lowest
        try:
            # The pruner saves time: waiting for it would cost more at every epoch than it can save.
            with without_waiting():
                self._trial.report(self._lowest, epoch)
                if not self._trial.should_prune():
                    return False
                self._trial.set_user_attr(PRUNED, True)
        except AWAY as err:
            if not self._is_away:
                logger.warning("the study's storage does not answer, this trial continues without its pruner: %s", err)
            self._is_away = True
            return False
        self.is_pruned = True
        return True


def _finished_trial(record: TrialRecord, tune: Tune) -> FrozenTrial:
    known = {name: value for name, value in record.settings.items() if name in tune.space}
    value = record.value if record.state == "complete" else (record.losses[-1][1] if record.losses and record.state == "pruned" else None)
    return create_trial(
        state=STATES[record.state],
        value=value,
        params=known,
        distributions={name: distribution_of(tune.space[name]) for name in known},
        user_attrs={SLOT: record.slot},
        intermediate_values=dict(record.losses),
    )


def importance_of(tune: Tune, records: Sequence[TrialRecord]) -> dict[str, float]:
    """Return each searched setting's share of what separates the best trials from the others, largest first; empty where unknown.

    PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023), Optuna's default. Only settings that every complete trial has are compared:
    one that is searched under a condition is left out.
    """
    complete = [record for record in records if record.state == "complete"]
    names = [name for name in tune.space if all(name in record.settings for record in complete)]
    varied = [name for name in names if len({record.settings[name] for record in complete}) > 1]
    if len(complete) < FEWEST_FOR_IMPORTANCE or not varied:
        return {}
    study = optuna.create_study(direction="minimize")
    study.add_trials([_finished_trial(record, tune) for record in complete])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(study, params=varied)
    return {name: round(float(share), 6) for name, share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))}


def _away(err: Exception) -> UnavailableError:
    return UnavailableError("tuning.storage", f"the study's storage does not answer: {first_line(err)}", hint="see NIGHTSHIFT_DATABASE")


def distribution_of(space: SearchSpace) -> BaseDistribution:
    """Return what Optuna draws a parameter from."""
    if space.choices is not None:
        return CategoricalDistribution(space.choices)
    low, high = space.bounds
    if space.int_ is not None:
        return IntDistribution(low, high, log=space.log, step=int(space.step or 1))
    return FloatDistribution(low, high, log=space.log, step=space.step)


def suggest(trial: BaseTrial, tune: Tune) -> Settings:
    """Return a trial's settings: those whose conditions hold, each drawn after what it depends on."""
    settings: Settings = {}
    for name in tune.in_order():
        if not is_searched(tune.space[name], settings):
            continue
        # `suggest_*` by kind is the only public way to draw from a distribution.
        drawn = distribution_of(tune.space[name])
        if isinstance(drawn, CategoricalDistribution):
            settings[name] = trial.suggest_categorical(name, drawn.choices)
        elif isinstance(drawn, IntDistribution):
            settings[name] = trial.suggest_int(name, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
        elif isinstance(drawn, FloatDistribution):
            settings[name] = trial.suggest_float(name, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
    return settings
