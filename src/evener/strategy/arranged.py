"""Strategy of one replica whose plan can change between steps, for a trial of plans."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from evener.devices import resolve_devices
from evener.engine.pipeline.layout import Layout
from evener.plan import Plan
from evener.strategy.arrangement import Arrangement, arrange, count_like
from evener.strategy.distributed_step import DistributedStep
from evener.strategy.function_steps import FunctionSteps
from evener.strategy.one_replica import OneReplica
from evener.strategy.ownership import OwnerRegistry
from evener.strategy.run_trial import RunTrial, Way
from evener.strategy.share_controller import ShareController
from evener.strategy.step_records import StepRecords
from evener.strategy.step_settings import Prepared, StepSettings
from evener.workers.group import Group


class ArrangedReplica(OneReplica):
    """Strategy of one replica that runs steps by an arrangement, and can try others."""

    _step_type: type[DistributedStep[Any, Any]] = DistributedStep
    _group: Group | None
    _verify: bool | None
    _records: StepRecords
    _owner_registry: OwnerRegistry
    _trial: RunTrial | None

    def _make_steps(self, layout: Layout, controller: ShareController) -> FunctionSteps:
        settings = StepSettings(
            layout=layout,
            controller=controller,
            verify=self._verify,
            owned_bytes=self._owner_registry.owned_bytes,
            when_traced=self._records.add_partitioned,
            when_prepared=self._note_prepared,
            # Those of optimizers and metrics belong to no layer.
            paths=lambda: [v.path for v in self._owner_registry.variables if v.is_trainable],
            owner_of_handle=self._owner_registry.common_owner if self._group else lambda _: None,
        )
        return FunctionSteps(self, self._step_type, settings, self._records)

    def _use(self, arrangement: Arrangement) -> None:
        """Run steps that are traced from now on by a plan."""
        self._arrangement = arrangement
        self._plan, self._layout = arrangement.plan, arrangement.layout
        self._controller, self._steps = arrangement.controller, arrangement.steps
        self._replica_devices = self._layout.devices

    @contextlib.contextmanager
    def _under(self, arrangement: Arrangement) -> Iterator[None]:
        before = self._arrangement
        self._use(arrangement)
        try:
            yield
        finally:
            self._use(before)

    def _note_prepared(self, prepared: Prepared) -> None:
        if self._trial is not None:
            self._trial.note_prepared(prepared)

    def try_plans(
        self,
        plans: Sequence[Plan],
        tell: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Try plans in steps of the training to come, and keep the fastest; before the first step.

        Variables stay with the owners that the plan of the strategy gives them. Where Keras leaves
        it to the machine whether XLA compiles a step, the plan of the strategy is tried without XLA
        too.

        Args:
            plans: Plans of this process from the simplest to the least simple; the plan of the
                strategy is among them.
            tell: Function that is called with the result, a line.
            clock: Clock in seconds.

        Raises:
            DeviceError: If a device of the plans does not exist.
        """
        for plan in plans:
            resolve_devices(plan.device_names)
        own = self._arrangement
        made = {plans.index(own.plan): own}
        ways = (*map(Way, plans), Way(own.plan, by_xla=False))

        def arranged(number: int) -> Arrangement:
            if number not in made:
                found = arrange(
                    ways[number].plan,
                    self._make_steps,
                    group=None,
                    measured=False,
                    by_xla=ways[number].by_xla,
                )
                count_like(found, own)
                made[number] = found
            return made[number]

        self._trial = RunTrial(
            ways,
            start=plans.index(own.plan),
            under=lambda number: self._under(arranged(number)),
            settle=lambda number: self._use(arranged(number)),
            tell=tell,
            clock=clock,
        )

    @property
    def trial(self) -> RunTrial | None:
        """Trial of plans that is not over yet; None if there is none."""
        return None if self._trial is None or self._trial.is_over else self._trial

    def __repr__(self) -> str:
        """Return the devices and the layout."""
        return f"<evener.Strategy on {', '.join(self._plan.device_names)}: {self._plan.layout}>"

    def _repr_html_(self) -> str:
        return self.plan._repr_html_()

    @property
    def plan(self) -> Plan:
        """Plan, with the present shares."""
        return self._plan.with_shares(self.shares)

    def runs_by(self, plan: Plan | None, *, by_xla: bool = True) -> bool:
        """Return whether steps run by a plan, whatever its shares are by now.

        Args:
            plan: The plan.
            by_xla: Whether XLA compiles what is to be compiled.
        """
        return plan is self._plan and by_xla is self._layout.by_xla
