from __future__ import annotations

from pathlib import Path

from evener.devices.machine import read_host


def test_linux_is_read(tmp_path: Path) -> None:
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n", encoding="utf-8")
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal:  2048 kB\nMemFree: 7 kB\nMemAvailable:  1024 kB\n")
    host = read_host(cpu, memory)
    assert host.name == "Some CPU @ 3 GHz"
    assert (host.memory_total_bytes, host.memory_free_bytes) == (2048 * 1024, 1024 * 1024)
    assert host.num_cores >= 1


def test_system_that_does_not_say(tmp_path: Path) -> None:
    host = read_host(tmp_path / "none", tmp_path / "none")
    assert host.name
    assert host.memory_total_bytes is None
