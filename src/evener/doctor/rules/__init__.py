"""All rules, by family: one row per rule. The page of a rule has the name of its code."""

from __future__ import annotations

from evener.doctor.finding import Severity
from evener.doctor.rule import Family, Rule
from evener.doctor.rules import (
    batch_too_small,
    checkpoint_path,
    chief_only_save,
    cpu_only_operation,
    cpu_wheel,
    crashed,
    creation_in_step,
    cuda_mismatch,
    direct_step_call,
    does_not_fit,
    dtype_mismatch,
    eager_steps,
    ended_early,
    endless_cache,
    fit_across_workers,
    gradient_accumulation,
    hangs,
    hidden_gpus,
    host_read,
    independent_models,
    ineffective_device_scope,
    jit_compile,
    kept_tensors,
    late_device_setting,
    late_environment_variable,
    late_optimizer_slots,
    loop_in_scope,
    loop_without_run,
    loss_not_scaled,
    lost_rows,
    missing_device,
    missing_tf_config,
    model_outside_scope,
    models_in_loop,
    module_not_python,
    no_eager_execution,
    no_strategy,
    no_trainable_variables,
    not_python,
    not_readable,
    optimizer_outside_scope,
    parameter_server,
    partial_memory_growth,
    partial_restore,
    per_replica_value,
    predict_in_loop,
    removed_api,
    retracing,
    scalar_custom_loss,
    short_steps,
    slow_input_pipeline,
    symbolic_tensor,
    train_on_batch,
    undistributed_batch,
    unknown_device_argument,
    unreduced_loss,
    untracked_variable,
    unused_strategy,
)

