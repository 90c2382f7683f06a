"""What of the loops' tests is left to the long campaign, so that the default run stays short."""

from __future__ import annotations

import pytest

LONG_FILES = frozenset({
    "test_loop_batches.py",
    "test_loop_forms.py",
    "test_loop_losses.py",
    "test_loop_metrics.py",
    "test_loop_models.py",
    "test_loop_optimizers.py",
    "test_loop_saving.py",
    "test_loop_shares.py",
    "test_loop_tapes.py",
    "test_own_steps.py",
})  # fmt: skip
# Of these files, so much is in every run.
USUAL = frozenset({
    "test_a_loop_over_the_dataset_in_a_function",
    "test_an_optimizer_in_a_condition_is_refused",
    "test_batches_made_for_each_replica",
    "test_clipping",
    "test_convolutions_without_samples",
    "test_eager_mode",
    "test_evaluate_and_predict",
    "test_fit",
    "test_gradient_accumulation",
    "test_loss_scale",
    "test_masks",
    "test_metrics",
    "test_model_losses",
    "test_moving_average_of_weights",
    "test_reductions_with_sample_weights",
    "test_scaled_regularization",
    "test_shares_change_without_retracing",
    "test_the_replicas_function_is_a_tf_function",
    "test_two_optimizers_over_two_parts",
    "test_where_it_is_made",
})  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = getattr(item, "originalname", item.name)
        if item.path.name in LONG_FILES and name not in USUAL:
            item.add_marker(pytest.mark.long)
