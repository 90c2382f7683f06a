from __future__ import annotations

from evener.recording.reading import Activity, activities, time_of


def span(device: str, *after: int, kind: str = "forward") -> dict[str, object]:
    return {"device": device, "kind": kind, "after": list(after)}


def found(spans: list[dict[str, object]], *times: tuple[int, int]) -> dict[str, list[tuple]]:
    step = {"begin": [begin for begin, _ in times], "end": [end for _, end in times]}
    return {
        device: [(a.kind, round(a.begin * 1e6), round(a.end * 1e6), a.other) for a in row]
        for device, row in activities(spans, step).items()
    }


def test_a_stage_waits_for_the_stage_before_it_and_the_first_one_for_the_last() -> None:
    rows = found([span("a"), span("b", 0)], (0, 10), (12, 30))
    assert rows == {
        "a": [("forward", 0, 10, ""), ("wait", 10, 30, "b")],
        "b": [("wait", 0, 10, "a"), ("copy", 10, 12, "a"), ("forward", 12, 30, "")],
    }


def test_who_came_last_is_waited_for() -> None:
    spans = [span("a"), span("b"), span("c"), span("a", 0, 1, 2, kind="update")]
    rows = found(spans, (0, 10), (0, 20), (0, 50), (50, 55))
    assert rows["a"][1] == ("wait", 10, 50, "c")


def test_after_its_own_result_a_device_waits_for_nobody() -> None:
    spans = [span("a"), span("b"), span("a", 0, 1, kind="update")]
    assert found(spans, (0, 40), (0, 20), (45, 50))["a"][1] == ("idle", 40, 45, "")


def test_a_result_that_was_read_late_ends_a_wait_at_the_task() -> None:
    rows = found([span("a"), span("b", 0)], (0, 30), (20, 40))
    assert rows["b"][0] == ("wait", 0, 20, "a")
    assert rows["a"] == [("forward", 0, 20, ""), ("wait", 20, 40, "b")]


def test_tasks_that_overlap_count_once() -> None:
    row = [Activity(kind="forward", begin=0, end=4), Activity(kind="update", begin=2, end=6)]
    time = time_of(row, 10)
    assert (time.compute, time.update, time.length) == (4, 2, 10)


def test_results_of_other_workers_are_waited_for_with_their_exchange() -> None:
    spans = [span("a"), {**span("a", 0, kind="update"), "joins": True}]
    assert found(spans, (0, 10), (30, 35))["a"][1] == ("wait", 10, 30, "other workers")
