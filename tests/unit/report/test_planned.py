"""The printed cost of a plan, on a terminal of 80 columns."""

from __future__ import annotations

import io
import re

from rich.console import Console

from evener.clusters import cluster_named, datasheet_profile, model_named
from evener.plan import Plan
from evener.planner import check_plan
from evener.report.planned import print_planned

DEVICES = ("worker:0/gpu:0", "worker:0/gpu:1", "worker:0/gpu:2", "worker:1/gpu:0")


def printed(width: int, num_samples: int = 64) -> list[str]:
    profile = datasheet_profile(model_named("resnet-50"), cluster_named("rtx3090-3-1"))
    out = io.StringIO()
    planned = check_plan(Plan.data_parallel(DEVICES), profile, num_samples)
    print_planned(planned, Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_no_line_is_wider_than_the_terminal_and_no_row_is_broken() -> None:
    lines = printed(80)
    assert max(len(line.rstrip()) for line in lines) <= 80
    for device in DEVICES:
        (row,) = [line for line in lines if re.match(rf" {device} +\[", line)]
        assert re.fullmatch(r".*\[[#fgaw ]{16}\] +[\d.]+ [KMG]iB +[\d.]+ GiB +\w.*", row.rstrip())


def test_a_plan_that_fills_its_devices_has_no_margin() -> None:
    assert "No margin" not in " ".join(printed(80))
    lines = printed(60, 2200)
    start = next(number for number, line in enumerate(lines) if line.startswith("No margin"))
    assert "worker:0/gpu:0 to 9" in " ".join(lines[start : start + 3])
    assert max(map(len, lines[start : start + 5])) <= 60


def test_wider_terminals_have_longer_bars() -> None:
    assert any(re.search(r"\[[#fgaw ]{24}\]", line) for line in printed(120))


def test_the_legend_names_what_a_reader_knows() -> None:
    assert "f weights of other devices" in " ".join(printed(120))
