"""Rules on numbers: what makes training silently wrong, or end in NaN."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from evener.doctor.facts import CodeLine, LossUse, Outcome, Pipeline, Steps, ValueRange, VariableUse
from evener.doctor.finding import Case, Severity, Violation

_ENTROPIES = (
    "categorical_crossentropy sparse_categorical_crossentropy binary_crossentropy "
    "binary_focal_crossentropy categorical_focal_crossentropy"
).split()
_REGRESSION = (
    "mean_squared_error mean_absolute_error mean_squared_logarithmic_error huber log_cosh "
    "difference"
).split()
_RANGES = {
    "sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "relu": (0.0, math.inf),
}
_NEAR = 0.02  # sums of probabilities
SCALED_LOSS = (
    "tf.nn.compute_average_loss(per_sample_loss, global_batch_size=GLOBAL_BATCH_SIZE); or divide "
    "the mean by strategy.num_replicas_in_sync."
)
"""Fix of a loss of one replica that is a plain mean."""
# Layers that bring inputs to a usual size.
_SCALING = {"Rescaling", "Normalization", "Lambda"}
_MIN_STEPS = 3


def _losses(case: Case) -> Iterator[LossUse]:
    return (loss for loss in case.facts.losses if loss.trains)


def _span(values: ValueRange) -> str:
    return f"{_number(values.min)} to {_number(values.max)}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def _call(loss: LossUse) -> str:
    known = "" if loss.from_logits is None else f", from_logits={loss.from_logits}"
    return f"loss: {loss.name}{known}"


def _outputs(loss: LossUse) -> str:
    return "" if loss.outputs is None else f"outputs seen: {_span(loss.outputs)}"


def _known_line(*uses: Any) -> CodeLine | None:
    return next((each.where for each in uses if each.where is not None), None)


def _are_constant(case: Case) -> bool:
    """Return whether all labels of one of the losses are the same."""
    labels = [each.labels for each in _losses(case) if each.labels is not None]
    return any(each.min is not None and each.min == each.max for each in labels)


def _leaves(values: ValueRange | None, low: float, high: float) -> bool:
    """Return whether values are known, and not all between two bounds."""
    if values is None or values.min is None or values.max is None:
        return False
    margin = 1e-3 * max(1.0, high - low)
    return values.min < low - margin or values.max > high + margin


def logits_as_probabilities(case: Case) -> Iterator[Violation]:
    for loss in _losses(case):
        # Some layer behind the last activation may still bring the outputs into range.
        is_known = loss.outputs is not None and loss.outputs.max is not None
        suspects = ("relu",) if is_known else ("linear", "relu", "tanh")
        is_none = _leaves(loss.outputs, 0, 1) or loss.activation in suspects
        if is_none and loss.name in _ENTROPIES and loss.from_logits is False:
            activation = loss.activation and f"outputs of a {loss.activation} activation"
            yield case.violation(
                loss.where,
                f"{loss.name} expects probabilities, and gets {activation or 'its outputs'} that "
                "are none.",
                _outputs(loss),
                _call(loss),
                fix=f"give the loss from_logits=True, or end the model in "
                f"{'sigmoid' if 'binary' in loss.name else 'softmax'}.",
            )


def probabilities_as_logits(case: Case) -> Iterator[Violation]:
    for loss in _losses(case):
        sums = (loss.row_sum_min, loss.row_sum_max)
        are_distributions = (
            loss.outputs is not None
            and loss.outputs.shape[-1:] > (1,)
            and not _leaves(loss.outputs, 0, 1)
            and all(each is not None and abs(each - 1) < 1e-3 for each in sums)
        )
        if loss.from_logits and (loss.activation in ("softmax", "sigmoid") or are_distributions):
            last = loss.activation or "softmax"
            yield case.violation(
                loss.where,
                "the loss applies its own activation to outputs that have gone through "
                f"{last} already.",
                _outputs(loss),
                "each row sums to 1" if are_distributions else "",
                _call(loss),
                fix=f"take {last} off the last layer, or from_logits=True off the loss.",
            )


def wrong_softmax(case: Case) -> Iterator[Violation]:
    for loss in _losses(case):
        if loss.activation == "softmax" and loss.outputs and loss.outputs.shape[-1:] == (1,):
            yield case.violation(
                loss.where,
                "softmax over one unit is always 1: the model predicts a constant.",
                f"outputs: shape {loss.outputs.shape}, {_span(loss.outputs)}",
                fix="end in one unit with sigmoid and binary_crossentropy, or in one unit per "
                "class.",
            )
    ends = [(each.where, (each.activation_before, each.activation)) for each in _losses(case)]
    ends += [(each.where, each.activations[-2:]) for each in case.facts.models if each.trains]
    for where, last in ends:
        if last in (("softmax", "softmax"), ("softmax", "sigmoid"), ("sigmoid", "sigmoid")):
            yield case.violation(
                where,
                f"the model ends in {last[0]} and then {last[1]}.",
                fix="keep one of them, the last.",
            )
            return


def softmax_axis(case: Case) -> Iterator[Violation]:
    for loss in _losses(case):
        low, high = loss.row_sum_min, loss.row_sum_max
        if loss.name not in _ENTROPIES or "binary" in loss.name or loss.from_logits:
            continue
        if loss.outputs is None or loss.outputs.shape[-1:] == (1,) or low is None or high is None:
            continue
        if _leaves(loss.outputs, 0, 1) or max(abs(low - 1), abs(high - 1)) < _NEAR:
            continue
        yield case.violation(
            loss.where,
            f"the outputs given to {loss.name} do not sum to 1 over the classes.",
            f"sums over the last axis: {_number(low)} to {_number(high)}",
            _call(loss),
            f"activation: {loss.activation or 'not known'}",
            fix="end in softmax, or use binary_crossentropy for several labels per sample."
            if loss.activation == "sigmoid"
            else "apply softmax with axis=-1.",
        )


def labels_and_classes(case: Case) -> Iterator[Violation]:
    are_raw = any((each.values.max or 0) >= 128 for each in case.facts.inputs)
    for loss in _losses(case):
        labels, outputs = loss.labels, loss.outputs
        if labels is None or outputs is None or not outputs.shape:
            continue
        classes, what, fix = outputs.shape[-1], "", ""
        low, high = labels.min, labels.max
        if "sparse_" in loss.name:
            if labels.is_one_hot and labels.shape[-1:] == (classes,) and classes > 1:
                what = "one-hot labels are given to a loss for class numbers"
                fix = "use categorical_crossentropy, or give tf.argmax(y, -1)."
            elif classes > 0 and _leaves(labels, 0, classes - 1):
                worst = high if (high or 0) >= classes else low
                what = (
                    f"label {worst:g} is none of the {classes} classes of the model, which are "
                    f"0 to {classes - 1}"
                )
                fix = f"end the model in {int(max(high or 0, 0)) + 1} units, or correct the labels."
                if (low, high) == (1, classes):
                    fix = "count classes from 0: y - 1."
        elif are_raw and len(labels.shape) >= 4 and (high or 0) >= 128:
            continue  # The images are the labels too: told of the inputs.
        elif "binary" in loss.name and _leaves(labels, 0, 1):
            what = f"labels of {_span(labels)} are given to {loss.name}"
            fix = "bring them to 0 and 1, such as (y + 1) / 2 for -1 and 1."
        elif "categorical" in loss.name and labels.is_integral and not labels.is_one_hot:
            if _leaves(labels, 0, 1) or labels.shape[-1:] == (1,) != outputs.shape[-1:]:
                what = "class numbers are given to a loss for one-hot labels"
                fix = f"use sparse_categorical_crossentropy, or tf.one_hot(y, {classes})."
        if what:
            yield case.violation(
                loss.where,
                f"{what}.",
                f"labels: shape {labels.shape}, {_span(labels)}",
                f"outputs: shape {outputs.shape}",
                _call(loss),
                fix=fix,
            )


def broadcast_labels(case: Case) -> Iterator[Violation]:
    for loss in _losses(case):
        if loss.is_broadcast and loss.labels is not None and loss.outputs is not None:
            yield case.violation(
                loss.where,
                f"labels of shape {loss.labels.shape} and outputs of shape {loss.outputs.shape} "
                "are broadcast against each other.",
                _call(loss),
                fix="give both one shape: tf.squeeze(outputs, -1), or y[:, None].",
            )


def unreachable_labels(case: Case) -> Iterator[Violation]:
    for loss in _losses(case):
        if loss.activation == "relu" and loss.from_logits:
            yield case.violation(
                loss.where,
                "the last activation, relu, leaves no logit below 0.",
                _call(loss),
                why="Where a unit gives 0 it has no gradient, and no class can be told from it.",
                fix="end in a layer without activation.",
            )
        if loss.activation not in _RANGES or loss.name not in _REGRESSION or loss.labels is None:
            continue
        low, high = _RANGES[loss.activation]
        least, most = loss.labels.min, loss.labels.max
        if least is not None and most is not None and (least < low - 0.05 or most > high + 0.05):
            yield case.violation(
                loss.where,
                f"the last activation, {loss.activation}, gives {low:g} to {high:g}, and labels "
                f"are {_span(loss.labels)}.",
                _call(loss),
                fix="end in a layer without activation, or scale the labels into the range.",
            )


def ignored_mask(case: Case) -> Iterator[Violation]:
    is_plain_mean = any(
        each.is_plain_mean and abs((each.loss_ratio or 0) * each.num_replicas - 1) < 0.1
        for each in case.facts.gradients
    )
    for loss in _losses(case):
        is_padded = loss.padded_share > 0.3 and is_plain_mean and not loss.is_weighted
        # A loss for each position may be weighted by the mask behind it.
        if not is_padded and not (loss.has_mask and loss.is_reduced):
            continue
        yield case.violation(
            loss.where,
            f"{loss.padded_share:.0%} of the sequences end in padding (0), and the loss counts "
            "each position alike: padding is learned too."
            if is_padded
            else "the outputs have a mask, and the loss does not use it: padding is learned too.",
            _call(loss),
            fix="multiply the loss of each position by the mask, tf.cast(labels != 0, loss.dtype), "
            "and divide by its sum; model.compile(loss=...) does so for a layer's mask.",
        )


# ---- gradients and variables


def _names(variables: Sequence[VariableUse]) -> str:
    shown = ", ".join(each.name for each in variables[:3])
    return f"{shown} and {len(variables) - 3} more" if len(variables) > 3 else shown


def no_gradient(case: Case) -> Iterator[Violation]:
    asked = [each for each in case.facts.variables if each.num_gradients and each.trainable]
    lost = [each for each in asked if each.num_none == each.num_gradients]
    if not lost:
        return
    lines = [each for each in case.facts.gradients if each.num_none]
    is_unwatched = any(each.num_not_watched for each in lines)
    yield case.violation(
        _known_line(*lost),
        f"the loss has no gradient for {len(lost)} of {len(asked)} variables: {_names(lost)}.",
        *(
            (
                "a step"
                if each.where is None
                else f"line {each.where.line} ({case.at(each.where).text})"
            )
            + f": {each.num_none} of {each.num_sources} gradients are None"
            for each in lines[:3]
        ),
        why="The tape did not watch them: the forward pass ran before or outside of the tape, or "
        "they are no variables. They keep their first values."
        if is_unwatched
        else "",
        fix="compute the outputs and the loss of model(x) inside `with tf.GradientTape()`, by "
        "TensorFlow's functions alone; or leave these variables out.",
        severity=None if len(lost) == len(asked) or is_unwatched else Severity.WARNING,
    )


def _trained(case: Case) -> bool:
    return case.steps is not None and case.steps.num_steps >= _MIN_STEPS


def not_updated(case: Case) -> Iterator[Violation]:
    mine = [each for each in case.facts.variables if each.trainable and each.in_model]
    # Those without a gradient are told by another rule, those that are assigned are no mistake.
    left = [
        each
        for each in mine
        if not (each.num_applied or any(each.update_norms))
        and not (each.num_gradients and each.num_none == each.num_gradients)
    ]
    if not left or not _trained(case):
        return
    asked = [each for each in left if each.num_gradients]
    # Who trains one variable of a layer and not another has chosen them, as adapters are.
    taught = {each.name.rpartition("/")[0] for each in mine if each.num_applied}
    is_chosen = all(each.name.rpartition("/")[0] in taught for each in left)
    severity = Severity.HINT if is_chosen else Severity.WARNING
    yield case.violation(
        _known_line(*asked, *left, *case.facts.gradients, *case.facts.steps),
        f"{len(left)} of {len(mine)} trainable variables are never updated: {_names(left)}.",
        why="Their gradients are computed and not applied."
        if asked
        else "No gradient is asked for them, so that they keep their first values.",
        fix="give apply_gradients the variables that the gradients were computed for: "
        "zip(gradients, model.trainable_variables); set trainable = False on what is to stay.",
        severity=None if asked or len(left) == len(mine) else severity,
    )


def trained_twice(case: Case) -> Iterator[Violation]:
    # Several trainings, one after the other, may have an optimizer each.
    if len(case.facts.steps) != 1 or any(each.num_made_in_steps for each in case.facts.optimizers):
        return
    found = [each for each in case.facts.variables if each.num_optimizers >= 2]
    if found:
        yield case.violation(
            found[0].where,
            f"{found[0].num_optimizers} optimizers update the same variables: {_names(found)}.",
            f"{len(found)} variables are given to several optimizers",
            fix="give each apply_gradients the variables of its own model alone.",
        )


def gradients_of_others(case: Case) -> Iterator[Violation]:
    known = case.facts.variables
    moved = [each for each in known if each.num_swapped]
    # Gradients that were changed on their way are known by their shapes alone.
    if not moved and _trained(case) and case.steps is not None and case.steps.kind != "fit":
        given = [each for each in known if each.num_applied and not each.num_gradients]
        asked = [each for each in known if each.num_gradients and not each.num_applied]
        moved = given if {each.shape for each in given} & {each.shape for each in asked} else []
    if moved:
        yield case.violation(
            moved[0].where,
            f"gradients of other variables are applied to {_names(moved)}.",
            why="The lists of gradients and of variables do not belong together: a variable is "
            "moved by the gradient of another one of its shape.",
            fix="take one list for both: tape.gradient(loss, variables) and "
            "apply_gradients(zip(gradients, variables)).",
        )


def frozen_and_trained(case: Case) -> Iterator[Violation]:
    # What one training trained, the next may freeze, as those of folds do.
    num_fits = sum(each.num_calls for each in case.facts.calls if each.kind == "fit")
    if len(case.facts.steps) != 1 or num_fits > 1:
        return
    found = [each for each in case.facts.variables if not each.trainable and each.num_applied]
    if found:
        yield case.violation(
            found[0].where,
            f"variables that are not trainable are trained: {_names(found)}.",
            f"{len(found)} variables with trainable=False are in apply_gradients",
            fix="freeze before the list is made (and before compile), and give the optimizer "
            "model.trainable_variables.",
        )


def outside_of_model(case: Case) -> Iterator[Violation]:
    found = [
        each
        for each in case.facts.variables
        if not each.in_model and each.trainable and not each.num_applied
        if not any(each.update_norms) and math.prod(each.shape) > 1
    ]
    is_fit = case.steps is not None and case.steps.kind == "fit"
    # A loop may use a part that is trained already, or a constant.
    if found and (is_fit or (_trained(case) and len(found) <= 3)):
        yield case.violation(
            found[0].where,
            f"nothing trains {_names(found)}: no layer has it as a weight.",
            fix="create it by self.add_weight(...) in the layer.",
            severity=None if is_fit else Severity.HINT,
        )


_CAUSES_OF_NAN = {
    "inputs": "clean the data: np.nan_to_num, or drop these rows.",
    "labels": "clean the labels, or drop these rows.",
    "outputs": "look at this layer: a division by 0, log or sqrt of 0, or weights that grew.",
    "gradient": "look for sqrt, norm, log or a division at 0 in the loss: tf.where does not "
    "shield the gradient; add a small number inside. Or clip: clipnorm=1.0.",
}


def not_finite(case: Case) -> Iterator[Violation]:
    first = case.facts.not_finite
    known = [each for each in case.facts.variables if each.num_applied]
    # NaN in a step is NaN in the weights of the next.
    is_over = any(each.norm for each in known) and not any(each.has_nan for each in known)
    if first is None or is_over:
        return
    name = f" of {first.name}" if first.name else ""
    when = "" if first.step is None else f" in step {first.step + 1}"
    yield case.violation(
        first.where,
        f"{first.what}{name} are not finite first{when}."
        if first.what in ("inputs", "labels", "outputs")
        else f"the {first.what}{name} is NaN or infinite first{when}.",
        *_loss_line(case),
        *_rates(case),
        fix=_CAUSES_OF_NAN.get(
            first.what,
            "make the learning rate smaller, clip gradients (clipnorm=1.0), and add a small "
            "number inside of log, sqrt and divisions.",
        ),
    )


def _rates(case: Case) -> tuple[str, ...]:
    return tuple(
        f"{each.kind}, learning rate {each.learning_rate:g}"
        for each in case.facts.optimizers[:2]
        if each.learning_rate is not None
    )


def _loss_line(case: Case) -> tuple[str, ...]:
    losses = () if case.steps is None else case.steps.losses
    shown = [f"{each:.4g}" for each in losses]
    if len(shown) > 4:
        shown = [*shown[:2], f"{shown[2]} ... {shown[-1]}"]
    return (f"losses: {', '.join(shown)}",) if shown else ()


def learning_rate(case: Case) -> Iterator[Violation]:
    facts, steps = case.facts, case.steps
    if steps is None or not _trained(case) or facts.not_finite is not None:
        return
    # The median change of a step relative to the norms of the variables before.
    relative = [
        statistics.median(each.update_norms) / norm
        for each in facts.variables
        if each.trainable and each.num_applied and len(each.shape) > 1
        if each.update_norms and (norm := each.first_norm or each.norm)
    ]
    changes = statistics.median(relative) if relative else None
    has_jumped = bool(steps.losses) and max(steps.losses) > 3 * abs(steps.losses[0])
    for optimizer in facts.optimizers:
        rate, severity = optimizer.learning_rate, None
        if rate is None or not optimizer.num_applied:
            continue
        if rate <= 0:
            end = "no variable changes" if rate == 0 else "steps go uphill"
            what = f"the learning rate is {rate:g}: {end}."
            fix = "give a learning rate such as 1e-3 (Adam) or 1e-2 (SGD); look at what a "
            fix += "schedule gives in the first steps."
        elif (
            _diverges(steps.losses)
            or ((changes or 0) > 0.5 and not _gains(steps.losses))
            # What was learned before is gone.
            or ((changes or 0) > 1 and has_jumped)
        ):
            what = "the loss does not fall, or a step changes the weights by all of their size: "
            what += f"the learning rate {rate:g} is too high."
            fix = f"try {rate / 100:g}, and a warm-up."
            severity = None if _diverges(steps.losses) else Severity.WARNING
        elif 1000 * rate < (optimizer.first_rate or 0) and facts.ending.outcome is Outcome.ENOUGH:
            what = f"the learning rate has fallen from {optimizer.first_rate:g} to {rate:g} within "
            what += f"{steps.num_steps} steps: nothing more is learned."
            fix = "count what the schedule decays over in steps, not in epochs; or decay more "
            fix += "slowly."
        elif (
            changes is not None
            and (0 < changes < 1e-6 or rate <= 1e-6)  # Without gradients it is not the rate.
            # Where all labels are the same there is soon nothing to learn.
            and not (optimizer.rate_changes or _are_constant(case))
        ):
            what = f"a step changes the weights by {changes:.1e} of their size: the learning "
            what += f"rate {rate:g} is too low."
            fix, severity = "1e-3 is usual for Adam, 1e-2 for SGD.", Severity.WARNING
        else:
            continue
        yield case.violation(
            optimizer.where,
            what,
            *_rates(case),
            *_loss_line(case),
            "" if changes is None else f"a step changes the weights by {changes:.0%}",
            fix=fix,
            severity=severity,
        )


def _thirds(losses: Sequence[float]) -> tuple[float, float]:
    third = len(losses) // 3
    return statistics.median(losses[:third]), statistics.median(losses[-third:])


def _falls(losses: Sequence[float]) -> bool:
    return len(losses) < 6 or _thirds(losses)[1] < _thirds(losses)[0]


def _gains(losses: Sequence[float]) -> bool:
    """Return whether losses fall below the first one, before anything was learned."""
    return _falls(losses) and (len(losses) < 6 or _thirds(losses)[1] < 0.95 * losses[0])


def _diverges(losses: Sequence[float]) -> bool:
    """Return whether losses grow, and not only jump."""
    if len(losses) < 6:
        return False
    first, last = _thirds(losses)
    return last > 5 * abs(first) + 1e-6 and last > 1


def gradient_sizes(case: Case) -> Iterator[Violation]:
    facts = case.facts
    if not _trained(case) or facts.not_finite is not None or len(facts.steps) != 1:
        return
    if any(each.learning_rate == 0 for each in facts.optimizers):
        return
    # Gradients in graphs are not read: a variable without one stays as it is.
    known = [
        each
        for each in facts.variables
        if each.trainable and each.num_applied
        if len(each.gradient_norms or each.update_norms) >= _MIN_STEPS
    ]
    zero = [each for each in known if not any(each.gradient_norms or each.update_norms)]
    if zero and (len(zero) * 2 >= len(known) or any(len(each.shape) > 1 for each in zero)):
        yield case.violation(
            zero[0].where,
            f"the gradients of {len(zero)} of {len(known)} variables are 0 in every step: "
            f"{_names(zero)}.",
            fix="look at the outputs of the layer behind them; use another activation or "
            "initializer, and scale the inputs.",
            severity=None if len(zero) == len(known) else Severity.WARNING,
        )
    alike = [each for each in known if each.began_constant and each.first_norm]
    if alike:
        yield case.violation(
            alike[0].where,
            f"all units of a layer begin with the same weights: {_names(alike)}.",
            f"norm before the first step: {_number(alike[0].first_norm)}, all values the same",
            why="Equal units get equal gradients: the layer learns little more than one unit.",
            fix="leave the initializer out, or use a random one, such as glorot_uniform.",
            severity=Severity.WARNING,
        )
    large = [each for each in known if statistics.median(each.gradient_norms or (0,)) > 1e3]
    is_held = any(each.clips for each in facts.optimizers) or _falls(facts.steps[0].losses)
    if large and not is_held:
        worst = max(large, key=lambda each: max(each.gradient_norms))
        yield case.violation(
            worst.where,
            f"gradients explode: {worst.name} has norms up to {max(worst.gradient_norms):.3g}.",
            *_loss_line(case),
            fix="scale inputs and labels to about 1, clip gradients (clipnorm=1.0), and make the "
            "learning rate smaller.",
            severity=Severity.WARNING,
        )


def unscaled_loss(case: Case) -> Iterator[Violation]:
    # Keras scales the losses of fit, and what its losses reduce, itself.
    by_keras = {steps.where for steps in case.facts.steps if steps.kind == "fit"}
    reduced = [each.name for each in _losses(case) if each.is_reduced and each.num_replicas > 1]
    # Pixels or time steps of a sample.
    outputs = [each.outputs for each in _losses(case) if "categorical" in each.name]
    sizes = {math.prod(each.shape[1:-1]) for each in outputs if each is not None}
    for gradient in case.facts.gradients:
        ratio, count = gradient.loss_ratio, gradient.num_replicas
        if count < 2 or ratio is None:
            continue
        samples = max(() if case.steps is None else case.steps.batch_sizes, default=0) / count
        is_sum = math.isinf(ratio) or (samples > 1 and abs(ratio - samples) < 0.05 * samples)
        is_mean = abs(ratio - 1) < 0.1 and not {*reduced} - {"difference"}
        times = 0 if is_sum else round(ratio * count)
        if (is_sum or is_mean) and gradient.where not in by_keras:
            yield case.violation(
                gradient.where,
                f"the loss is the {'sum' if is_sum else 'mean'} over the samples of one replica, "
                "not scaled.",
                f"loss / mean of its samples: {ratio:.4g}; 1 / replicas is {1 / count:.2f}",
                why=f"The strategy adds up the gradients of all {count} replicas: the gradient is "
                f"{count} times that of one device, and of a sum it grows with the batch.",
                fix=SCALED_LOSS,
            )
        if times > 1 and times in sizes:
            yield case.violation(
                gradient.where,
                f"the loss adds up {times} places of each sample (pixels, time steps): it is "
                f"{times} times the mean.",
                f"loss / mean of its places, times replicas: {times}",
                why="Dividing by the global batch size leaves the sum over the places of a sample: "
                "the loss and its gradient grow with the size of an image or sequence.",
                fix="average over the places first: per_sample_loss = tf.reduce_mean(loss, "
                "axis=[1, 2]) for images; then tf.nn.compute_average_loss(per_sample_loss, "
                "global_batch_size=GLOBAL_BATCH_SIZE).",
                severity=Severity.WARNING,
            )


def maximized(case: Case) -> Iterator[Violation]:
    uphill = [each for each in case.facts.variables if each.num_negated]
    if uphill:
        yield case.violation(
            uphill[0].where,
            f"{len(uphill)} variables are given minus their gradients: {_names(uphill)}.",
            why="apply_gradients subtracts them itself: each step makes the loss greater.",
            fix="give apply_gradients the gradients as the tape has them.",
            severity=Severity.WARNING,
        )
    # Of a minimax game one side makes an error greater whose labels are constants.
    for gradient in () if _are_constant(case) else case.facts.gradients:
        if gradient.is_negated and any(each.num_applied for each in case.facts.variables):
            yield case.violation(
                gradient.where,
                "the loss is minus an error: each step makes the error greater.",
                *_loss_line(case),
                fix="take the minus off.",
            )


def training_flag(case: Case) -> Iterator[Violation]:
    flags = case.facts.layer_flags if case.has_trained else ()
    steps = [each for each in flags if each.is_recorded and each.trainable]
    taught = {each.layer for each in flags if each.is_recorded and each.training}
    if steps and not any(each.training for each in steps):
        kinds = ", ".join(sorted({each.kind for each in steps}))
        yield case.violation(
            steps[0].where,
            f"{kinds} run in inference mode in the training step: training is {steps[0].training}.",
            *(f"{each.layer}: training={each.training}" for each in steps[:3]),
            fix="call model(x, training=True) in the step.",
            severity=None if any(each.training is None for each in steps) else Severity.WARNING,
        )
    off = [each for each in steps if each.training is False and "Dropout" in each.kind]
    if off and any(each.training for each in steps):
        yield case.violation(
            off[0].where,
            f"{off[0].layer} is called with training=False in the training step, and its model is "
            "not frozen.",
            why="A part that only gives targets, such as a teacher, is trained along: the loss "
            "pulls it too.",
            fix="call that model outside of the tape, or set trainable = False on it; or give the "
            "optimizer the variables of the other model alone.",
            severity=Severity.WARNING,
        )
    for flag in flags:
        if not flag.is_recorded and flag.training and flag.layer in taught:
            yield case.violation(
                flag.where,
                f"{flag.kind} runs in training mode outside of a training step.",
                fix="call model(x, training=False) where nothing is trained.",
                severity=Severity.WARNING,
            )
            return


def loss_scaling(case: Case) -> Iterator[Violation]:
    optimizers, steps = case.facts.optimizers, case.steps
    if steps is None or steps.kind in ("fit", "train_on_batch"):
        return
    policies = [each.policy for each in case.facts.models if each.trains]
    half = [each for each in policies if "float16" in each and "bfloat16" not in each]
    if half and optimizers and not any(each.has_loss_scale for each in optimizers):
        yield case.violation(
            optimizers[0].where,
            f"the model computes in float16 ({half[0]}), and the loss is not scaled.",
            fix="optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer), and in the step "
            "tape.gradient(optimizer.scale_loss(loss), ...).",
        )


def made_again(case: Case) -> Iterator[Violation]:
    facts, steps = case.facts, case.steps
    if steps is None or not _trained(case):
        return
    used = [each for each in facts.optimizers if each.num_applied]
    for made in (*used, *facts.models):
        if made.num_made_in_steps * 2 >= steps.num_steps:
            yield case.violation(
                made.where,
                f"a new {made.kind} is made in every step.",
                f"{made.num_made} made in {steps.num_steps} steps",
                why="Weights begin anew each time, and so do momentum and the count of steps: "
                "nothing that is learned is kept.",
                fix="make it once, before the loop.",
            )
    for layer in facts.layers_in_calls:
        if layer.num_made >= 2 and layer.num_weights:
            yield case.violation(
                layer.where,
                f"a new {layer.kind} is made each time that the layer around it is called.",
                f"{layer.num_made} made",
                fix="make it in __init__ (self.layer = ...), and call it in call.",
            )


def set_back(case: Case) -> Iterator[Violation]:
    has_new_models = any(each.num_made_in_steps for each in case.facts.models)
    for optimizer in case.facts.optimizers if _trained(case) and not has_new_models else ():
        if optimizer.num_made >= 2 and optimizer.num_made_in_steps and optimizer.num_applied:
            yield case.violation(
                optimizer.where,
                f"{optimizer.num_made} {optimizer.kind} are made one after the other for the same "
                "model.",
                why="Momentum and the count of steps begin anew with each of them.",
                fix="make it once, before the loop.",
                # A second one may be that of a second phase.
                severity=Severity.WARNING if optimizer.num_made_in_steps > 1 else Severity.HINT,
            )
    for variable in case.facts.variables:
        if variable.was_set_back:
            yield case.violation(
                variable.where,
                f"{variable.name} was brought back to its first values while training.",
                fix="set weights once, before the loop.",
            )
    for call in case.facts.calls if case.has_trained else ():
        is_set = call.kind == "set_weights" and call.detail == "trained"
        is_compiled = call.kind == "compile" and not has_new_models
        is_set_back = call.kind in ("load_weights", "restore") or is_set or is_compiled
        if is_set_back and call.num_after_first_step >= 2:
            yield case.violation(
                call.where,
                f"{call.kind} is called {call.num_after_first_step} times while training.",
                fix="call it once, before the loop.",
            )


def constant_seed(case: Case) -> Iterator[Violation]:
    stages = [stage for data in case.facts.pipelines for stage in data.stages]
    drawn = [(each.name, each.where) for each in case.facts.traced if each.draws_numpy]
    drawn += [(each.function or "map", each.where) for each in stages if each.draws_numpy]
    # What makes batches beside the trace may draw too.
    feeds = any(each.calls_python for each in stages)
    feeds |= any(data.kind in ("generator", "other") for data in _pipelines(case, "train"))
    drawn += [("the step", e.where) for e in case.facts.gradients if e.draws_numpy and not feeds]
    for name, where in drawn:
        yield case.violation(
            where,
            f"{name} draws numbers of np.random once, when it is traced.",
            why="They are constants of its graph: every call uses the same numbers.",
            fix="use tf.random, or give the numbers as an argument.",
        )
    seeded = [s.where for d in _pipelines(case, "train") for s in d.stages if s.draws_constants]
    seeded += [each.where for each in case.facts.gradients if each.draws_constants]
    for where in seeded:
        yield case.violation(
            where,
            "random numbers are drawn of a seed that is a constant: they are the same each time.",
            fix="leave the seed out (tf.random.normal, tf.image.random_flip_left_right), or give "
            "each call another one, such as tf.random.Generator.make_seeds or a counter's.",
        )
    for call in case.facts.calls:
        if call.kind == "set_seed" and call.per_step >= 0.5:
            yield case.violation(
                call.where,
                "the random seed is set in every step.",
                fix="set the seed once, at the beginning.",
            )


# ---- data


def _pipelines(case: Case, role: str) -> Iterator[Pipeline]:
    return (each for each in case.facts.pipelines if each.role == role)


def sorted_data(case: Case) -> Iterator[Violation]:
    for data in _pipelines(case, "train"):
        kinds = [each.kind for each in data.stages]
        shuffle = next((each for each in data.stages if each.kind == "shuffle"), None)
        order = f".shuffle({data.num_samples or 10_000})"
        severity = None
        if data.labels_are_sorted and (data.is_shuffled is False or shuffle):
            size = "not shuffled" if shuffle is None else f"hardly shuffled (by {shuffle.size})"
            what = f"batches come sorted by label: the data is {size}."
            fix, severity = f"shuffle before batch: {order}.", Severity.ERROR
        elif shuffle is None:
            continue
        elif _is_behind_batch(kinds):
            what = "shuffle behind batch shuffles whole batches: the same samples stay together."
            fix = "call shuffle before batch."
        elif shuffle.size in (0, 1):
            what = f"shuffle with a buffer of {shuffle.size} shuffles nothing."
            fix = f"{order}."
        elif shuffle.reshuffles is False:
            what = "every epoch has the same order: reshuffle_each_iteration is False."
            fix, severity = "leave reshuffle_each_iteration out.", Severity.HINT
        else:
            continue
        where = data.where if shuffle is None else shuffle.where
        yield case.violation(
            where, what, f"{data.num_samples or 'unknown'} samples", fix=fix, severity=severity
        )

    # What comes to the loss is known, however the batches were made.
    is_told = any(data.labels_are_sorted for data in _pipelines(case, "train"))
    for loss in () if is_told else _losses(case):
        labels = loss.labels
        if loss.labels_are_sorted and labels is not None and labels.shape[:1] != (1,):
            if labels.min != labels.max and labels.is_integral and loss.name in _ENTROPIES:
                yield case.violation(
                    loss.where,
                    "batches come sorted by label: each holds one class, and the next ones follow.",
                    _call(loss),
                    fix="shuffle inputs and labels by one order before the batches are made: "
                    "order = np.random.permutation(len(x)); x, y = x[order], y[order].",
                )
                return


def _is_behind_batch(kinds: list[str]) -> bool:
    """Return whether the only shuffle is behind the last batch: it moves whole batches."""
    batches = [at for at, kind in enumerate(kinds) if kind in ("batch", "padded_batch")]
    return bool(batches) and batches[-1] < kinds.index("shuffle") and "unbatch" not in kinds


def shuffled_apart(case: Case) -> Iterator[Violation]:
    for data in _pipelines(case, "train"):
        for stage in data.stages:
            if stage.num_shuffled >= 2:
                yield case.violation(
                    stage.where,
                    "inputs and labels are shuffled each on its own.",
                    f"{stage.num_shuffled} of the datasets that are zipped are shuffled",
                    fix="zip first, and shuffle then: tf.data.Dataset.zip((x, y)).shuffle(n).",
                )


def repeated_batches(case: Case) -> Iterator[Violation]:
    steps = case.steps or Steps(kind="", where=None, num_steps=0)
    num_steps = steps.num_steps
    for data in _pipelines(case, "train"):
        if num_steps and data.num_single_draws >= max(3, num_steps / 2):
            yield case.violation(
                data.where,
                f"{data.num_single_draws} of {num_steps} steps train on the first batch of the "
                "data.",
                fix="make the iterator once, before the loop: for batch in dataset.",
            )
            return
    given = [each for each in case.facts.inputs if each.trains]
    num = max((each.num_samples or 0 for each in _pipelines(case, "train")), default=0)
    per_epoch = steps.steps_per_epoch or 1
    is_one_batch = num <= max(steps.batch_sizes, default=0) if num else per_epoch == 1
    # A constant is told as such.
    is_same = all(each.is_repeated and each.values.min != each.values.max for each in given)
    # Beside words, numbers that stay the same are positions.
    is_same &= not any("Embedding" in each.layers for each in case.facts.models if each.trains)
    if given and num_steps and is_same and not is_one_batch:
        yield case.violation(
            given[0].where,
            "each step is given the same inputs.",
            f"{num or 'unknown'} samples in all, {per_epoch} steps per epoch",
            *(
                f"{each.layer}: {_span(each.values)}, mean {_number(each.values.mean)}"
                for each in given
            ),
            fix="draw the batch within the loop: for batch in dataset.",
        )


def leaked_validation(case: Case) -> Iterator[Violation]:
    for data in _pipelines(case, "validation"):
        same, compared = data.num_rows_of_training or 0, data.num_rows_compared
        is_loop = case.steps is not None and case.steps.kind not in ("fit", "train_on_batch")
        kinds = [each.kind for each in data.stages if each.reshuffles is not False]
        is_split_anew = "shuffle" in kinds and bool({"take", "skip"} & {*kinds})
        if compared >= 8 and same / compared >= 0.2:
            yield case.violation(
                data.where,
                f"{same} of {compared} rows of the validation data are in the training data.",
                fix="split once, before both: x[:n], x[n:], or take and skip on data that is not "
                "shuffled anew in every epoch (reshuffle_each_iteration=False).",
                # Few columns of categories have equal rows by themselves.
                # Loops draw from training data for other ends too, such as neighbours.
                severity=None
                if is_split_anew or (same / compared >= 0.9 and not is_loop)
                else Severity.HINT,
            )


def input_scale(case: Case) -> Iterator[Violation]:
    layers = {layer for model in case.facts.models if model.trains for layer in model.layers}
    training = case.pipeline("train")
    # What the first weights meet is known, but not where XLA compiles.
    given = [(each.where, each.values, each.kind) for each in case.facts.inputs if each.trains]
    if not given and training is not None:
        given = [(training.where, each, "") for each in training.inputs if not layers & _SCALING]
    are_same = all(values.min == values.max for _, values, _ in given)
    for where, values, kind in given:
        low, high = values.min, values.max
        if low is None or high is None or "Embedding" in layers:
            continue
        is_flat = kind == "Dense" and values.is_integral and values.shape[-1] >= 64 and high <= 255
        is_image = (len(values.shape) >= 4 or is_flat) and low >= 0
        most = max(abs(low), abs(high))
        what, fix, severity = "", "", None
        if are_same and math.prod(values.shape[1:]) > 4:
            what = f"all inputs are {low:g}."
            fix = "look at where the data is read and scaled: an array of integers stays one, "
            fix += "and x[:] = x / 255 is 0; x.astype('float32') / 255 is not."
        elif is_image and 128 <= most <= 65535:
            what = f"images of {_span(values)} are given to the model as they are."
            fix = "divide by 255., or begin the model with keras.layers.Rescaling(1 / 255)."
        elif is_image and 0 < most <= 1.5 / 255:
            what = f"images of {_span(values)} are scaled twice."
            fix = "divide by 255 once: in the data, or by a Rescaling layer of the model."
        elif not is_image and most >= 1000 and not values.is_integral:
            if "BatchNormalization" not in layers:
                what = f"inputs of {_span(values)} are given to the model as they are."
            fix = "subtract the mean and divide by the standard deviation of the training data, "
            fix += "such as by keras.layers.Normalization."
            severity = Severity.WARNING
        if what:
            evidence = f"inputs: shape {values.shape}, {_span(values)}, mean {_number(values.mean)}"
            yield case.violation(where, what, evidence, fix=fix, severity=severity)
    inputs = () if training is None else training.inputs
    pairs = [
        (data.where, learned, measured)
        for data in _pipelines(case, "validation")
        for learned, measured in zip(inputs, data.inputs, strict=False)
    ]
    taught = {each.layer: each.values for each in case.facts.inputs if each.trains}
    asked = [each for each in case.facts.inputs if not each.trains and each.layer in taught]
    pairs += [(each.where, taught[each.layer], each.values) for each in asked]
    for where, learned, measured in pairs:
        if _is_apart(learned, measured):
            yield case.violation(
                where,
                f"training inputs are {_span(learned)}, those of validation or prediction "
                f"{_span(measured)}.",
                why="The model is asked about inputs of another scale than it learned.",
                fix="scale both by the same function, with the training data's statistics.",
            )
            return


def _is_apart(learned: ValueRange, measured: ValueRange) -> bool:
    """Return whether values are of another scale, or far beside those that were learned."""
    low, high, least, most = learned.min, learned.max, measured.min, measured.max
    if low is None or high is None or least is None or most is None or least == most:
        return False
    sizes = sorted((max(-low, high), max(-least, most)))
    beside = max(least - high, low - most)
    # Images of -1 to 1, and of 0 to 1.
    signed = sorted((low, least))
    is_image = len(learned.shape) >= 4 and signed[0] < -0.9 and signed[1] >= 0
    is_image = is_image and all(0.9 < size <= 1.001 for size in sizes)
    return 20 * sizes[0] < sizes[1] or beside > 2 * (high - low) > 0 or is_image


def cached_changes(case: Case) -> Iterator[Violation]:
    for data in _pipelines(case, "train"):
        kinds = [each.kind for each in data.stages]
        for number, stage in enumerate(data.stages):
            if stage.kind == "map" and stage.is_random and "cache" in kinds[number:]:
                yield case.violation(
                    stage.where or data.where,
                    f"{stage.function or 'this map'} changes samples at random, and the cache "
                    "behind it keeps the first change of each.",
                    fix="call cache before this map.",
                )


def run_out(case: Case) -> Iterator[Violation]:
    for data in _pipelines(case, "train"):
        if data.num_missing:
            yield case.violation(
                data.where,
                "the data ends before the steps that fit was asked for.",
                f"an epoch lacks {data.num_missing} batches",
                fix="leave steps_per_epoch out, or repeat the data: dataset.repeat().",
            )


_SPARSE = ("sparsecategoricalaccuracy", "sparsetopkcategoricalaccuracy")
_ONE_HOT = ("categoricalaccuracy", "topkcategoricalaccuracy")
_SQUARES = ("mse", "mae", "meansquarederror", "meanabsoluteerror", "huber")
_BY_KERAS = "metrics=['accuracy'], which Keras chooses by the loss and the shapes."


def metric_mismatch(case: Case) -> Iterator[Violation]:
    compiled = next((each.where for each in case.facts.calls if each.kind == "compile"), None)
    # A loss of the program may call one of Keras.
    inner = next((each.name for each in _losses(case) if "categorical" in each.name), "")
    # Squares serve as the loss of a classifier too.
    are_classes = any(
        each.labels is not None and each.labels.is_integral and not _leaves(each.labels, 0, 1)
        for each in _losses(case)
    )
    for model in case.facts.models:
        loss = model.loss or inner
        for metric in model.metrics if model.trains else ():
            why, fix = _why_wrong(loss, metric, are_classes)
            if why:
                yield case.violation(
                    compiled or model.where,
                    f"the metric {metric} does not go with the loss {loss}: {why}.",
                    fix=fix,
                )
    # In a loop of the program, it is known what a metric is given.
    for metric in case.facts.metrics:
        numbers = "sparse_categorical" * (len(metric.label_shape) < len(metric.output_shape))
        takes_logits = bool(metric.takes_logits) and metric.kind == "BinaryAccuracy"
        logits = "binary_crossentropy from_logits" * takes_logits
        why, fix = _why_wrong(numbers or logits, metric.kind, True)
        # Accuracy compares what the program has rounded, or taken the greatest of.
        if why and (metric.kind != "Accuracy" or metric.takes_logits is not None):
            yield case.violation(
                metric.where,
                f"the metric {metric.name} does not go with what it is given: {why}.",
                f"labels: shape {metric.label_shape}, outputs: shape {metric.output_shape}",
                fix=fix.replace(_BY_KERAS, "keras.metrics.SparseCategoricalAccuracy()."),
            )


def _why_wrong(loss: str, metric: str, are_classes: bool) -> tuple[str, str]:
    """Return why a metric does not go with a loss, and one that does; empty if it goes."""
    plain, short = (text.lower().replace("_", "") for text in (loss, metric))
    sparse, binary = "sparsecategorical" in plain, "binarycrossentropy" in plain
    is_accuracy = short in ("acc", "accuracy", "binaryaccuracy")
    if metric == "Accuracy":
        return "it counts outputs that are equal to the labels to the last bit", _BY_KERAS
    if sparse and short in _ONE_HOT:
        return "it expects one-hot labels, and they are class numbers", _BY_KERAS
    if "categoricalcrossentropy" in plain and not sparse and short in _SPARSE:
        return "it expects class numbers, and labels are one-hot", _BY_KERAS
    if binary and short in (*_SPARSE, *_ONE_HOT):
        return "it takes the greatest of the outputs, and there is one", _BY_KERAS
    if plain in _SQUARES and is_accuracy and not are_classes:
        return "labels of a regression are no classes", "metrics=['mae']."
    if binary and "fromlogits" in plain and is_accuracy:
        better = "keras.metrics.BinaryAccuracy(threshold=0.0)."
        return "outputs are logits (from_logits=True), and its threshold is 0.5", better
    return "", ""


def metric_not_reset(case: Case) -> Iterator[Violation]:
    for model in case.facts.models:
        if model.trains and model.hidden_metrics:
            names = ", ".join(f"self.{name}" for name in model.hidden_metrics)
            yield case.violation(
                model.where,
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
            yield case.violation(
                metric.where,
                f"the metric {metric.name} is never reset.",
                f"{metric.num_epochs} epochs, 0 resets",
                fix=f"call {metric.name}.reset_state() where an epoch begins.",
            )
