"""Facts of a watched run: plain values that the watched process records and rules judge.

    watched process --records--> Facts --bytes--> doctor: rules, findings

A fact that cannot be had without guessing is absent: None, an empty tuple or an empty text.
Seconds and counts "per step" are medians over the steps that trace nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

T = TypeVar("T")
AT_IMPORT = (
    "TF_CPP_MIN_LOG_LEVEL TF_CPP_MAX_VLOG_LEVEL TF_ENABLE_ONEDNN_OPTS TF_DISABLE_MKL "
    "AUTOGRAPH_VERBOSITY TF_USE_LEGACY_KERAS TF_XLA_FLAGS XLA_FLAGS KERAS_BACKEND"
).split()
"""Environment variables that are read when TensorFlow or Keras is imported."""
AT_DEVICES = (
    "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER TF_FORCE_GPU_ALLOW_GROWTH TF_GPU_ALLOCATOR "
    "TF_GPU_THREAD_MODE TF_GPU_THREAD_COUNT TF_NUM_INTEROP_THREADS TF_NUM_INTRAOP_THREADS"
).split()
"""Environment variables that are read when devices are first asked for."""


class Outcome(enum.Enum):
    """End of a watched run."""

    ENOUGH = "enough"  # enough steps were seen, and the doctor ended it
    FINISHED = "finished"  # it came to its own end
    EXITED = "exited"  # it called sys.exit or os._exit
    CRASHED = "crashed"  # an exception, or a signal
    TIMED_OUT = "timed out"  # it reached the time limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """A line of user code."""

    file: str  # The absolute path
    line: int  # Line number, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception that ended the program."""

    kind: str  # Its class
    message: str  # Its whole text
    where: CodeLine | None  # Innermost line of user code
    code: str = ""  # The code, if it is one of evener's errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    outcome: Outcome  # How it ended
    seconds: float  # Duration of the run, imports included
    exit_code: int | None = None  # Exit code of the process; None if the doctor ended it
    raised: Raised | None = None  # Exception that ended it, if it crashed
    where: CodeLine | None = None  # The line it was at when it was ended, or exited
    still_seconds: float = 0.0  # From the last step to the end; without steps, of the whole run
    is_busy: bool = False  # Whether the process used a CPU in the last second before it was ended
    output_tail: str = ""  # End of its output