_ERROR, _WARNING, _HINT = Severity
# Codes of errors that evener raises for the mistake of a rule of another code.
_ALSO = {
    "DOC-002": ("RUN-001", "RUN-002"),
    "DOC-101": ("DEV-101", "DEV-115"),
    "DOC-102": ("DEV-102",),
    "DOC-103": ("DEV-103", "DEV-104"),
}
_TABLE = {
    Family.PROGRAM: (
        ("DOC-001", _ERROR, "the script is not Python", not_python),
        ("DOC-002", _ERROR, "the script cannot be read", not_readable),
        ("DOC-003", _ERROR, "a module of the project cannot be read", module_not_python),
        ("DOC-004", _ERROR, "a name that TensorFlow or Keras no longer has", removed_api),
        (
            "DOC-005",
            _ERROR,
            "Keras 3 trains, and eager execution is switched off",
            no_eager_execution,
        ),
        ("DOC-006", _ERROR, "a function of TensorFlow on a symbolic tensor", symbolic_tensor),
        ("DOC-010", _ERROR, "the program hangs", hangs),
        ("DOC-011", _ERROR, "the program crashed", crashed),
        ("DOC-012", _WARNING, "the program ended before it trained", ended_early),
    ),
    Family.DEVICES: (
        ("DOC-101", _WARNING, "GPUs hidden from the program", hidden_gpus),
        ("DOC-102", _ERROR, "TensorFlow without GPU support", cpu_wheel),
        ("DOC-103", _ERROR, "CUDA packages or driver do not fit TensorFlow", cuda_mismatch),
        (
            "DOC-104",
            _WARNING,
            "environment variable set after it was read",
            late_environment_variable,
        ),
        ("DOC-105", _ERROR, "devices set too late", late_device_setting),
        ("DOC-106", _ERROR, "memory growth on some GPUs only", partial_memory_growth),
        ("DOC-107", _WARNING, "a device that does not exist", missing_device),
        ("DOC-109", _ERROR, "an argument for devices that Keras lacks", unknown_device_argument),
    ),
    Family.DISTRIBUTION: (
        (
            "DOC-201",
            _WARNING,
            "trains without a strategy on a machine with several GPUs",
            no_strategy,
        ),
        ("DOC-202", _WARNING, "a strategy is made and never used", unused_strategy),
        ("DOC-203", _WARNING, "the whole training loop inside the scope", loop_in_scope),
        (
            "DOC-205",
            _WARNING,
            "batch that does not divide, or is small for the devices",
            batch_too_small,
        ),
        ("DOC-207", _WARNING, "several models, one per device, never combined", independent_models),
        ("DOC-208", _WARNING, "MultiWorkerMirroredStrategy without TF_CONFIG", missing_tf_config),
        ("DOC-210", _WARNING, "surprises of CentralStorage and ParameterServer", parameter_server),
        ("DOC-211", _WARNING, "train_on_batch under a strategy", train_on_batch),
        ("DOC-212", _ERROR, "a training step called without strategy.run", direct_step_call),
        ("DOC-213", _WARNING, "jit_compile=True under a strategy", jit_compile),
        ("DOC-215", _ERROR, "model made outside the strategy's scope", model_outside_scope),
        ("DOC-216", _ERROR, "strategy.run is given a whole batch", undistributed_batch),
        ("DOC-217", _WARNING, "shards leave the last rows out", lost_rows),
        (
            "DOC-218",
            _ERROR,
            "gradient_accumulation_steps under a strategy",
            gradient_accumulation,
        ),
        (
            "DOC-219",
            _WARNING,
            "Keras's fit under MultiWorkerMirroredStrategy",
            fit_across_workers,
        ),
        ("ENG-003", _ERROR, "optimizer made outside the strategy's scope", optimizer_outside_scope),
        ("RUN-006", _ERROR, "custom loop that never calls strategy.run", loop_without_run),
    ),
    Family.MEMORY: (
        ("DOC-601", _WARNING, "models made and trained in a loop", models_in_loop),
        ("DOC-602", _WARNING, "a list keeps tensors of every step", kept_tensors),
        ("DOC-604", _WARNING, "a dataset is cached in memory behind repeat", endless_cache),
        ("DOC-605", _ERROR, "a training step needs more memory than a GPU has", does_not_fit),
    ),
    Family.NUMBERS: (
        ("DOC-214", _ERROR, "the loss of a replica is not scaled", loss_not_scaled),
        ("DOC-302", _WARNING, "tf.device without effect", ineffective_device_scope),
        ("DOC-305", _ERROR, "optimizer slots created late", late_optimizer_slots),
        ("DOC-308", _ERROR, "a tf.Variable that Keras does not train", untracked_variable),
        ("DOC-309", _ERROR, "dtypes that do not match", dtype_mismatch),
        (
            "DOC-310",
            _ERROR,
            "a model without trainable variables is trained",
            no_trainable_variables,
        ),
        ("DOC-311", _WARNING, "a loss for each sample that is never averaged", unreduced_loss),
        ("ENG-064", _ERROR, "a custom loss gives one number for all samples", scalar_custom_loss),
        (
            "RUN-009",
            _ERROR,
            "layers, optimizers or variables created on every call",
            creation_in_step,
        ),
        ("RUN-010", _ERROR, "a value per replica used as one number", per_replica_value),
    ),
    Family.SPEED: (
        (
            "DOC-401",
            _WARNING,
            "input pipeline without prefetch or parallel map",
            slow_input_pipeline,
        ),
        ("DOC-402", _WARNING, "a copy to the host in every step", host_read),
        ("DOC-403", _WARNING, "a tf.function traced again and again", retracing),
        ("DOC-404", _HINT, "tiny steps without steps_per_execution", short_steps),
        (
            "DOC-405",
            _WARNING,
            "operations that run on the CPU only, in every step",
            cpu_only_operation,
        ),
        ("DOC-407", _WARNING, "training steps run eagerly", eager_steps),
        ("DOC-408", _WARNING, "predict is called in a loop", predict_in_loop),
    ),
    Family.CHECKPOINTS: (
        ("DOC-501", _ERROR, "a file name under which nothing is saved", checkpoint_path),
        ("DOC-502", _WARNING, "the optimizer's state is not restored", partial_restore),
        ("DOC-503", _ERROR, "one worker alone saves or restores", chief_only_save),
    ),
}
RULES = tuple(
    Rule(code, family, severity, title, module.check, also=_ALSO.get(code, ()))
    for family, rows in _TABLE.items()
    for code, severity, title, module in rows
)


def all_rules() -> tuple[Rule, ...]:
    """Return all rules, in the order of families and codes."""
    return RULES
