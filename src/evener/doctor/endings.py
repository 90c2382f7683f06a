"""Rules on the program itself: it cannot be read, crashes, hangs, or ends before it trains."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from evener.doctor.facts import Outcome, Raised
from evener.doctor.finding import PAGES, Case, Severity, Violation, shown_seconds
from evener.doctor.names import canonical
from evener.doctor.sources import Location

# Between two steps there may be validation, a checkpoint, a new trace.
_STILL_SECONDS = 20.0
_STILL_STEPS = 50.0
_WRONG_USAGE = 2  # exit code of argparse and click
_MOST_LINES = 40

# Messages of TensorFlow, what they mean, and what to do. The first match is used. Where a rule is
# certain of the cause, its page says what it means.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"PerReplica",
        "",
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
        "",
        "move this line right after the import of TensorFlow.",
    ),
    (
        r"Memory growth cannot differ",
        "Memory growth must be the same on all visible GPUs.",
        "call tf.config.experimental.set_memory_growth(gpu, True) for every GPU.",
    ),
    (
        r"out of memory|OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED|MemoryError",
        "A device had not enough memory for what the step needs at once.",
        "make the batch smaller, train in micro-batches, or spread the model over more devices.",
    ),
    (
        r"No OpKernel was registered|Could not find (?:valid )?device for node"
        r"|no (?:registered |supported )?kernel|unknown device",
        "An operation has no kernel for the device or the dtype that it is asked for, or the "
        "device does not exist.",
        "take it out of tf.device, leave soft placement on, or use a dtype that has a kernel; "
        "`evener audit` names the kernels there are.",
    ),
    (
        r"tf\.function only supports singleton tf\.Variables|tf\.function-decorated function tried "
        r"to create variables",
        "",
        "make the model and the optimizer once, outside of the function; call "
        "optimizer.build(model.trainable_variables) before the first step.",
    ),
    (
        r"optimizer can only be called for the variables it was originally built with"
        r"|Unknown variable|optimizer cannot recognize variable",
        "The optimizer was built for other variables: those of another model, or before a layer "
        "was added or unfrozen.",
        "make an optimizer for each model, and a new one after the set of trainable variables "
        "has changed.",
    ),
    (
        r"No gradients provided for any variable",
        "",
        "compute outputs and loss of model(x) inside `with tf.GradientTape()`, by TensorFlow's "
        "functions alone.",
    ),
    (
        r"KerasTensor.*cannot be used|A KerasTensor is symbolic|symbolic Keras inputs",
        "A function of TensorFlow or NumPy is called on the inputs of a functional model, which "
        "have no values.",
        "use keras.ops, or put the function into a layer (keras.layers.Lambda, or its own class).",
    ),
    (
        r"Using a symbolic `?tf\.Tensor`? as a Python `?bool`?|numpy\(\) is only available when "
        r"eager|has no attribute 'numpy'|Cannot convert a symbolic tf\.Tensor",
        "A traced function asks for the value of a tensor, which it has only when it runs.",
        "keep to tensors (tf.cond, tf.print), or do it outside of the function.",
    ),
    (
        r"expected to be (?:a )?\S*(?:float|double|int|half|bfloat16|dtype)"
        r"|[Cc]annot convert .* to EagerTensor of dtype|has type \S+ that does not match type"
        r"|Tensor conversion requested dtype|cannot compute \w+ as input .* was expected to be"
        r"|expects? \S+ but (?:got|is) \S*(?:float|int|double)",
        "Two values of different dtypes meet, and TensorFlow converts none of them by itself.",
        "bring both to one dtype by tf.cast(value, other.dtype).",
    ),
    (
        r"Received a label value of .* which is outside the valid range",
        "",
        "count classes from 0, and end the model in one unit per class.",
    ),
    (
        r"is incompatible with the layer: expected axis",
        "A layer was built for another size than it is given: input_shape, or keras.Input, is not "
        "the shape of the data.",
        "give the shape of one sample there, which the message names, or resize the data.",
    ),
    (
        r"Incompatible shapes|Dimensions must be equal|Matrix size-incompatible"
        r"|must have the same size and shape|is incompatible with the layer|must have the same "
        r"shape|Shapes .* are incompatible|expected shape",
        "Two shapes do not fit each other. If it happens only under a strategy, or only at the "
        "end of an epoch, the batch does not divide by the devices.",
        "compare both shapes with the data; batch(..., drop_remainder=True) keeps all batches "
        "equal.",
    ),
    (
        r"outside of the scope|different distribution strateg|different strateg"
        r"|different tf\.distribute\.Strategy|created under|created in the scope"
        r"|inside \"with strategy\.scope",
        "What belongs together was made under different strategies.",
        "make the model, the optimizer and the metrics in one `with strategy.scope():`.",
    ),
    (
        r"FileNotFoundError|No such file or directory|NOT_FOUND|NotFoundError",
        "A file that the program reads is not there.",
        "correct the path, which is relative to the folder that the program is started in; or "
        "give the program's arguments, as it is started usually.",
    ),
    (
        r"ModuleNotFoundError|No module named",
        "A package that the program imports is not installed here.",
        "install it into this environment, or start the doctor in that of the program.",
    ),
    (
        r"cannot import name .* partially initialized|circular import",
        "Two modules import each other, and one of them is not complete yet.",
        "rename a file of yours that has the name of a library, or import later.",
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

_SUCCESSOR = re.compile(r"^\| `(\S+)` \| (.+) \|$", re.MULTILINE)


@functools.cache
def _successors() -> dict[str, str]:
    """Return what takes the place of names and members that are gone: the page of DOC-004."""
    page = (PAGES / "DOC-004.md").read_text(encoding="utf-8")
    return dict(_SUCCESSOR.findall(page))


def unreadable(case: Case) -> Iterator[Violation]:
    for unread in case.reading.unread:
        if unread.importer is None and not unread.is_text:
            yield case.violation(
                Location(path=unread.path, line=unread.line),
                f"the script cannot be read: {unread.reason}.",
                why=f"There is nothing to look at; the current folder is {Path.cwd()}.",
                fix="give the path of a Python file that is there.",
            )


def not_python(case: Case) -> Iterator[Violation]:
    for unread in case.reading.unread:
        if unread.importer is not None or unread.is_text:
            yield case.violation(
                Location(path=unread.path, line=unread.line),
                f"this is not Python: {unread.reason}.",
                "" if unread.importer is None else "imported at {}:{}".format(*unread.importer),
                fix="correct this line, or give the file of a Python script.",
            )


def hangs(case: Case) -> Iterator[Violation]:
    ending, steps = case.facts.ending, case.steps
    still = shown_seconds(ending.seconds if steps is None else ending.still_seconds)
    if ending.outcome is not Outcome.TIMED_OUT:
        return
    # Behind its steps it may predict or evaluate for long.
    if steps is not None and (
        ending.is_busy
        or ending.still_seconds <= max(_STILL_SECONDS, _STILL_STEPS * steps.step_seconds)
    ):
        return
    location = case.at(ending.where)
    made = [call.name for call in case.reading.named("tf.*") if call.location == location]
    severity = None
    if any("MultiWorker" in name for name in made):
        what = "this worker waits for the other workers of TF_CONFIG."
        why = "The strategy is not made before every worker of the cluster can be reached."
        fix = "start the same program once for each worker, each with its own task index, on the "
        fix += "machine of its address; or take TF_CONFIG out to train on this machine alone."
    elif ending.is_busy:
        what = f"no training step was over within {still}; the program was computing."
        why = "What it does before it trains takes longer than it was given."
        fix = "give it more time: --time-limit SECONDS, or less data."
        severity = Severity.HINT if case.facts.is_machine_busy else Severity.WARNING
    else:
        what = f"no training step was over within {still}."
        if steps is not None:
            what = f"after {steps.num_steps} steps nothing was trained for {still}."
        why = "It waits for something that does not come."
        fix = "look at what this line waits for: input, another worker, a lock, a download."
        if case.facts.is_machine_busy:
            why = "It waits for something that does not come, or for a busy machine."
            fix, severity = "give it more time (--time-limit SECONDS), or " + fix, Severity.HINT
    evidence = f"ran {shown_seconds(ending.seconds)}"
    yield case.violation(ending.where, what, evidence, why=why, fix=fix, severity=severity)


def crashed(case: Case) -> Iterator[Violation]:
    raised = case.facts.ending.raised
    if case.facts.ending.outcome is Outcome.CRASHED and raised is not None:
        why, fix = _explained(raised)
        lines = raised.message.strip().splitlines() or ["no message"]
        yield case.violation(
            raised.where,
            f"the program ended with {raised.kind}: {lines[0][:300]}",
            *lines[1:_MOST_LINES],
            f"code: {raised.code}" if raised.code else "",
            f"after {0 if case.steps is None else case.steps.num_steps} steps",
            why=why,
            fix=fix,
        )


def _explained(raised: Raised) -> tuple[str, str]:
    """Return what an exception means and what to do, in plain words."""
    text = f"{raised.kind}: {raised.message}"
    gone = successor_in(text)
    if gone is not None:
        return f"{gone[0]} is gone from this version of TensorFlow or Keras.", f"use {gone[1]}."
    for pattern, why, fix in _KNOWN:
        if re.search(pattern, text):
            return why, fix
    if raised.code:
        return "evener refuses this: another thing would be trained.", "follow its message."
    why = "The program ends there without the doctor too."
    return why, "correct the error that the message names."


def successor_in(text: str) -> tuple[str, str] | None:
    """Return the name that an error says is missing, and what takes its place.

    >>> successor_in("AttributeError: module 'tensorflow' has no attribute 'Session'")[0]
    'tf.Session'
    """
    missing = re.search(
        r"module '([\w.]+)' has no attribute '(\w+)'|cannot import name '(\w+)' from '([\w.]+)'"
        r"|No module named '([\w.]+)'",
        text,
    )
    if missing is not None:
        base, name, imported, package, module = missing.groups()
        dotted = module or f"{base or package}.{name or imported}"
        dotted = canonical(dotted.replace("._api.v2", "").replace(".api.", "."))
        new = _successor_of(dotted)
        if new is not None:
            return dotted, new
    member = re.search(
        r"(?:object has no attribute '|unexpected keyword argument '|not recognized: \{')(\w+)'",
        text,
    )
    if member is not None and member[1] in _successors():
        return member[1], _successors()[member[1]]
    return None


def _successor_of(name: str) -> str | None:
    """Return what takes the place of a name that is gone, None for one that is not known."""
    rows = _successors().items()
    return next((new for old, new in rows if "." in old and f"{name}.".startswith(f"{old}.")), None)


def ended_early(case: Case) -> Iterator[Violation]:
    ending, steps = case.facts.ending, case.steps
    is_exit = ending.outcome is Outcome.EXITED
    is_whole = steps is not None and not (is_exit and ending.exit_code)
    if is_whole or not (is_exit or ending.outcome is Outcome.FINISHED):
        return
    when = "before it trained" if steps is None else f"after {steps.num_steps} steps"
    said = ending.output_tail.strip().splitlines()
    if ending.exit_code == _WRONG_USAGE:
        fix = "give the arguments that the program needs, after the script's name."
    elif ending.exit_code:
        fix = "look at what it printed last, and at the line that it left from."
    else:
        fix = "give the script that trains, with the arguments that make it train; code under "
        fix += "`if __name__ == '__main__':` runs."
    yield case.violation(
        ending.where,
        f"the program left with exit code {ending.exit_code} {when}."
        if is_exit
        else f"the program came to its end {when}.",
        f"exit code {ending.exit_code}",
        f"it printed last: {said[-1][:200]}" if said else "",
        fix=fix,
        severity=Severity.ERROR if ending.exit_code else Severity.WARNING,
    )


def removed_names(case: Case) -> Iterator[Violation]:
    if case.has_trained:
        return
    is_old = any(case.reading.named("tf.Session", "tf.placeholder", "tf.InteractiveSession"))
    # TensorFlow's name of Keras has these still.
    kept = ("keras." if case.has_keras_2 else "", "compat.v1")
    if re.search(r"(tensorflow|tf)\.keras\.preprocessing", case.reading.text):
        kept = (*kept, "keras.preprocessing.")
    for call in case.reading.calls:
        name = call.name if call.name != "import" else str(call.constant(0, ""))
        kind = "" if call.owner is None else call.owner.kind
        new = _successor_of(name)
        if new is None and kind in ("model", "dataset", "strategy"):
            new = _successors().get(call.method)
        is_kept = any(each and each in name for each in kept)
        if new is not None and not is_kept and not call.context.catches and not call.context.guards:
            yield case.violation(
                call.location,
                f"{name} is gone from TensorFlow 2 and Keras 3.",
                why="This is a program for TensorFlow 1: it stops at the first such name. What "
                "else it does is examined all the same."
                if is_old
                else "The program stops here with AttributeError.",
                fix=f"use {new}; or tf.compat.v1 for all of it." if is_old else f"use {new}.",
            )