@dataclass(frozen=True, slots=True, kw_only=True)
class PinUse:
    """A `tf.device` block of the program."""

    device: str  # Device as the program writes it
    where: CodeLine  # Line of the block
    exists: bool | None = None  # Whether TensorFlow has such a device; None if that cannot be said
    trains: bool = False  # Whether steps are taken in it: a tape begins, or is asked there


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An environment variable that the program sets, or a call that configures TensorFlow."""

    name: str  # ``"CUDA_VISIBLE_DEVICES"``, ``"set_memory_growth"`` and others
    value: str  # Its value or arguments, as text
    where: CodeLine | None = None  # Line that sets it; None for the environment of the run
    is_late: bool = False  # Whether it came after it was read, so that it has no effect or fails
    read_at: CodeLine | None = None  # Line that read it: the import, or the first use of devices
    error: str = ""  # Text of the error that it raised, or empty


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyUse:
    kind: str  # Its class: ``"MirroredStrategy"``
    where: CodeLine | None  # Line that made it
    num_replicas: int  # Its replicas
    num_scopes: int = 0  # Times that its scope was entered
    num_runs: int = 0  # Calls of its `run`, eager or traced
    trained: bool = False  # Whether a step was trained under it: by `fit`, or in its `run`
    num_plain_batches: int = 0  # Calls of `run` with a batch that is not distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The training steps of one loop: of one call of `fit`, or of one line of a custom loop.

    A step's seconds are made of ``input`` + ``function`` + ``eager`` + ``read`` + ``callback`` +
    ``outside``; what is not known is in ``outside``.
    """

    # ``"fit"``, ``"function"`` (a traced function or `strategy.run`), ``"eager"`` (gradients
    # outside of functions), ``"graph loop"`` (a loop inside of a function), ``"train_on_batch"``.
    kind: str
    where: CodeLine | None  # The line that takes the step: ``fit``, or the call in a loop
    num_steps: int  # Number of all steps that were seen
    num_timed: int = 0  # Number of steps that trace nothing
    step_seconds: float = 0.0  # Duration of a step, from batch to batch
    input_seconds: float = 0.0  # Waiting for the next batch, per step
    eager_seconds: float = 0.0  # In operations that run eagerly, per step
    outside_seconds: float = 0.0  # Outside of TensorFlow, per step
    num_eager_operations: float = 0.0  # Operations that run eagerly, per step
    batch_sizes: tuple[int, ...] = ()  # Samples of the batches, each number once, in order
    steps_per_epoch: int | None = None  # Number of steps of an epoch, if it is known
    num_replicas: int = 1  # Replicas of its strategy; 1 without a strategy
    losses: tuple[float, ...] = ()  # Loss of each step, as far as it is known, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStage:
    """One transformation of an input pipeline."""

    # Name of the method: ``"from_tensor_slices"``, ``"map"``, ``"batch"``, ``"prefetch"``.
    kind: str
    where: CodeLine | None  # Line that calls it
    seconds: float | None = None  # Its own seconds per training step; None if not measured
    function: str = ""  # Name of its function, or empty
    calls_python: bool = False  # Whether it is a generator, or its function calls Python
    is_random: bool = False  # Whether its function draws random numbers
    draws_constants: bool = False  # Whether it draws them of a seed that is a constant
    num_shuffled: int = 0  # Of a zip, datasets that are shuffled each on its own, without a seed
    draws_numpy: bool = False  # Whether it drew numbers of `np.random` when it was traced
    reads_files: bool = False  # Whether its function reads or decodes files
    is_parallel: bool = False  # Whether it has `num_parallel_calls`
    # `buffer_size` of a shuffle or prefetch, `batch_size` of a batch, `count` of a repeat or take;
    # None otherwise. -1 for `AUTOTUNE` or endless.
    size: int | None = None
    num_elements: int | None = None  # Cardinality behind it; None if it is not known or endless
    element_bytes: int | None = None  # Bytes of one element behind it; None if not known
    reshuffles: bool | None = None  # `reshuffle_each_iteration` of a shuffle


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """Values of one part of a batch, over the batches that were examined."""

    shape: tuple[int, ...]  # Shape with the batch; -1 for a size that is not known
    min: float | None = None  # Least value; None if there is none
    max: float | None = None  # Greatest value
    mean: float | None = None  # Mean
    is_integral: bool = False  # Whether all values are whole numbers
    is_one_hot: bool = False  # Whether each row along the last axis is one 1 and zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Data that a loop draws batches from."""

    role: str  # ``"train"``, ``"validation"``, ``"predict"`` or ``"other"``
    kind: str  # ``"dataset"``, ``"arrays"`` (given to `fit`), ``"generator"`` or ``"other"``
    where: CodeLine | None  # Line that iterates over it, or that hands it to `fit`
    stages: tuple[DataStage, ...] = ()  # Transformations in order, the source first
    num_samples: int | None = None  # Samples of all; None if not known
    inputs: tuple[ValueRange, ...] = ()  # Values of the inputs, each part of its own
    is_shuffled: bool | None = None  # Whether samples are shuffled before they become batches
    labels_are_sorted: bool | None = None  # Whether labels of the examined batches are in order
    num_rows_of_training: int | None = None  # Rows that stand in the training data too
    num_rows_compared: int = 0  # Rows that were compared for it
    num_missing: int = 0  # Batches that an epoch of `fit` lacks, by its `steps_per_epoch`
    num_single_draws: int = 0  # Iterators that the program began over it and drew one batch of
    constant_bytes: int = 0  # Bytes of arrays that are constants of its graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A `tf.function` of the program: all that were made from the same lines."""

    name: str  # Its name
    where: CodeLine | None  # Line of its definition
    num_calls: int  # Number of calls
    num_traces: int  # Number of traces
    num_made: int = 1  # Number of functions made from the same lines
    # Cause of each trace after the first, in order: ``"shape"``, ``"dtype"``, ``"python value"``,
    # ``"structure"``, ``"object"`` (another object of Python), ``"new function"`` or
    # ``"variables"`` (made in the first trace).
    causes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()  # Arguments of the last traces, abbreviated
    seconds: float = 0.0  # Seconds of all traces
    constant_bytes: int = 0  # Bytes of constants in its last trace, of 1 KiB and more each
    largest_constant: tuple[int, ...] = ()  # Shape of the largest of them
    largest_where: CodeLine | None = None  # Line that made the largest
    draws_numpy: bool = False  # Whether it drew numbers of `np.random` when it was traced


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """A line that brings tensors to the host after the first step."""

    where: CodeLine  # The line
    num_reads: int  # Number of reads
    per_step: float  # Reads per step
    seconds: float  # Total waiting time


