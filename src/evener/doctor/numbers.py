"""Rules on numbers: what makes training silently wrong, or end in NaN."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence

from evener.doctor.facts import CodeLine, LossUse, Pipeline, ValueRange, VariableUse
from evener.doctor.finding import Case, Severity, Violation

_ENTROPIES = (
    "categorical_crossentropy",
    "sparse_categorical_crossentropy",
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_focal_crossentropy",
)
_REGRESSION = (
    "mean_squared_error",
    "mean_absolute_error",
    "mean_squared_logarithmic_error",
    "huber",
    "log_cosh",
    "difference",
)
_NEAR = 0.02  # sums of probabilities
# Layers that bring inputs to a usual size.
_SCALING = ("Rescaling", "Normalization", "Lambda")
_MIN_STEPS = 3


def _is(loss: LossUse, *names: str) -> bool:
    return loss.name in names


def _losses(case: Case) -> Iterator[LossUse]:
    """Yield the uses of losses in training steps."""
    yield from (loss for loss in case.facts.losses if loss.trains)


def _span(values: ValueRange) -> str:
    return f"{_number(values.min)} to {_number(values.max)}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def _call(loss: LossUse) -> str:
    known = "" if loss.from_logits is None else f", from_logits={loss.from_logits}"
    return f"loss: {loss.name}{known}"


def _leaves(values: ValueRange | None, low: float, high: float) -> bool:
    """Return whether values are known, and not all between two bounds."""
    if values is None or values.min is None or values.max is None:
        return False
    margin = 1e-3 * max(1.0, high - low)
    return values.min < low - margin or values.max > high + margin


def logits_as_probabilities(case: Case) -> Iterator[Violation]:
    """Yield losses that expect probabilities and are given logits."""
    for loss in _losses(case):
        if not _is(loss, *_ENTROPIES) or loss.from_logits is not False:
            continue
        no_probability = _leaves(loss.outputs, 0, 1)
        if not no_probability and loss.activation not in ("linear", "relu", "tanh"):
            continue
        # Some layer behind the last activation may still bring the outputs into range.
        is_known = loss.outputs is not None and loss.outputs.max is not None
        if not no_probability and is_known and loss.activation != "relu":
            continue
        seen = () if loss.outputs is None else (f"outputs seen: {_span(loss.outputs)}",)
        act = f"outputs of a {loss.activation} activation" if loss.activation else "its outputs"
        yield Violation(
            case.at(loss.where),
            f"{loss.name} expects probabilities, and gets {act} that are none.",
            fix=f"give the loss from_logits=True, or end the model in "
            f"{'sigmoid' if 'binary' in loss.name else 'softmax'}.",
            evidence=(*seen, _call(loss)),
        )


def probabilities_as_logits(case: Case) -> Iterator[Violation]:
    """Yield losses that expect logits and are given probabilities."""
    for loss in _losses(case):
        if loss.from_logits is not True:
            continue
        sums = (loss.row_sum_min, loss.row_sum_max)
        width = loss.outputs.shape[-1] if loss.outputs is not None and loss.outputs.shape else 0
        are_distributions = (
            width > 1
            and not _leaves(loss.outputs, 0, 1)
            and all(each is not None and abs(each - 1) < 1e-3 for each in sums)
        )
        if loss.activation not in ("softmax", "sigmoid") and not are_distributions:
            continue
        seen = () if loss.outputs is None else (f"outputs seen: {_span(loss.outputs)}",)
        if are_distributions:
            seen = (*seen, "each row sums to 1")
        last = loss.activation or "softmax"
        yield Violation(
            case.at(loss.where),
            f"the loss applies its own activation to outputs that have gone through {last} "
            "already.",
            fix=f"take {last} off the last layer, or from_logits=True off the loss.",
            evidence=(*seen, _call(loss)),
        )


def double_activation(case: Case) -> Iterator[Violation]:
    """Yield models that end in softmax or sigmoid twice."""
    for loss in _losses(case):
        twice = (loss.activation_before, loss.activation)
        if set(twice) <= {"softmax", "sigmoid"} and ("softmax" == twice[0] or len(set(twice)) == 1):
            yield _double(case, loss.where, *twice)
            return
    for model in case.facts.models:
        last = model.activations[-2:]
        if model.trains and len(last) == 2 and set(last) <= {"softmax", "sigmoid"}:
            if last[0] == "softmax" or last[0] == last[1]:
                yield _double(case, model.where, *last)


def _double(case: Case, where: CodeLine | None, first: str, second: str) -> Violation:
    return Violation(
        case.at(where),
        f"the model ends in {first} and then {second}.",
        why="The second squeezes probabilities once more: the classes come out nearly alike, and "
        "the model cannot become sure.",
        fix="keep one of them, the last.",
        evidence=(f"last activations: {first}, {second}",),
    )


def softmax_of_one(case: Case) -> Iterator[Violation]:
    """Yield softmax over a single unit, which is always 1."""
    for loss in _losses(case):
        if loss.activation == "softmax" and loss.outputs and loss.outputs.shape[-1:] == (1,):
            yield Violation(
                case.at(loss.where),
                "softmax over one unit is always 1: the model predicts a constant.",
                why="softmax divides by the sum over the last axis, which is the unit itself. No "
                "gradient passes.",
                fix="end in one unit with sigmoid and binary_crossentropy, or in one unit per "
                "class.",
                evidence=(f"outputs: shape {loss.outputs.shape}, {_span(loss.outputs)}",),
            )


def softmax_axis(case: Case) -> Iterator[Violation]:
    """Yield softmax and categorical losses whose rows are no distributions."""
    for loss in _losses(case):
        if not _is(loss, *_ENTROPIES) or "binary" in loss.name or loss.from_logits is True:
            continue
        sums = (loss.row_sum_min, loss.row_sum_max)
        if loss.outputs is None or loss.outputs.shape[-1:] == (1,) or None in sums:
            continue
        if _leaves(loss.outputs, 0, 1) or all(abs((each or 0) - 1) < _NEAR for each in sums):
            continue
        seen = f"sums over the last axis: {_number(sums[0])} to {_number(sums[1])}"
        is_sigmoid = loss.activation == "sigmoid"
        yield Violation(
            case.at(loss.where),
            f"the outputs given to {loss.name} do not sum to 1 over the classes.",
            why="sigmoid gives each class a probability of its own; this loss compares "
            "distributions over the classes, and divides by their sum."
            if is_sigmoid
            else "The classes are on the last axis; the activation works along another one, or is "
            "none that gives a distribution.",
            fix="end in softmax, or use binary_crossentropy for several labels per sample."
            if is_sigmoid
            else "apply softmax with axis=-1.",
            evidence=(seen, _call(loss), f"activation: {loss.activation or 'not known'}"),
        )


def labels_and_classes(case: Case) -> Iterator[Violation]:
    """Yield labels that are outside of the classes, or of the form of another loss."""
    are_raw = any((each.values.max or 0) >= 128 for each in case.facts.inputs)
    for loss in _losses(case):
        labels, outputs = loss.labels, loss.outputs
        if labels is None or outputs is None or not outputs.shape:
            continue
        classes = outputs.shape[-1]
        seen = (
            f"labels: shape {labels.shape}, {_span(labels)}",
            f"outputs: shape {outputs.shape}",
            _call(loss),
        )
        if "sparse_" in loss.name:
            if labels.is_one_hot and labels.shape[-1:] == (classes,) and classes > 1:
                yield _labels(
                    case,
                    loss,
                    "one-hot labels are given to a loss for class numbers",
                    "use categorical_crossentropy, or give tf.argmax(y, -1).",
                    seen,
                )
            elif (
                labels.max is not None
                and labels.min is not None
                and classes > 0
                and (labels.max >= classes or labels.min < 0)
            ):
                worst = labels.max if labels.max >= classes else labels.min
                yield _labels(
                    case,
                    loss,
                    f"label {worst:g} is none of the {classes} classes of the model, "
                    f"which are 0 to {classes - 1}",
                    _classes_fix(labels, classes),
                    seen,
                )
        elif are_raw and len(labels.shape) >= 4 and (labels.max or 0) >= 128:
            continue  # The images are the labels too: told of the inputs.
        elif "binary" in loss.name and _leaves(labels, 0, 1):
            yield _labels(
                case,
                loss,
                f"labels of {_span(labels)} are given to {loss.name}",
                "bring them to 0 and 1, such as (y + 1) / 2 for -1 and 1.",
                seen,
            )
        elif (
            "categorical" in loss.name
            and labels.is_integral
            and not labels.is_one_hot
            and (_leaves(labels, 0, 1) or labels.shape[-1:] == (1,) != outputs.shape[-1:])
        ):
            yield _labels(
                case,
                loss,
                "class numbers are given to a loss for one-hot labels",
                f"use sparse_categorical_crossentropy, or tf.one_hot(y, {classes}).",
                seen,
            )


def _classes_fix(labels: ValueRange, classes: int) -> str:
    if labels.min == 1 and labels.max == classes:
        return "count classes from 0: y - 1."
    top = 0 if labels.max is None else int(labels.max) + 1
    return f"end the model in {max(top, classes)} units, or correct the labels."


def _labels(case: Case, loss: LossUse, what: str, fix: str, evidence: tuple[str, ...]) -> Violation:
    return Violation(
        case.at(loss.where),
        f"{what}.",
        fix=fix,
        evidence=evidence,
    )


def broadcast_labels(case: Case) -> Iterator[Violation]:
    """Yield labels and outputs whose shapes differ and are broadcast."""
    for loss in _losses(case):
        if loss.is_broadcast and loss.labels is not None and loss.outputs is not None:
            labels, outputs = loss.labels.shape, loss.outputs.shape
            yield Violation(
                case.at(loss.where),
                f"labels of shape {labels} and outputs of shape {outputs} are broadcast against "
                "each other.",
                fix="give both one shape: tf.squeeze(outputs, -1), or y[:, None].",
                evidence=(_call(loss),),
            )


def unreachable_labels(case: Case) -> Iterator[Violation]:
    """Yield activations whose range does not hold the labels."""
    ranges = {
        "sigmoid": (0.0, 1.0),
        "softmax": (0.0, 1.0),
        "tanh": (-1.0, 1.0),
        "relu": (0.0, float("inf")),
    }
    for loss in _losses(case):
        if loss.activation == "relu" and loss.from_logits:
            yield Violation(
                case.at(loss.where),
                "the last activation, relu, leaves no logit below 0.",
                why="Where a unit gives 0 it has no gradient, and no class can be told from it.",
                fix="end in a layer without activation.",
                evidence=(_call(loss),),
            )
        if loss.activation not in ranges or not _is(loss, *_REGRESSION) or loss.labels is None:
            continue
        low, high = ranges[loss.activation]
        least, most = loss.labels.min, loss.labels.max
        if least is None or most is None:
            continue
        if least >= low - 0.05 and most <= high + 0.05:
            continue
        yield Violation(
            case.at(loss.where),
            f"the last activation, {loss.activation}, gives {low:g} to {high:g}, and labels are "
            f"{_span(loss.labels)}.",
            fix="end in a layer without activation, or scale the labels into the range.",
            evidence=(_call(loss), f"labels: mean {_number(loss.labels.mean)}"),
        )


def ignored_mask(case: Case) -> Iterator[Violation]:
    """Yield losses that count padded positions."""
    is_plain_mean = any("CrossEntropy" in each.made_of for each in case.facts.gradients)
    for loss in _losses(case):
        if loss.padded_share > 0.3 and is_plain_mean:
            yield Violation(
                case.at(loss.where),
                f"{loss.padded_share:.0%} of the sequences end in padding (0), and the loss counts "
                "each position alike: padding is learned too.",
                fix="multiply the loss of each position by tf.cast(labels != 0, loss.dtype), and "
                "divide by the sum of that mask.",
                evidence=(_call(loss),),
            )
        # A loss for each position may be weighted by the mask behind it.
        if loss.has_mask and loss.is_reduced:
            yield Violation(
                case.at(loss.where),
                "the outputs have a mask, and the loss does not use it: padding is learned too.",
                fix="multiply the loss of each position by the mask, and divide by its sum; "
                "model.compile(loss=...) does so by itself.",
                evidence=(_call(loss),),
            )


# ---- gradients and variables


def _names(variables: Sequence[VariableUse], most: int = 3) -> str:
    shown = ", ".join(each.name for each in variables[:most])
    more = len(variables) - most
    return f"{shown} and {more} more" if more > 0 else shown


def no_gradient(case: Case) -> Iterator[Violation]:
    """Yield trainable variables for which no gradient exists."""
    asked = [each for each in case.facts.variables if each.num_gradients and each.trainable]
    lost = [each for each in asked if each.num_none == each.num_gradients]
    if not lost:
        return
    where = next((each.where for each in lost if each.where is not None), None)
    lines = [each for each in case.facts.gradients if each.num_none]
    unwatched = sum(each.num_not_watched for each in lines)
    cause = (
        "The tape did not watch them: the forward pass ran before or outside of the tape, or they "
        "are no variables."
        if unwatched
        else "The loss is not computed from them by operations with a gradient: NumPy, a cast to "
        "an integer, argmax, round, a comparison or a new tensor cuts the path."
    )
    yield Violation(
        case.at(where),
        f"the loss has no gradient for {len(lost)} of {len(asked)} variables: {_names(lost)}.",
        why=f"{cause} They keep their first values.",
        fix="compute the outputs and the loss of model(x) inside `with tf.GradientTape()`, by "
        "TensorFlow's functions alone; or leave these variables out.",
        evidence=tuple(
            f"{_line(case, each.where)}: {each.num_none} of {each.num_sources} gradients are None"
            for each in lines[:3]
        ),
        severity=None if len(lost) == len(asked) or unwatched else Severity.WARNING,
    )


def _line(case: Case, where: CodeLine | None) -> str:
    if where is None:
        return "a step"
    location = case.at(where)
    return f"line {location.line} ({location.text})"


def _trained(case: Case) -> bool:
    steps = case.steps
    return steps is not None and steps.num_steps >= _MIN_STEPS


def not_updated(case: Case) -> Iterator[Violation]:
    """Yield trainable variables that no optimizer is given."""
    if not _trained(case):
        return
    mine = [each for each in case.facts.variables if each.trainable and each.in_model]
    # Those without a gradient are told by another rule, those that are assigned are no mistake.
    left = [
        each
        for each in mine
        if not each.num_applied
        and not any(each.update_norms)
        and not (each.num_gradients and each.num_none == each.num_gradients)
    ]
    if not left:
        return
    asked = [each for each in left if each.num_gradients]
    places = (*asked, *left, *case.facts.gradients, *case.facts.steps)
    where = next((each.where for each in places if each.where is not None), None)
    # Who trains one variable of a layer and not another has chosen them, as adapters are.
    taught = {each.name.rpartition("/")[0] for each in mine if each.num_applied}
    is_chosen = all(each.name.rpartition("/")[0] in taught for each in left)
    yield Violation(
        case.at(where),
        f"{len(left)} of {len(mine)} trainable variables are never updated: {_names(left)}.",
        why="Their gradients are computed and not applied."
        if asked
        else "No gradient is asked for them, so that they keep their first values.",
        fix="give apply_gradients the variables that the gradients were computed for: "
        "zip(gradients, model.trainable_variables); set trainable = False on what is to stay.",
        severity=Severity.ERROR
        if asked or len(left) == len(mine)
        else Severity.HINT
        if is_chosen
        else Severity.WARNING,
    )


def trained_twice(case: Case) -> Iterator[Violation]:
    """Yield variables that several optimizers update in one loop."""
    # Several trainings, one after the other, may have an optimizer each.
    if len(case.facts.steps) != 1:
        return
    if any(each.num_made_in_steps for each in case.facts.optimizers):
        return
    found = [each for each in case.facts.variables if each.num_optimizers >= 2]
    if found:
        yield Violation(
            case.at(found[0].where),
            f"{found[0].num_optimizers} optimizers update the same variables: {_names(found)}.",
            fix="give each apply_gradients the variables of its own model alone.",
            evidence=(f"{len(found)} variables are given to several optimizers",),
        )


def gradients_of_others(case: Case) -> Iterator[Violation]:
    """Yield variables that are updated by gradients of other variables."""
    if not _trained(case) or case.steps is None or case.steps.kind == "fit":
        return
    known = case.facts.variables
    given = [each for each in known if each.num_applied and not each.num_gradients]
    asked = [each for each in known if each.num_gradients and not each.num_applied]
    if given and asked and {each.shape for each in given} & {each.shape for each in asked}:
        yield Violation(
            case.at(given[0].where or asked[0].where),
            f"gradients of {_names(asked)} are applied to {_names(given)}.",
            why="The lists of gradients and of variables do not belong together: each variable is "
            "moved by the gradient of another one of its shape.",
            fix="take one list for both: tape.gradient(loss, variables) and "
            "apply_gradients(zip(gradients, variables)).",
        )


def frozen_and_trained(case: Case) -> Iterator[Violation]:
    """Yield variables that are not trainable and are trained."""
    # What one training trained, the next may freeze.
    if len(case.facts.steps) != 1:
        return
    found = [each for each in case.facts.variables if not each.trainable and each.num_applied]
    if found:
        yield Violation(
            case.at(found[0].where),
            f"variables that are not trainable are trained: {_names(found)}.",
            fix="freeze before the list is made (and before compile), and give the optimizer "
            "model.trainable_variables.",
            evidence=(f"{len(found)} variables with trainable=False are in apply_gradients",),
        )


def outside_of_model(case: Case) -> Iterator[Violation]:
    """Yield variables that a loss depends on and no model lists."""
    if case.steps is None or case.steps.kind != "fit":
        return
    found = [
        each
        for each in case.facts.variables
        if not each.in_model and each.trainable and not each.num_applied
    ]
    if found:
        yield Violation(
            case.at(found[0].made_in or found[0].where),
            f"fit does not train {_names(found)}: no layer has it as a weight.",
            fix="create it by self.add_weight(...) in the layer.",
        )


def nothing_to_train(case: Case) -> Iterator[Violation]:
    """Yield models that are trained without trainable parameters."""
    # What was trained may be frozen afterwards.
    if any(each.num_applied for each in case.facts.variables):
        return
    for model in case.facts.models:
        if model.trains and model.num_parameters and not model.num_trainable:
            yield Violation(
                case.at(model.where),
                f"the model has {model.num_parameters:,} parameters, and none is trainable.",
                fix="leave a layer trainable, such as a new Dense layer behind the frozen part.",
            )


def not_finite(case: Case) -> Iterator[Violation]:
    """Yield the first NaN or infinity."""
    first = case.facts.not_finite
    if first is None:
        return
    # NaN in a step is NaN in the weights of the next.
    known = [each for each in case.facts.variables if each.num_applied]
    if any(each.norm for each in known) and not any(each.has_nan for each in known):
        return
    name = f" of {first.name}" if first.name else ""
    when = "" if first.step is None else f" in step {first.step + 1}"
    fixes = {
        "inputs": "clean the data: np.nan_to_num, or drop these rows.",
        "labels": "clean the labels, or drop these rows.",
        "outputs": "look at this layer: a division by 0, log or sqrt of 0, or weights that grew.",
        "gradient": "look for sqrt, norm, log or a division at 0 in the loss: tf.where does not "
        "shield the gradient; add a small number inside. Or clip: clipnorm=1.0.",
    }
    rates = _rates(case)
    yield Violation(
        case.at(first.where),
        f"{first.what}{name} are not finite first{when}."
        if first.what in ("inputs", "labels", "outputs")
        else f"the {first.what}{name} is NaN or infinite first{when}.",
        fix=fixes.get(
            first.what,
            "make the learning rate smaller, clip gradients (clipnorm=1.0), and add a small "
            "number inside of log, sqrt and divisions.",
        ),
        evidence=(*_loss_line(case), *rates),
    )


def _rates(case: Case) -> tuple[str, ...]:
    return tuple(
        f"{each.kind}, learning rate {each.learning_rate:g}"
        for each in case.facts.optimizers[:2]
        if each.learning_rate is not None
    )


def _loss_line(case: Case) -> tuple[str, ...]:
    steps = case.steps
    if steps is None or not steps.losses:
        return ()
    shown = [f"{each:.4g}" for each in steps.losses]
    return (
        f"losses: {', '.join(shown[:3])} ... {shown[-1]}"
        if len(shown) > 4
        else f"losses: {', '.join(shown)}",
    )


def learning_rate(case: Case) -> Iterator[Violation]:
    """Yield learning rates under which nothing is learned, or all is lost."""
    facts, steps = case.facts, case.steps
    if steps is None or not _trained(case) or facts.not_finite is not None:
        return
    for optimizer in facts.optimizers:
        rate = optimizer.learning_rate
        if rate is None or not optimizer.num_applied:
            continue
        evidence = (*_rates(case), *_loss_line(case))
        changes = _relative_updates(facts.variables)
        if rate <= 0:
            yield Violation(
                case.at(optimizer.where),
                f"the learning rate is {rate:g}: no variable changes."
                if rate == 0
                else f"the learning rate is {rate:g}: steps go uphill.",
                why="Each update is the gradient times the learning rate.",
                fix="give a learning rate such as 1e-3 (Adam) or 1e-2 (SGD); look at what a "
                "schedule gives in the first steps.",
                evidence=evidence,
            )
        elif _diverges(steps.losses) or (
            changes is not None and changes > 0.5 and not _falls(steps.losses)
        ):
            yield Violation(
                case.at(optimizer.where),
                f"the loss does not fall, and a step changes the weights much: the learning rate "
                f"{rate:g} is too high.",
                why="Each step jumps over the minimum.",
                fix=f"try {rate / 100:g}, and a warm-up.",
                evidence=(*evidence, *_changes(changes)),
                severity=Severity.ERROR if _diverges(steps.losses) else Severity.WARNING,
            )
        elif (
            changes is not None
            and (0 < changes < 1e-6 or rate <= 1e-6)  # Without gradients it is not the rate.
            and not (optimizer.rate_changes)
        ):
            yield Violation(
                case.at(optimizer.where),
                f"a step changes the weights by {changes:.1e} of their size: the learning rate "
                f"{rate:g} is too low.",
                why="At this pace the weights stay what they were made.",
                fix="1e-3 is usual for Adam, 1e-2 for SGD.",
                evidence=evidence,
                severity=Severity.WARNING,
            )


def _changes(changes: float | None) -> tuple[str, ...]:
    return () if changes is None else (f"a step changes the weights by {changes:.0%}",)


def _relative_updates(variables: Sequence[VariableUse]) -> float | None:
    """Return the median change of a step relative to the norms of the variables."""
    found = [
        statistics.median(each.update_norms) / each.norm
        for each in variables
        if each.trainable
        and each.num_applied
        and each.norm
        and each.update_norms
        and len(each.shape) > 1
    ]
    return statistics.median(found) if found else None


def _falls(losses: Sequence[float]) -> bool:
    third = max(1, len(losses) // 3)
    return len(losses) < 6 or statistics.median(losses[-third:]) < statistics.median(losses[:third])


def _diverges(losses: Sequence[float]) -> bool:
    """Return whether losses grow, and not only jump."""
    if len(losses) < 6:
        return False
    third = len(losses) // 3
    first, last = statistics.median(losses[:third]), statistics.median(losses[-third:])
    return last > 5 * abs(first) + 1e-6 and last > 1


def gradient_sizes(case: Case) -> Iterator[Violation]:
    """Yield gradients that vanish or explode."""
    facts = case.facts
    if not _trained(case) or facts.not_finite is not None:
        return
    if any(each.learning_rate == 0 for each in facts.optimizers) or len(facts.steps) != 1:
        return
    # Gradients in graphs are not read: a variable without one stays as it is.
    known = [
        (each, each.gradient_norms or each.update_norms)
        for each in facts.variables
        if each.trainable and each.num_applied
        if len(each.gradient_norms or each.update_norms) >= _MIN_STEPS
    ]
    zero = [each for each, norms in known if not any(norms)]
    if zero and (len(zero) * 2 >= len(known) or any(len(each.shape) > 1 for each in zero)):
        yield Violation(
            case.at(zero[0].where),
            f"the gradients of {len(zero)} of {len(known)} variables are 0 in every step: "
            f"{_names(zero)}.",
            why="Nothing that they do reaches the loss: an activation is saturated or its units "
            "are dead, or the outputs are a constant.",
            fix="look at the outputs of the layer behind them; use another activation or "
            "initializer, and scale the inputs.",
            severity=None if len(zero) == len(known) else Severity.WARNING,
        )
    large = [
        each for each, norms in known if each.gradient_norms and statistics.median(norms) > 1e3
    ]
    has_clip = any(each.clips for each in facts.optimizers)
    if large and not has_clip and not _falls(() if case.steps is None else case.steps.losses):
        worst = max(large, key=lambda each: max(each.gradient_norms))
        yield Violation(
            case.at(worst.where),
            f"gradients explode: {worst.name} has norms up to {max(worst.gradient_norms):.3g}.",
            why="Steps are thrown far from where the loss was measured.",
            fix="scale inputs and labels to about 1, clip gradients (clipnorm=1.0), and make the "
            "learning rate smaller.",
            evidence=_loss_line(case),
            severity=Severity.WARNING,
        )


def unscaled_loss(case: Case) -> Iterator[Violation]:
    """Yield losses of a replica that are not scaled to the global batch."""
    # Keras scales the losses of fit, and what its losses reduce, itself.
    by_keras = {steps.where for steps in case.facts.steps if steps.kind == "fit"}
    if any(
        each.is_reduced and each.trains and each.num_replicas > 1
        for each in case.facts.losses
        if each.name != "difference"
    ):
        return
    for gradient in case.facts.gradients:
        if gradient.where in by_keras:
            continue
        ratio, count = gradient.loss_ratio, gradient.num_replicas
        if count > 1 and ratio is not None and abs(ratio - 1) < 0.1:
            yield Violation(
                case.at(gradient.where),
                "the loss is the mean over the samples of one replica, not scaled.",
                why=f"The strategy adds up the gradients of all {count} replicas: the gradient is "
                f"{count} times that of one device.",
                fix="tf.nn.compute_average_loss(per_sample_loss, "
                "global_batch_size=GLOBAL_BATCH_SIZE); or divide the mean by "
                "strategy.num_replicas_in_sync.",
                evidence=(
                    f"loss / mean of its samples: {ratio:.2f}; 1 / replicas is {1 / count:.2f}",
                ),
            )


def maximized(case: Case) -> Iterator[Violation]:
    """Yield gradients of an error with a minus before it."""
    for gradient in case.facts.gradients:
        if gradient.is_negated and any(each.num_applied for each in case.facts.variables):
            yield Violation(
                case.at(gradient.where),
                "the loss is minus an error: each step makes the error greater.",
                fix="take the minus off.",
                evidence=_loss_line(case),
            )


def summed_loss(case: Case) -> Iterator[Violation]:
    """Yield cross-entropy of replicas that adds up the pixels or time steps of each sample."""
    sizes = {
        math.prod(loss.outputs.shape[1:-1])
        for loss in _losses(case)
        if loss.outputs is not None and "categorical" in loss.name
    }
    for gradient in case.facts.gradients:
        count = gradient.num_replicas
        times = round((gradient.loss_ratio or 0.0) * count)
        if count > 1 and times > 1 and times in sizes:
            yield Violation(
                case.at(gradient.where),
                f"the loss adds up {times} places of each sample (pixels, time steps): it is "
                f"{times} times the mean.",
                why="Dividing by the global batch size leaves the sum over the places of a sample: "
                "the loss and its gradient grow with the size of an image or sequence.",
                fix="average over the places first: per_sample_loss = tf.reduce_mean(loss, "
                "axis=[1, 2]) for images; then tf.nn.compute_average_loss(per_sample_loss, "
                "global_batch_size=GLOBAL_BATCH_SIZE).",
                evidence=(f"loss / mean of its places, times replicas: {times}",),
                severity=Severity.WARNING,
            )


def training_flag(case: Case) -> Iterator[Violation]:
    """Yield training steps that call Dropout and BatchNormalization as in inference."""
    facts = case.facts
    if not facts.steps:
        return
    flags = [each for each in facts.layer_flags if each.is_recorded and each.trainable]
    if flags and not any(each.training for each in flags):
        kinds = ", ".join(sorted({each.kind for each in flags}))
        yield Violation(
            case.at(flags[0].where),
            f"{kinds} run in inference mode in the training step: training is {flags[0].training}.",
            why="Dropout drops nothing, and BatchNormalization uses and keeps its first "
            "statistics: the model is trained without them, and evaluated with other numbers.",
            fix="call model(x, training=True) in the step.",
            evidence=tuple(f"{each.layer}: training={each.training}" for each in flags[:3]),
            severity=None if any(each.training is None for each in flags) else Severity.WARNING,
        )
    off = [each for each in flags if each.training is False and "Dropout" in each.kind]
    if off and any(each.training for each in flags):
        yield Violation(
            case.at(off[0].where),
            f"{off[0].layer} is called with training=False in the training step, and its model is "
            "not frozen.",
            why="A part that only gives targets, such as a teacher, is trained along: the loss "
            "pulls it too.",
            fix="call that model outside of the tape, or set trainable = False on it; or give the "
            "optimizer the variables of the other model alone.",
            severity=Severity.WARNING,
        )
    taught = {each.layer for each in facts.layer_flags if each.is_recorded and each.training}
    asked = [
        each
        for each in facts.layer_flags
        if not each.is_recorded and each.training and each.layer in taught
    ]
    if asked:
        yield Violation(
            case.at(asked[0].where),
            f"{asked[0].kind} runs in training mode outside of a training step.",
            why="Dropout drops, and BatchNormalization takes the statistics of this batch and "
            "learns from it: what is measured here is not the model.",
            fix="call model(x, training=False) where nothing is trained.",
            severity=Severity.WARNING,
        )


def loss_scaling(case: Case) -> Iterator[Violation]:
    """Yield float16 gradients without loss scaling."""
    facts, steps = case.facts, case.steps
    if steps is None or steps.kind in ("fit", "train_on_batch"):
        return
    half = [
        each
        for each in facts.models
        if each.trains and "float16" in each.policy and "bfloat16" not in each.policy
    ]
    if half and facts.optimizers and not any(each.has_loss_scale for each in facts.optimizers):
        yield Violation(
            case.at(facts.optimizers[0].where),
            f"the model computes in float16 ({half[0].policy}), and the loss is not scaled.",
            fix="optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer), and in the step "
            "tape.gradient(optimizer.scale_loss(loss), ...).",
        )


def made_again(case: Case) -> Iterator[Violation]:
    """Yield optimizers, layers and variables that are made in every step."""
    facts, steps = case.facts, case.steps
    if steps is None or steps.num_steps < _MIN_STEPS:
        return
    most = steps.num_steps
    for optimizer in facts.optimizers:
        if optimizer.num_made_in_steps * 2 >= most and optimizer.num_applied:
            yield Violation(
                case.at(optimizer.where),
                f"a new {optimizer.kind} is made in every step.",
                why="It begins without momentum and counts from 0 each time: its moments are never "
                "used.",
                fix="make the optimizer once, before the loop.",
                evidence=(f"{optimizer.num_made} made in {most} steps",),
            )
    for model in facts.models:
        if model.num_made_in_steps * 2 >= most:
            yield Violation(
                case.at(model.where),
                f"the model {model.kind} is made in every step.",
                why="Its weights begin anew each time: nothing that is learned is kept.",
                fix="make the model once, before the loop.",
                evidence=(f"{model.num_made} made in {most} steps",),
            )
    for layer in facts.layers_in_calls:
        if layer.num_made >= 2 and layer.num_weights:
            yield Violation(
                case.at(layer.where),
                f"a new {layer.kind} is made each time that the layer around it is called.",
                why="Its weights begin anew with each trace or call, and no optimizer trains them.",
                fix="make it in __init__ (self.layer = ...), and call it in call.",
                evidence=(f"{layer.num_made} made",),
            )


def set_back(case: Case) -> Iterator[Violation]:
    """Yield weights or optimizer state that the loop sets back."""
    facts = case.facts
    if case.steps is None:
        return
    new_models = sum(each.num_made_in_steps for each in facts.models)
    for call in facts.calls:
        again = call.num_after_first_step
        is_set = call.kind == "set_weights" and call.detail == "trained"
        if (call.kind in ("load_weights", "restore") or is_set) and again >= 2:
            what, why = f"{call.kind} is called {again} times while training", "weights are"
        elif call.kind == "compile" and again >= 2 and not new_models:
            what, why = f"compile is called {again} times while training", "optimizer's state is"
        else:
            continue
        yield Violation(
            case.at(call.where),
            f"{what}.",
            why=f"Each time the {why} set back, and what was learned since is lost.",
            fix="call it once, before the loop.",
            severity=Severity.WARNING,
        )


def constant_seed(case: Case) -> Iterator[Violation]:
    """Yield seeds that are set in every step, and random numbers that are constants of a graph."""
    stages = [stage for data in case.facts.pipelines for stage in data.stages]
    drawn = [(each.name, each.where) for each in case.facts.traced if each.draws_numpy]
    drawn += [(each.function or "map", each.where) for each in stages if each.draws_numpy]
    for name, where in drawn:
        yield Violation(
            case.at(where),
            f"{name} draws numbers of np.random once, when it is traced.",
            why="They are constants of its graph: every call uses the same numbers.",
            fix="use tf.random, or give the numbers as an argument.",
        )
    for call in case.facts.calls:
        if call.kind == "set_seed" and call.per_step >= 0.5:
            yield Violation(
                case.at(call.where),
                "the random seed is set in every step.",
                fix="set the seed once, at the beginning.",
            )


# ---- data


def _pipelines(case: Case, role: str) -> Iterator[Pipeline]:
    for pipeline in case.facts.pipelines:
        if pipeline.role == role:
            yield pipeline


def sorted_data(case: Case) -> Iterator[Violation]:
    """Yield training data that comes sorted by its labels, or shuffled with no effect."""
    for data in _pipelines(case, "train"):
        shuffles = [each for each in data.stages if each.kind == "shuffle"]
        behind_batch = False
        for number, stage in enumerate(data.stages):
            if stage.kind == "shuffle":
                behind_batch = any(each.kind == "batch" for each in data.stages[:number])
        if data.labels_are_sorted and (data.is_shuffled is False or shuffles):
            shuffle = shuffles[0] if shuffles else None
            size = "" if shuffle is None else f" (buffer of {shuffle.size})"
            yield Violation(
                case.at(shuffle.where if shuffle is not None else data.where),
                f"batches come sorted by label: the data is {'hardly' if shuffles else 'not'} "
                f"shuffled{size}.",
                why="A batch then holds one class, and each step unlearns the class before.",
                fix=f"shuffle before batch: .shuffle({data.num_samples or 10_000}).",
                evidence=(f"{data.num_samples or 'unknown'} samples",),
                severity=Severity.ERROR,
            )
        elif shuffles and behind_batch and data.is_shuffled is False:
            yield Violation(
                case.at(shuffles[0].where),
                "shuffle behind batch shuffles whole batches: the same samples stay together.",
                why="Every epoch has the same batches, in another order.",
                fix="call shuffle before batch.",
            )
        elif shuffles and shuffles[0].size in (0, 1):
            yield Violation(
                case.at(shuffles[0].where),
                f"shuffle with a buffer of {shuffles[0].size} shuffles nothing.",
                why="An element is drawn from the buffer: of one element it is the next one.",
                fix=f".shuffle({data.num_samples or 10_000}).",
            )
        elif shuffles and shuffles[0].reshuffles is False:
            yield Violation(
                case.at(shuffles[0].where),
                "every epoch has the same order: reshuffle_each_iteration is False.",
                why="The batches of all epochs are the same.",
                fix="leave reshuffle_each_iteration out.",
                severity=Severity.HINT,
            )


def repeated_batches(case: Case) -> Iterator[Violation]:
    """Yield loops that draw the same batch again and again."""
    steps = case.steps
    for data in _pipelines(case, "train"):
        count = data.num_single_draws
        if steps is not None and count >= 3 and count * 2 >= steps.num_steps:
            yield Violation(
                case.at(data.where),
                f"{count} of {steps.num_steps} steps train on the first batch of the data.",
                why="The loop begins the data anew each time, as next(iter(dataset)) does: the "
                "rest of the data is never seen, or by chance.",
                fix="make the iterator once, before the loop: for batch in dataset.",
            )


def leaked_validation(case: Case) -> Iterator[Violation]:
    """Yield validation data that is training data."""
    for data in _pipelines(case, "validation"):
        same, compared = data.num_rows_of_training, data.num_rows_compared
        if same and compared >= 8 and same / compared >= 0.2:
            yield Violation(
                case.at(data.where),
                f"{same} of {compared} rows of the validation data are in the training data.",
                fix="split once, before both: x[:n], x[n:], or take and skip on data that is not "
                "shuffled anew in every epoch (reshuffle_each_iteration=False).",
                # Few columns of categories have equal rows by themselves.
                severity=None if same / compared >= 0.9 else Severity.HINT,
            )


def input_scale(case: Case) -> Iterator[Violation]:
    """Yield inputs that are not scaled, twice scaled, or scaled otherwise in validation."""
    layers = {layer for model in case.facts.models if model.trains for layer in model.layers}
    training = case.pipeline("train")
    # What the first weights meet is known, but not where XLA compiles.
    given = [(each.where, each.values, each.kind) for each in case.facts.inputs]
    if not given and training is not None and not layers & set(_SCALING):
        given = [(training.where, values, "") for values in training.inputs]
    scale = _scale_of_rescaling(case)
    if not given and training is not None and scale is not None:
        given = [
            (
                training.where,
                dataclasses.replace(each, min=each.min * scale, max=each.max * scale),
                "",
            )
            for each in training.inputs
            if each.min is not None and each.max is not None
        ]
    are_same = all(values.min == values.max for _, values, _ in given)
    for where, values, kind in given:
        low, high = values.min, values.max
        if low is None or high is None or "Embedding" in layers:
            continue
        is_flat = kind == "Dense" and values.is_integral and values.shape[-1] >= 64 and high <= 255
        is_image = (len(values.shape) >= 4 or is_flat) and low >= 0
        most = max(abs(low), abs(high))
        seen = (f"inputs: shape {values.shape}, {_span(values)}, mean {_number(values.mean)}",)
        if are_same and math.prod(values.shape[1:]) > 4:
            yield Violation(
                case.at(where),
                f"all inputs are {low:g}.",
                why="The model sees the same in every sample: it learns the mean of the labels.",
                fix="look at where the data is read and scaled: an array of integers stays one, "
                "and x[:] = x / 255 is 0; x.astype('float32') / 255 is not.",
                evidence=seen,
            )
        elif is_image and 128 <= most <= 65535:
            yield Violation(
                case.at(where),
                f"images of {_span(values)} are given to the model as they are.",
                why="Weights are made for inputs of about 1: activations saturate, and the first "
                "layers learn hundreds of times faster than the rest.",
                fix="divide by 255., or begin the model with keras.layers.Rescaling(1 / 255).",
                evidence=seen,
            )
        elif is_image and 0 < most <= 1.5 / 255:
            yield Violation(
                case.at(where),
                f"images of {_span(values)} are scaled twice.",
                why="Dividing by 255 once more leaves inputs of about 0: the model sees nothing "
                "but its biases.",
                fix="divide by 255 once: in the data, or by a Rescaling layer of the model.",
                evidence=seen,
            )
        elif (
            not is_image
            and most >= 1000
            and not values.is_integral
            and "BatchNormalization" not in layers
        ):
            yield Violation(
                case.at(where),
                f"inputs of {_span(values)} are given to the model as they are.",
                why="Weights are made for inputs of about 1: large ones rule the gradient, and "
                "the others are not learned.",
                fix="subtract the mean and divide by the standard deviation of the training data, "
                "such as by keras.layers.Normalization.",
                evidence=seen,
                severity=Severity.WARNING,
            )
    if training is not None:
        yield from _other_scale(case, training)


def _scale_of_rescaling(case: Case) -> float | None:
    """Return the factor of a Rescaling layer without an offset, as the text has it."""
    for call in case.reading.named("keras.layers.Rescaling"):
        scale = call.constant(0, "scale")
        if isinstance(scale, int | float) and len(call.args) + len(call.keywords) == 1:
            return float(scale)
    return None


def _other_scale(case: Case, training: Pipeline) -> Iterator[Violation]:
    for data in _pipelines(case, "validation"):
        for learned, measured in zip(training.inputs, data.inputs, strict=False):
            first, second = (max(abs(v.min or 0), abs(v.max or 0)) for v in (learned, measured))
            if min(first, second) > 0 and max(first, second) / min(first, second) > 30:
                yield Violation(
                    case.at(data.where),
                    f"training inputs are {_span(learned)}, validation inputs {_span(measured)}.",
                    why="The model is validated on inputs of another scale than it learned.",
                    fix="scale both by the same function, with the training data's statistics.",
                )
                return


def cached_changes(case: Case) -> Iterator[Violation]:
    """Yield random changes of the training data that a cache behind them keeps."""
    for data in _pipelines(case, "train"):
        kinds = [each.kind for each in data.stages]
        for number, stage in enumerate(data.stages):
            if stage.kind == "map" and stage.is_random and "cache" in kinds[number:]:
                yield Violation(
                    case.at(stage.where or data.where),
                    f"{stage.function or 'this map'} changes samples at random, and the cache "
                    "behind it keeps the first change of each.",
                    fix="call cache before this map.",
                )


def run_out(case: Case) -> Iterator[Violation]:
    """Yield epochs that end early because their data does."""
    for data in _pipelines(case, "train"):
        if data.num_missing:
            yield Violation(
                case.at(data.where),
                "the data ends before the steps that fit was asked for.",
                fix="leave steps_per_epoch out, or repeat the data: dataset.repeat().",
                evidence=(f"{data.num_missing} batches are missing",),
            )


def dropped_rows(case: Case) -> Iterator[Violation]:
    """Yield samples that no batch holds."""
    for data in case.facts.pipelines:
        lost, count = data.num_dropped, data.num_samples
        if not lost or not count:
            continue
        part = lost / count
        if data.role not in ("validation", "predict") and part < 0.05:
            continue
        batch = next((each for each in data.stages if each.drop_remainder), None)
        yield Violation(
            case.at(batch.where if batch is not None and batch.where else data.where),
            f"drop_remainder leaves {lost} of {count} samples out in every epoch ({part:.0%}).",
            why="They are never trained on, unless the data is shuffled anew."
            if data.role == "train"
            else "What is measured or predicted lacks them.",
            fix="leave drop_remainder out, or choose a batch that divides the data.",
            severity=None if part >= 0.2 or data.role != "train" else Severity.WARNING,
        )


_SPARSE = ("sparsecategoricalaccuracy", "sparsetopkcategoricalaccuracy")
_ONE_HOT = ("categoricalaccuracy", "topkcategoricalaccuracy")


def metric_mismatch(case: Case) -> Iterator[Violation]:
    """Yield metrics of compile that do not go with the loss."""
    compiled = next((each.where for each in case.facts.calls if each.kind == "compile"), None)
    # A loss of the program may call one of Keras.
    inner = next((each.name for each in _losses(case) if "categorical" in each.name), "")
    for model in case.facts.models:
        loss = model.loss or inner
        for metric in model.metrics if model.trains else ():
            what = _why_wrong(loss, metric)
            if what == _NO_CLASSES and _are_classes(case):
                continue
            if what:
                yield Violation(
                    case.at(compiled or model.where),
                    f"the metric {metric} does not go with the loss {loss}: {what}.",
                    fix="metrics=['mae']."
                    if what == _NO_CLASSES
                    else "metrics=['accuracy'], which Keras chooses by the loss and the shapes."
                    if "from_logits" not in what
                    else "keras.metrics.BinaryAccuracy(threshold=0.0).",
                )


def _are_classes(case: Case) -> bool:
    """Return whether labels are 0 and 1: squares serve as the loss of a classifier too."""
    return any(
        each.labels is not None and each.labels.is_integral and not _leaves(each.labels, 0, 1)
        for each in _losses(case)
    )


def _why_wrong(loss: str, metric: str) -> str:
    plain, short = (text.lower().replace("_", "") for text in (loss, metric))
    sparse, binary = "sparsecategorical" in plain, "binarycrossentropy" in plain
    dense = "categoricalcrossentropy" in plain and not sparse
    if metric == "Accuracy":
        return "it counts outputs that are equal to the labels to the last bit"
    if sparse and short in _ONE_HOT:
        return "it expects one-hot labels, and they are class numbers"
    if dense and short in _SPARSE:
        return "it expects class numbers, and labels are one-hot"
    if binary and short in (*_SPARSE, *_ONE_HOT):
        return "it takes the greatest of the outputs, and there is one"
    if plain in _SQUARES and metric.lower() in ("acc", "accuracy", "binaryaccuracy"):
        return _NO_CLASSES
    if binary and "fromlogits" in plain and metric in ("accuracy", "acc", "BinaryAccuracy"):
        return "outputs are logits (from_logits=True), and its threshold is 0.5"
    return ""


_NO_CLASSES = "labels of a regression are no classes"
_SQUARES = ("mse", "mae", "meansquarederror", "meanabsoluteerror", "huber")


def metric_not_reset(case: Case) -> Iterator[Violation]:
    """Yield metrics that run over several epochs."""
    for model in case.facts.models:
        if model.trains and model.hidden_metrics:
            names = ", ".join(f"self.{name}" for name in model.hidden_metrics)
            yield Violation(
                case.at(model.where),
                f"the property metrics leaves {names} out: it is never reset.",
                why="Keras resets the metrics of that list at the beginning of each epoch and of "
                "each validation: this one mixes all of them.",
                fix=f"return {names} there too.",
            )
    # One that is made anew for each epoch begins at 0.
    if any(call.context.loops for call in case.reading.named("keras.metrics.*")):
        return
    for metric in case.facts.metrics:
        if metric.num_epochs >= 2 and metric.num_updates and not metric.num_resets:
            yield Violation(
                case.at(metric.where),
                f"the metric {metric.name} is never reset.",
                why="From the second epoch on its result is the mean over all epochs so far.",
                fix=f"call {metric.name}.reset_state() where an epoch begins.",
                evidence=(f"{metric.num_epochs} epochs, 0 resets",),
            )
