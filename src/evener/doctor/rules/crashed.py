"""DOC-011: the program crashed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evener.doctor.queries.source_text import observed_location
from evener.doctor.rule import Case, Violation
from evener.doctor.watch import Outcome, Raised

_MOST_EVIDENCE = 600
# Messages of TensorFlow, what they mean, and what to do. The first match is used.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"PerReplica",
        "A value per replica was used as one tensor. What a distributed dataset yields and what "
        "strategy.run returns holds one value for each device.",
        "hand batches to a function by strategy.run(function, args=(batch,)), and make one of a "
        "result by strategy.reduce('SUM', result, axis=None).",
    ),
    (
        r"You must feed a value for placeholder",
        "A graph uses a tensor of another graph. Under tf.distribute this is how it ends when "
        "optimizer slots or variables are first made inside strategy.run, or when fit runs with "
        "steps_per_execution above 1 under MirroredStrategy.",
        "call optimizer.build(model.trainable_variables) in strategy.scope() before the first "
        "step, and leave out steps_per_execution.",
    ),
    (
        r"cannot be modified after being initialized",
        "Memory growth, logical and visible devices are fixed when TensorFlow starts its devices.",
        "move this line right after the import of TensorFlow.",
    ),
    (
        r"Memory growth cannot differ",
        "Memory growth must be the same on all visible GPUs.",
        "call tf.config.experimental.set_memory_growth(gpu, True) for every GPU.",
    ),
    (
        r"out of memory|OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED",
        "A device had not enough memory for what the step needs at once.",
        "make the batch smaller, train in micro-batches, or spread the model over more devices.",
    ),
    (
        r"No OpKernel was registered|Could not find (?:valid )?device for node"
        r"|no (?:registered |supported )?kernel",
        "An operation has no kernel for the device or the dtype that it is asked for.",
        "take it out of tf.device, leave soft placement on, or use a dtype that has a kernel; "
        "`evener audit` names the kernels there are.",
    ),
    (
        r"expected to be (?:a )?\S*(?:float|double|int|half|bfloat16|dtype)"
        r"|[Cc]annot convert .* to EagerTensor of dtype|has type \S+ that does not match type"
        r"|Tensor conversion requested dtype|expects? \S+ but (?:got|is) \S*(?:float|int|double)",
        "Two values of different dtypes meet, and TensorFlow converts none of them by itself.",
        "bring both to one dtype by tf.cast(value, other.dtype).",
    ),
    (
        r"Incompatible shapes|Dimensions must be equal|Matrix size-incompatible"
        r"|must have the same size and shape|is incompatible with the layer",
        "Two shapes do not fit each other. If it happens only under a strategy, or only at the "
        "end of an epoch, the batch does not divide by the devices.",
        "compare both shapes with the data; batch(..., drop_remainder=True) keeps all batches "
        "equal.",
    ),
    (
        r"outside of the scope|different distribution strateg|different strateg"
        r"|created under|created in the scope",
        "What belongs together was made under different strategies.",
        "make the model, the optimizer and the metrics in one `with strategy.scope():`.",
    ),
    (
        r"^SIG(?:SEGV|ABRT|BUS|FPE|ILL)",
        "Native code broke: a library, a driver, or a mismatch of their versions.",
        "look at the end of what the program printed, and at the versions of TensorFlow, CUDA "
        "and the driver: `evener devices` shows them.",
    ),
    (
        r"^SIGKILL",
        "Something ended it without a word. On most machines that is the system, when memory is "
        "short.",
        "look into the system's log for 'Out of memory'; smaller batches and a pipeline without "
        "cache() need less.",
    ),
)


def explained(raised: Raised) -> tuple[str, str]:
    """Return what an exception means and what to do, in plain words.

    >>> from evener.doctor.watch import Raised
    >>> explained(Raised(kind="ResourceExhaustedError", message="OOM when ...", where=None))[0]
    'A device had not enough memory for what the step needs at once.'
    """
    text = f"{raised.kind}: {raised.message}"
    for pattern, why, fix in _KNOWN:
        if re.search(pattern, text):
            return why, fix
    if raised.code:
        return (
            "evener refuses this, so that nothing else is trained than was meant.",
            "follow its message.",
        )
    return (
        "The program ends there without the doctor too.",
        "correct the error that the message names.",
    )


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    seen = case.observation
    if seen is None or seen.outcome is not Outcome.CRASHED or seen.raised is None:
        return
    raised = seen.raised
    why, fix = explained(raised)
    location = observed_location(case.program, raised.where)
    first = raised.message.strip().splitlines()[:1] or ["no message"]
    steps = 0 if seen.steps is None else seen.steps.num_steps
    yield Violation(
        location,
        f"the program ended with {raised.kind}: {first[0][:200]}",
        why=why,
        fix=fix,
        evidence=(
            location.text,
            f"{raised.kind}: {raised.message.strip()[:_MOST_EVIDENCE]}",
            f"code: {raised.code}" if raised.code else "",
            f"after {steps} steps",
        ),
    )
