from __future__ import annotations

import json

from evener.base.terminal import text_of
from evener.clusters import model_named
from evener.planner.prediction import estimate_memory
from evener.report.estimated import CARDS, Estimated, print_estimated, usable_bytes
from unit.planner.by_hand import MODEL

TWO_SAMPLES = """\
Memory of two on one device, a step of 2 samples
 micro-batches         1       2
─────────────────────────────────
 weights           160 B   160 B
 optimizer state   320 B   320 B
 other variables    10 B    10 B
 gradients         160 B   320 B
 activations        24 B     4 B
 samples             2 B     2 B
 workspace           6 B     5 B
 total             682 B   821 B

With activations recomputed
 micro-batches       1       2
───────────────────────────────
 activations       6 B     3 B
 workspace        18 B     9 B
 total           676 B   824 B

Largest batch by memory of a device
 memory     usable    at once   recomputed   8 micro-batches       both
────────────────────────────────────────────────────────────────────────
 8 GB      7.0 GiB   >524,288     >524,288          >524,288   >524,288
"""


def shown(found: Estimated, width: int = 100) -> str:
    return text_of(lambda console: print_estimated(found, console), width)


def test_the_whole_text() -> None:
    text = shown(Estimated(model=MODEL, batch_size=2))
    assert text.startswith(TWO_SAMPLES)


def test_no_more_micro_batches_than_samples() -> None:
    found = Estimated(model=MODEL, batch_size=6, num_devices=2)
    assert sorted({way.num_micro_batches for way in found.ways()}) == [1, 2]
    assert "on each of 2 devices, a step of 6 samples" in shown(found)
    assert "a step of 1 sample\n" in shown(Estimated(model=MODEL, batch_size=1))


def test_weights_of_others_are_told_where_there_are_others() -> None:
    assert "weights of others" not in shown(Estimated(model=MODEL, batch_size=2))
    assert "weights of others" in shown(Estimated(model=MODEL, batch_size=2, num_devices=2))


def test_batches_that_do_not_fit_and_that_always_fit() -> None:
    large = shown(Estimated(model=model_named("gpt3-13b").costs, batch_size=8))
    assert [line.split()[-1] for line in large.splitlines() if " GB " in line] == ["-"] * len(CARDS)
    small = shown(Estimated(model=MODEL, batch_size=8))
    assert ">524,288" in small


def test_a_narrow_terminal_loses_no_figure() -> None:
    text = shown(Estimated(model=MODEL, batch_size=8), width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text
    assert " total             778 B   854 B   836 B   827 B\n" in text


def test_json_holds_all_figures() -> None:
    model = model_named("bert-large").costs
    found = json.loads(Estimated(model=model, batch_size=32, num_devices=2).to_json())
    assert (found["model"], found["batch_size"], found["num_devices"]) == ("bert-large-512", 32, 2)
    first = found["memory"][0]
    assert (first["num_micro_batches"], first["recompute"]) == (1, False)
    memory = estimate_memory(model, 32, num_devices=2)
    assert first["weights_bytes"] == memory.weights
    assert first["total_bytes"] == memory.total
    assert len(found["memory"]) == 8
    cards = {card["memory_gib"]: card for card in found["largest_batches"]}
    assert tuple(cards) == CARDS
    assert cards[24]["usable_bytes"] == usable_bytes(24) == 23 * 2**30
    at_once, recomputed, split, both = (batch["batch_size"] for batch in cards[24]["batches"])
    assert at_once < recomputed < both
    assert at_once < split < both