@dataclass(frozen=True, slots=True, kw_only=True)
class LossUse:
    """Calls of one loss from one line: a Keras loss, or one of `tf.nn`.

    Values are over all watched calls; None if they cannot be recorded, as where XLA compiles.
    """

    # Name of the function: ``"sparse_categorical_crossentropy"``, ``"binary_crossentropy"``,
    # ``"mean_squared_error"``, or the name of a custom one.
    name: str
    where: CodeLine | None  # Line of the call, or of `compile`
    from_logits: bool | None  # That of the loss; True for those of `tf.nn`; None if it has none
    # Activation that made the outputs: ``"softmax"``, ``"sigmoid"``, ``"relu"``, ``"linear"``;
    # empty if it is not known.
    activation: str = ""
    activation_before: str = ""  # That of its input, if one activation stands upon another
    outputs: ValueRange | None = None  # Values of the outputs of the model
    labels: ValueRange | None = None  # Values of the labels
    row_sum_min: float | None = None  # Least sum over the last axis of the outputs
    row_sum_max: float | None = None  # Greatest sum over the last axis of the outputs
    is_broadcast: bool = False  # Whether labels and outputs have different shapes
    padded_share: float = 0.0  # How much more often the last label is 0 than the first
    labels_are_sorted: bool = False  # Whether classes come one after the other, batch by batch
    has_mask: bool = False  # Whether the outputs have a Keras mask, and it is not used
    is_weighted: bool = False  # Whether Keras weighs its terms: by a mask, or by sample weights
    num_replicas: int = 1  # Replicas in whose context it was called
    is_reduced: bool = True  # Whether the call returns a scalar
    trains: bool = True  # Whether a gradient tape recorded it


