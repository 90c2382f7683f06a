"""The page of a report in a browser: numbers, requests, keyboard, phone, dark, names of foes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.chromium import Page, chromium, executable
from evener.recording.reading import read_records, summarise
from evener.report.page import render_page
from unit.recording.samples import FINDING, SPANS, diagnosis, write_record

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(executable() is None, reason="no Chromium: apt-get install chromium"),
]
FOE = "<script>window.foe = 1</script><img src=http://127.0.0.1:9/x onerror='window.foe = 2'>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


def written(folder: Path, *others: Path) -> Path:
    file = folder.parent / "page.html"
    file.write_text(render_page([read_records(each) for each in (folder, *others)]))
    return file


def opened(page: Page, file: Path, *, width: int = 1400, dark: bool = False) -> None:
    page.problems.clear()
    page.requests.clear()
    page.open(file, width=width, dark=dark)
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith("data:")] == [file.as_uri()]


def figures(page: Page) -> dict[str, str]:
    code = "Object.fromEntries([...document.querySelectorAll('.figures div')].map("
    return page.evaluate(code + "d => [...d.children].map(c => c.innerText)))")


@pytest.mark.parametrize("width", [375, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_its_width_light_and_dark(
    page: Page, tmp_path: Path, width: int, dark: bool
) -> None:
    given = diagnosis({**FINDING, "evidence": ["x" * 300], "location": "train/" * 60})
    opened(page, written(write_record(tmp_path / "run", diagnosis=given)), width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (light == "rgb(255, 255, 255)") is not dark


def test_the_numbers_are_those_of_the_record(page: Page, tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    (record,) = read_records(folder)
    summary = summarise(record)
    opened(page, written(folder))
    shown = figures(page)
    assert shown["samples"] == f"{summary.num_samples:,}" == "900"
    assert shown["samples per second"] == "100"
    assert shown["a step"] == "5.0 ms"
    assert shown["loss"] == f"{summary.losses['loss']:.4g}"
    row = page.evaluate("document.querySelector('.fractions tr').innerText.split(/\\s+/).join(' ')")
    parts = ["computes 20.0 %", "updates 10.0 %", "copies and sums 10.0 %"]
    assert row == " ".join(["cpu:0", *parts, "waits for cpu:1 60.0 %"])
    bars = "[...document.querySelectorAll('.row svg')[0].querySelectorAll('rect')]"
    assert page.evaluate(f"{bars}.map(b => +b.getAttribute('width'))") == [200, 600, 100, 100]
    told = page.evaluate(f"{bars}.map(b => b.querySelector('title').textContent)")
    assert told[1].startswith("waits for cpu:1: 600 ")


def test_every_picture_is_reached_by_the_keyboard_and_has_a_label(
    page: Page, tmp_path: Path
) -> None:
    opened(page, written(write_record(tmp_path / "run")))
    page.press_tab()
    assert page.evaluate("document.activeElement.className") == "skip"
    labels = []
    for _ in range(30):
        page.press_tab()
        labels.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
    pictures = page.evaluate(
        "[...document.querySelectorAll('svg')].map(s => s.getAttribute('aria-label'))"
    )
    assert len(pictures) > 4
    assert None not in pictures
    assert set(pictures) <= set(labels)


def test_names_of_foes_are_text(page: Page, tmp_path: Path) -> None:
    folder = write_record(
        tmp_path / FOE.replace("/", "_"),
        command=["evener", FOE],
        events=[{"time": 1.0, "event": FOE, "text": FOE}, {"time": 2.0, "event": "gathered",
                 "text": FOE}],
        diagnosis=diagnosis({name: [FOE] if name == "evidence" else FOE for name in FINDING}),
    )  # fmt: skip
    losses = (folder / "losses.jsonl").read_text()
    (folder / "losses.jsonl").write_text(losses.replace('"loss"', '"</style><script>foe=3"'))
    steps = (folder / "steps.jsonl").read_text()
    (folder / "steps.jsonl").write_text(steps.replace("cpu:1", '\\"><script>foe=4</script>'))
    opened(page, written(folder))
    assert page.evaluate("typeof window.foe") == "undefined"
    assert page.evaluate("document.querySelectorAll('script, img').length") == 0
    assert FOE in page.evaluate("document.body.innerText")


def test_a_crashed_run_is_shown_with_what_is_missing(page: Page, tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", events=(), num_lines=0, num_steps=0)
    (folder / "losses.jsonl").unlink()
    opened(page, written(folder))
    assert figures(page)["state"] == "no end: it runs, or was killed"
    text = page.evaluate("document.body.innerText")
    assert "losses.jsonl is not there." in text
    assert "No step was recorded." in text


def test_two_runs_stand_side_by_side_with_what_changed(page: Page, tmp_path: Path) -> None:
    first = write_record(tmp_path / "first")
    other = write_record(tmp_path / "other", command=["evener", "run", "--shares", "3,1", "t.py"])
    opened(page, written(first, other))
    assert page.evaluate("document.querySelectorAll('article').length") == 2
    tables = "[...document.querySelectorAll('.differences')].map(t => t.innerText)"
    settings, both = page.evaluate(tables)
    assert "evener run --shares 3,1 t.py" in settings
    assert "devices" not in settings  # they are the same
    assert "1 times" in both


def test_many_steps_of_64_devices_are_a_small_page_that_opens_soon(
    page: Page, tmp_path: Path
) -> None:
    devices = [f"gpu:{k}" for k in range(64)]
    parts = [{**SPANS[0], "device": d, "replica": k} for k, d in enumerate(devices)]
    updates = [{"device": d, "kind": "update", "after": list(range(64))} for d in devices]
    folder = write_record(
        tmp_path / "run",
        devices=devices,
        num_lines=2000,
        spans=[*parts, *updates],
        times=[(0, 900)] * 64 + [(950, 1000)] * 64,
        num_steps=400,
    )
    file = written(folder)
    assert file.stat().st_size < 5_000_000
    opened(page, file)
    took = page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    assert took < 2000
    assert page.evaluate("document.querySelectorAll('.row').length") == 64
