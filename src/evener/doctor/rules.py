"""The table of all rules, by family: one row per rule. The page of a rule has its code's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from evener.doctor import certain, endings, memory, numbers, placement, speed, training_text
from evener.doctor.finding import Case, Family, Rule, Severity, Violation

_ERROR, _WARNING, _HINT = Severity
_Check = Callable[[Case], Iterator[Violation]]
_Row = tuple[str, Severity, str, tuple[_Check, ...]]

# Errors that a mistake certainly ends in: a crash with such a text has the code of the mistake.
_CRASHES = {
    "DOC-105": r"cannot be modified after being initialized",
    "DOC-014": r"The filepath provided must end in|Invalid filepath extension for saving",
    "DOC-205": r"Inputs to operation .*AddN.* must have the same size and shape",
    "DOC-323": r"outside the valid range|Argument `output` must have rank|Arguments `target` and "
    r"`output` must have the same",
    "DOC-330": r"No gradients provided for any variable",
    "DOC-605": r"OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED",
    "RUN-009": r"tried to create variables|singleton tf\.Variable",
    "RUN-010": r"PerReplica",
}
# Errors that a mistake may end in: where it is found, such a crash is its evidence.
_EXPLAINS = {
    "DOC-104": r"cannot be modified after being initialized",
    "DOC-107": r"unknown device|Could not satisfy explicit device",
    "DOC-215": r"different tf\.distribute\.Strategy|different strateg|strategy\.scope|outside of",
    "DOC-336": r"optimizer cannot recognize variable|Unknown variable",
    "ENG-003": r"different tf\.distribute\.Strategy|different strateg|strategy\.scope|outside of",
    **_CRASHES,
}
# Codes of errors that evener raises for the mistake of a rule of another code.
_ALSO = {
    "DOC-002": ("RUN-001", "RUN-002"),
    "DOC-101": ("DEV-101", "DEV-115"),
    "DOC-102": ("DEV-102",),
}

_TABLE: dict[Family, tuple[_Row, ...]] = {
    Family.PROGRAM: (
        ("DOC-001", _ERROR, "the script is not Python", (endings.not_python,)),
        ("DOC-002", _ERROR, "the script cannot be read", (endings.unreadable,)),
        ("DOC-003", _ERROR, "a module of the project cannot be read", (endings.module_not_python,)),
        (
            "DOC-004",
            _ERROR,
            "a name that TensorFlow or Keras no longer has",
            (endings.removed_names,),
        ),
        ("DOC-010", _ERROR, "the program hangs", (endings.hangs,)),
        ("DOC-011", _ERROR, "the program crashed", (endings.crashed,)),
        ("DOC-012", _WARNING, "the program ended before it trained", (endings.ended_early,)),
        (
            "DOC-013",
            _ERROR,
            "a process is forked after TensorFlow was started",
            (certain.fork_after_start,),
        ),
        ("DOC-014", _ERROR, "a file name that Keras refuses", (training_text.file_endings,)),
    ),
    Family.NUMBERS: (
        (
            "DOC-214",
            _ERROR,
            "the loss of a replica is not scaled",
            (numbers.unscaled_loss, certain.unscaled_loss),
        ),
        (
            "DOC-216",
            _ERROR,
            "strategy.run is given a whole batch",
            (placement.whole_batches, certain.whole_batches),
        ),
        ("DOC-308", _ERROR, "a tf.Variable that Keras does not train", (numbers.outside_of_model,)),
        (
            "DOC-310",
            _ERROR,
            "a model without trainable variables is trained",
            (numbers.nothing_to_train,),
        ),
        (
            "DOC-311",
            _WARNING,
            "a loss for each sample that is never averaged",
            (numbers.unreduced_loss,),
        ),
        (
            "DOC-320",
            _ERROR,
            "logits are given to a loss for probabilities",
            (numbers.logits_as_probabilities,),
        ),
        (
            "DOC-321",
            _ERROR,
            "probabilities are given to a loss for logits",
            (numbers.probabilities_as_logits,),
        ),
        (
            "DOC-322",
            _ERROR,
            "softmax over one unit, or twice",
            (numbers.softmax_of_one, numbers.double_activation),
        ),
        (
            "DOC-323",
            _ERROR,
            "labels are outside of the classes, or of another loss",
            (numbers.labels_and_classes,),
        ),
        (
            "DOC-324",
            _ERROR,
            "labels and outputs are broadcast against each other",
            (numbers.broadcast_labels,),
        ),
        (
            "DOC-325",
            _ERROR,
            "outputs are no distribution over the classes",
            (numbers.softmax_axis,),
        ),
        (
            "DOC-326",
            _ERROR,
            "labels are outside of the range of the last activation",
            (numbers.unreachable_labels,),
        ),
        ("DOC-327", _WARNING, "the loss ignores a mask", (numbers.ignored_mask,)),
        ("DOC-330", _ERROR, "variables without a gradient", (numbers.no_gradient,)),
        ("DOC-331", _ERROR, "trainable variables are never updated", (numbers.not_updated,)),
        ("DOC-332", _ERROR, "frozen variables are trained", (numbers.frozen_and_trained,)),
        ("DOC-333", _ERROR, "gradients that vanish or explode", (numbers.gradient_sizes,)),
        ("DOC-334", _ERROR, "NaN or infinity", (numbers.not_finite,)),
        (
            "DOC-335",
            _ERROR,
            "a learning rate under which nothing is learned",
            (numbers.learning_rate,),
        ),
        (
            "DOC-336",
            _WARNING,
            "weights or optimizer state begin anew while training",
            (numbers.set_back, training_text.made_per_epoch, training_text.weights_per_epoch),
        ),
        ("DOC-337", _ERROR, "float16 without loss scaling", (numbers.loss_scaling,)),
        ("DOC-338", _WARNING, "the random seed is set in every step", (numbers.constant_seed,)),
        (
            "DOC-340",
            _ERROR,
            "Dropout or BatchNormalization in the wrong mode",
            (numbers.training_flag,),
        ),
        (
            "DOC-341",
            _WARNING,
            "training data is not shuffled, or to no effect",
            (numbers.sorted_data,),
        ),
        (
            "DOC-342",
            _ERROR,
            "inputs and labels are shuffled apart",
            (training_text.shuffled_apart,),
        ),
        ("DOC-343", _ERROR, "validation data is training data", (numbers.leaked_validation,)),
        (
            "DOC-344",
            _ERROR,
            "inputs are not scaled, twice, or otherwise in validation",
            (numbers.input_scale,),
        ),
        (
            "DOC-345",
            _ERROR,
            "the same batch in every step",
            (numbers.repeated_batches, training_text.new_iterators),
        ),
        ("DOC-346", _WARNING, "validation data is changed at random", (numbers.random_validation,)),
        ("DOC-347", _WARNING, "samples that no batch holds", (numbers.dropped_rows,)),
        (
            "DOC-348",
            _WARNING,
            "a metric is never reset",
            (
                numbers.metric_not_reset,
                training_text.metric_not_reset,
                training_text.hidden_metrics,
            ),
        ),
        (
            "RUN-010",
            _ERROR,
            "a value per replica used as one number",
            (certain.per_replica_values,),
        ),
        ("DOC-339", _ERROR, "two optimizers train the same variables", (numbers.trained_twice,)),
        (
            "DOC-349",
            _WARNING,
            "a metric that does not go with the loss",
            (training_text.metric_mismatch,),
        ),
        (
            "RUN-009",
            _ERROR,
            "layers, optimizers or variables created on every call",
            (numbers.made_again, training_text.made_in_call),
        ),
    ),
    Family.DEVICES: (
        ("DOC-101", _WARNING, "GPUs hidden from the program", (placement.hidden_gpus,)),
        ("DOC-102", _ERROR, "TensorFlow without GPU support", (placement.cpu_wheel,)),
        (
            "DOC-104",
            _WARNING,
            "environment variable set after it was read",
            (placement.late_variables, certain.late_variables),
        ),
        (
            "DOC-105",
            _ERROR,
            "devices set too late",
            (placement.late_settings, certain.late_settings),
        ),
        (
            "DOC-107",
            _WARNING,
            "a device that does not exist",
            (placement.missing_devices, certain.device_names),
        ),
        ("DOC-110", _WARNING, "the model is pinned to the CPU", (placement.all_on_one,)),
        ("DOC-302", _WARNING, "tf.device without effect", (placement.pins_without_effect,)),
    ),
    Family.DISTRIBUTION: (
        (
            "DOC-201",
            _WARNING,
            "trains without a strategy on a machine with several GPUs",
            (placement.no_strategy, certain.no_strategy),
        ),
        (
            "DOC-202",
            _WARNING,
            "a strategy is made and never used",
            (placement.unused_strategy, certain.unused_strategy),
        ),
        (
            "DOC-205",
            _WARNING,
            "batch that does not divide, or is small for the devices",
            (placement.uneven_batch,),
        ),
        (
            "DOC-208",
            _WARNING,
            "MultiWorkerMirroredStrategy without TF_CONFIG",
            (placement.multi_worker,),
        ),
        (
            "DOC-215",
            _ERROR,
            "model made outside the strategy's scope",
            (placement.outside_scope, certain.outside_scope),
        ),
        ("DOC-220", _WARNING, "equal shares for unequal GPUs", (placement.unequal_cards,)),
        ("DOC-221", _WARNING, "a strategy over one of several GPUs", (placement.fewer_devices,)),
        (
            "ENG-003",
            _ERROR,
            "optimizer made outside the strategy's scope",
            (certain.optimizer_outside,),
        ),
        (
            "RUN-006",
            _ERROR,
            "custom loop that never calls strategy.run",
            (placement.loop_without_run, certain.loop_without_run),
        ),
    ),
    Family.MEMORY: (
        ("DOC-601", _WARNING, "models made and trained in a loop", (memory.models_in_loop,)),
        (
            "DOC-602",
            _WARNING,
            "tensors of every step are kept",
            (memory.kept_tensors, training_text.kept_tensors),
        ),
        ("DOC-604", _WARNING, "a cache or buffer larger than memory", (memory.buffers,)),
        (
            "DOC-605",
            _ERROR,
            "more memory is needed than a GPU has",
            (memory.does_not_fit, memory.constant_sizes),
        ),
        ("DOC-606", _WARNING, "data is a constant of a graph", (memory.large_constants,)),
        ("DOC-607", _WARNING, "a persistent tape that is asked once", (memory.persistent_tape,)),
    ),
    Family.SPEED: (
        ("DOC-414", _WARNING, "float64 in the model", (speed.double_precision,)),
        ("DOC-401", _WARNING, "a step waits for its input", (speed.slow_input,)),
        (
            "DOC-402",
            _WARNING,
            "a copy to the host in every step",
            (speed.host_reads, training_text.host_reads, training_text.python_in_steps),
        ),
        ("DOC-403", _WARNING, "a tf.function traced again and again", (speed.retracing,)),
        ("DOC-404", _HINT, "tiny steps without steps_per_execution", (speed.tiny_steps,)),
        (
            "DOC-405",
            _WARNING,
            "operations that run on the CPU only, in every step",
            (speed.cpu_operations,),
        ),
        (
            "DOC-407",
            _WARNING,
            "training steps run eagerly",
            (speed.eager_steps, training_text.eager_steps),
        ),
        (
            "DOC-408",
            _WARNING,
            "predict, evaluate, save or fit in every step",
            (speed.repeated_calls, training_text.predict_in_loop),
        ),
        (
            "DOC-410",
            _WARNING,
            "steps of one sample",
            (speed.small_batches, training_text.never_batched),
        ),
        ("DOC-411", _WARNING, "callbacks take the time of steps", (speed.slow_callbacks,)),
        ("DOC-412", _WARNING, "Python takes the time of steps", (speed.outside_of_tensorflow,)),
        ("DOC-413", _WARNING, "mixed precision without a GPU", (speed.useless_mixed_precision,)),
    ),
}
RULES = tuple(
    Rule(
        code,
        family,
        severity,
        title,
        checks,
        explains=_EXPLAINS.get(code, ""),
        is_cause=code in _CRASHES,
        also=_ALSO.get(code, ()),
    )
    for family, rows in _TABLE.items()
    for code, severity, title, checks in rows
)

GONE = (
    "DOC-005 DOC-006 DOC-103 DOC-106 DOC-109 DOC-203 DOC-207 DOC-210 DOC-211 DOC-212 DOC-213 "
    "DOC-217 DOC-218 DOC-219 DOC-305 DOC-309 DOC-501 DOC-502 DOC-503"
).split()
"""Codes of rules of earlier versions: settings may name them still."""


def all_rules() -> tuple[Rule, ...]:
    """Return all rules, in the order of families and codes."""
    return RULES