@dataclass(frozen=True, slots=True, kw_only=True)
class InputUse:
    """Inputs of the first layer with weights of a model, in training or outside of it."""

    kind: str  # Its class
    where: CodeLine | None  # Line of the program that called it, or its model
    values: ValueRange  # Values over the first calls
    layer: str = ""  # Name of the layer
    trains: bool = True  # Whether it was called in training steps
    is_repeated: bool = False  # Whether each of its first calls was given the same


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableUse:
    """A variable of a model that trains, or one that gradients were asked for."""

    name: str  # Its path: ``"dense/kernel"``
    shape: tuple[int, ...]  # Its shape
    dtype: str  # Its dtype
    trainable: bool  # Whether it is trainable
    num_gradients: int = 0  # Gradients that were asked for it (traces, in functions)
    num_none: int = 0  # How many of them are None
    num_applied: int = 0  # Times that an optimizer was given it with a gradient
    num_swapped: int = 0  # Of these, with the gradient of another variable
    num_negated: int = 0  # Of these, with minus its gradient
    num_optimizers: int = 0  # Number of optimizers that were given it with a gradient
    gradient_norms: tuple[float, ...] = ()  # Norms of its gradients, by step
    update_norms: tuple[float, ...] = ()  # Norms of its changes, by step
    norm: float | None = None  # Norm of the variable at the end
    first_norm: float | None = None  # Norm of a matrix before the first step
    began_constant: bool = False  # Whether all values of a matrix were the same then
    was_set_back: bool = False  # Whether it was brought back to where it began while training
    in_model: bool = True  # Whether a model that trains lists it
    has_nan: bool = False  # Whether it holds NaN or infinity at the end
    where: CodeLine | None = None  # Line of the `gradient` call, or of `fit`


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientUse:
    """A line that asks a tape for gradients."""

    where: CodeLine | None  # The line
    num_sources: int  # Variables or tensors that gradients are asked for
    num_none: int = 0  # Gradients that are None
    num_not_watched: int = 0  # Of them, variables that the tape did not watch
    num_replicas: int = 1  # Replicas in whose context it is
    # Value of the target, over the mean loss of its samples in this replica: about 1 / replicas if
    # it is scaled by the global batch. None if it is not known.
    loss_ratio: float | None = None
    is_negated: bool = False  # Whether the target is minus an error, which steps make greater
    is_plain_mean: bool = False  # Whether that is one number in all steps: no weights, no mask
    draws_constants: bool = False  # Whether its graph draws random numbers of a constant seed
    draws_numpy: bool = False  # Whether its trace drew numbers of `np.random`


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerUse:
    """The optimizers that one line made."""

    kind: str  # The class: ``"Adam"``
    where: CodeLine | None  # Line that made it, or of `compile` for one that is given by its name
    num_made: int = 1  # Number of optimizers that this line made
    num_made_in_steps: int = 0  # Of them, after the first step
    num_applied: int = 0  # Updates: of traces, in functions
    learning_rate: float | None = None  # At the end; None if it is not known
    first_rate: float | None = None  # Where it was made
    rate_changes: bool = False  # Whether a schedule gives the rate, or it was set meanwhile
    has_loss_scale: bool = False  # Whether it scales the loss
    clips: bool = False  # Whether it clips gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """The models that one line made."""

    kind: str  # The class: ``"Sequential"``
    where: CodeLine | None  # Line that made it
    num_made: int = 1  # Number of models that this line made
    num_made_in_steps: int = 0  # Of them, after the first step
    num_cleared: int = 0  # Calls of `clear_session` between them
    num_trained: int = 0  # How many of them were trained
    num_parameters: int = 0  # Parameters of the last
    trains: bool = False  # Whether it was trained in the run
    made_in_scope: bool = False  # Whether it was made in the scope of a strategy
    policy: str = "float32"  # Name of the dtype policy
    run_eagerly: bool = False  # Whether `fit` runs it eagerly
    activations: tuple[str, ...] = ()  # Activations of the last layers, the last last
    loss: str = ""  # Loss of `compile`: its class or name, with `from_logits` if that is True
    metrics: tuple[str, ...] = ()  # Metrics of `compile`: classes or names
    hidden_metrics: tuple[str, ...] = ()  # Attributes that its `metrics` leaves out
    layers: tuple[str, ...] = ()  # Classes of its layers, nested ones included


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMade:
    """The layers that one line made while a layer or model was called."""

    kind: str  # The class
    where: CodeLine | None  # The line
    num_made: int  # Number of layers that it made
    num_weights: int  # Weights of the last


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFlag:
    """Calls of a layer that behaves otherwise in training, such as Dropout."""

    layer: str  # Its name
    kind: str  # Its class
    training: bool | None  # The flag as it arrives; None if none is given or it is a tensor
    is_recorded: bool  # Whether a gradient tape recorded the call: it is part of a training step
    where: CodeLine | None = None  # Line of the program that called it, or its model
    trainable: bool = True  # Whether the layer is trainable


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricUse:
    """A metric that the program updates: in a custom loop, or in a step of its own."""

    name: str  # Its name
    kind: str = ""  # Its class
    where: CodeLine | None  # Line that updates it
    label_shape: tuple[int, ...] = ()  # Shape of the labels that it is given
    output_shape: tuple[int, ...] = ()  # Shape of the outputs
    # Whether they are what a loss takes for logits; None if no loss is given these outputs.
    takes_logits: bool | None = None
    num_updates: int = 0  # Updates: of traces, in functions
    num_resets: int = 0  # Resets
    num_epochs: int = 0  # Epochs of the loop that began


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUse:
    """Calls of one kind from one line."""

    kind: str  # Name of the method, ``"checkpoint"``, ``"set_seed"`` or ``"callback NAME"``
    where: CodeLine | None  # The line
    num_calls: int  # Number of calls
    num_after_first_step: int = 0  # Of them, after the first step
    per_step: float = 0.0  # Calls per step after the first step
    seconds: float = 0.0  # Total seconds after the first step
    detail: str = ""  # Further text: an argument that matters; steps of a validation of fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory that is kept from step to step."""

    tensors_per_step: float = 0.0  # Tensors that live on after each step
    bytes_per_step: float = 0.0  # Their bytes
    holder: str = ""  # What holds them, as the program names it: ``"losses"``, ``"self.history"``
    where: CodeLine | None = None  # Line of the program that made the last of them


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Predicted memory of the first training step on one device, by kind."""

    batch_size: int  # Samples of the batch
    samples: int  # Samples per device
    weights: int  # Bytes of weights
    optimizer_state: int  # Bytes of optimizer state
    gradients: int  # Bytes of gradients
    activations: int  # Bytes of activations and inputs
    workspace: int  # Bytes of temporary tensors
    total: int  # All bytes
    usable: int | None = None  # Usable bytes of the smallest card; None if none is known
    largest_batch: int = 0  # Largest global batch that fits it; 0 if none does


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """First place of NaN or infinity."""

    # ``"inputs"``, ``"labels"``, ``"outputs"``, ``"loss"``, ``"gradient"`` or ``"variable"``.
    what: str
    name: str = ""  # Name of the layer or variable, or empty
    step: int | None = None  # Index of the step; None if it is not known
    where: CodeLine | None = None  # The line


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    ending: Ending  # End of the run
    steps: tuple[Steps, ...] = ()  # Loops that trained, in the order of their first steps
    pins: tuple[PinUse, ...] = ()  # `tf.device` blocks of the program
    settings: tuple[Setting, ...] = ()  # Variables and settings that matter to TensorFlow
    strategies: tuple[StrategyUse, ...] = ()  # Strategies that the program made
    pipelines: tuple[Pipeline, ...] = ()  # Data that loops draw from
    traced: tuple[Traced, ...] = ()  # The program's `tf.function`s
    host_reads: tuple[HostRead, ...] = ()  # Lines that bring tensors to the host, the longest first
    losses: tuple[LossUse, ...] = ()  # Uses of losses
    inputs: tuple[InputUse, ...] = ()  # What models are given
    gradients: tuple[GradientUse, ...] = ()  # Lines that ask for gradients
    variables: tuple[VariableUse, ...] = ()  # Variables that train or should
    optimizers: tuple[OptimizerUse, ...] = ()  # Optimizers
    models: tuple[ModelUse, ...] = ()  # Models
    layers_in_calls: tuple[LayerMade, ...] = ()  # Layers that calls of layers make
    layer_flags: tuple[LayerFlag, ...] = ()  # Calls of layers that behave otherwise in training
    metrics: tuple[MetricUse, ...] = ()  # Metrics of custom loops
    calls: tuple[CallUse, ...] = ()  # Other calls
    growth: Growth | None = None  # What is kept; None if fewer than five steps were seen
    memory: StepMemory | None = None  # Predicted memory; None if it is not known
    memory_unknown: str = ""  # Reason for which it is not known, if it was asked for
    not_finite: NotFinite | None = None  # Where NaN came first; None if nowhere
    is_machine_busy: bool = False  # Whether other processes make measured seconds too long
    missed: tuple[str, ...] = ()  # What could not be watched, with the reasons
    notes: tuple[str, ...] = ()  # Notes about the run, such as answers given in place of TensorFlow

    @property
    def main_steps(self) -> Steps | None:
        """The loop with the most steps; None if nothing trained."""
        return max(self.steps, key=lambda steps: steps.num_steps, default=None)


def use_of(kind: type[T], seen: object, /, **given: Any) -> T:
    """Return a record of what was counted: its attributes of the same names, and what is given."""
    names = {each.name for each in fields(cast("Any", kind))} - given.keys()
    return kind(**{name: getattr(seen, name) for name in names if hasattr(seen, name)}, **given)


def to_bytes(record: object) -> bytes:
    """Return a record as bytes; NaN is kept, and numbers of NumPy are Python's."""
    import msgspec  # only where facts are written or read: its import takes milliseconds

    return msgspec.msgpack.encode(record, enc_hook=lambda value: value.item())


def from_bytes(kind: type[T], written: bytes) -> T:
    """Return the record of a class that `to_bytes` has written.

    >>> from_bytes(CodeLine, to_bytes(CodeLine(file="/a.py", line=3)))
    CodeLine(file='/a.py', line=3)
    """
    import msgspec

    return msgspec.msgpack.decode(written, type=kind)
