"""A worker's part in a job, as the environment names it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evener.errors import RunError
from evener.workers.job import Job, job_from_environment

ADDRESSES = ["127.0.0.1:5000", "127.0.0.1:5001", "127.0.0.1:5002"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the key of this user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cache" / "evener" / "secret"


def config(task: Any = None, **cluster: Any) -> dict[str, str]:
    """Return an environment with ``TF_CONFIG``."""
    found = {"cluster": cluster or {"worker": ADDRESSES}}
    found["task"] = {"type": "worker", "index": 1} if task is None else task
    return {"TF_CONFIG": json.dumps(found)}


def launched(**entries: Any) -> dict[str, str]:
    """Return an environment with ``EVENER_JOB``."""
    job = {"index": 1, "count": 3, "coordinator": "127.0.0.1:7000", "host": "127.0.0.1"}
    return {"EVENER_JOB": json.dumps({**job, **entries})}


def test_a_process_alone_has_no_job() -> None:
    assert job_from_environment({}) is None
    assert job_from_environment({"TF_CONFIG": " "}) is None
    assert job_from_environment(config(task={"type": "worker"}, worker=ADDRESSES[:1])) is None
    assert job_from_environment({"TF_CONFIG": "{}"}) is None


def test_workers_of_tf_config() -> None:
    tasks = ({"type": "worker", "index": index} for index in range(3))
    jobs = [job for task in tasks if (job := job_from_environment(config(task=task)))]
    assert [job.index for job in jobs] == [0, 1, 2]
    assert [job.hosts_coordinator for job in jobs] == [True, False, False]
    # The first port behind that of worker 0 which no worker has.
    assert {job.coordinator for job in jobs} == {"127.0.0.1:5003"}
    assert {job.addresses for job in jobs} == {tuple(ADDRESSES)}
    assert len({job.secret for job in jobs}) == 1


def test_a_chief_is_worker_0() -> None:
    cluster = {"chief": ADDRESSES[:1], "worker": ADDRESSES[1:]}
    chief = job_from_environment(config({"type": "chief", "index": 0}, **cluster))
    second = job_from_environment(config({"type": "worker", "index": "1"}, **cluster))
    assert chief is not None and second is not None
    assert (chief.index, second.index, second.count) == (0, 2, 3)


def test_a_launched_job_is_read_as_it_was_written() -> None:
    job = Job(
        index=2,
        count=4,
        coordinator="host:80",
        secret=b"secret",
        hosts_coordinator=False,
        host="other",
        incarnation=3,
        heartbeat_seconds=1.5,
        start_seconds=20.0,
        patience_seconds=30.0,
    )
    assert job_from_environment(job.to_environment()) == job


def test_settings_of_the_environment() -> None:
    addresses = ["10.0.0.1:1", "10.0.0.2:1"]
    settings = {
        "EVENER_HEARTBEAT_SECONDS": "2.5",
        "EVENER_COORDINATOR": "127.0.0.1:9",
        "EVENER_PATIENCE_SECONDS": "900",
        # It lets workers of several machines join.
        "EVENER_JOB_SECRET": "word",
    }
    job = job_from_environment({**config(worker=addresses), **settings})
    assert job is not None
    assert (job.heartbeat_seconds, job.patience_seconds) == (2.5, 900.0)
    assert (job.coordinator, job.secret) == ("127.0.0.1:9", b"word")


@pytest.mark.parametrize(
    ("environ", "code", "named"),
    [
        ({"TF_CONFIG": "{"}, "RUN-050", "TF_CONFIG"),
        ({"EVENER_JOB": "[]"}, "RUN-050", "EVENER_JOB"),
        (config(task={"index": 0}), "RUN-051", "TF_CONFIG.task.type"),
        (config(task={"type": "worker"}), "RUN-051", "TF_CONFIG.task.index"),
        (config(task={"type": "worker", "index": 0}, worker="a:1"), "RUN-051", "cluster.worker"),
        (config(task={"type": "cook", "index": 0}), "RUN-051", "cook"),
        (launched(index="1"), "RUN-051", "EVENER_JOB.index"),
        (launched(number=1), "RUN-051", "EVENER_JOB.number"),
        (launched(count=0), "RUN-051", "EVENER_JOB.count"),
        (launched(host=""), "RUN-051", "EVENER_JOB.host"),
        ({**config(), "EVENER_INCARNATION": "-1"}, "RUN-051", "EVENER_INCARNATION"),
        (config(ps=["a:1"], worker=ADDRESSES), "RUN-052", "ps"),
        (config(task={"type": "evaluator", "index": 0}), "RUN-052", "evaluator"),
        (config(task={"type": "worker", "index": 3}), "RUN-053", "TF_CONFIG.task.index"),
        (launched(index=3), "RUN-053", "EVENER_JOB.index"),
        (config(worker=["127.0.0.1:1", "127.0.0.1"]), "RUN-054", "127.0.0.1"),
        (launched(coordinator="host:port"), "RUN-054", "host:port"),
        (config(worker=["127.0.0.1:1", "127.0.0.1:1"]), "RUN-055", "127.0.0.1:1"),
        ({**config(), "EVENER_START_SECONDS": "soon"}, "RUN-056", "EVENER_START_SECONDS"),
        ({**launched(), "EVENER_PATIENCE_SECONDS": "0"}, "RUN-056", "EVENER_PATIENCE_SECONDS"),
        ({**launched(), "EVENER_EXCHANGE": "tensorflaw"}, "RUN-051", "Did you mean 'tensorflow'?"),
        (launched(exchange="ring"), "RUN-051", "auto, mesh, tensorflow"),
        (launched(heartbeat_seconds=0), "RUN-056", "EVENER_JOB.heartbeat_seconds"),
        (config(worker=["10.0.0.1:1", "10.0.0.2:1"]), "RUN-057", "EVENER_JOB_SECRET"),
    ],
)
def test_what_is_malformed_is_named(environ: dict[str, str], code: str, named: str) -> None:
    with pytest.raises(RunError) as caught:
        job_from_environment(environ)
    assert caught.value.code == code
    assert named in str(caught.value)


def secret_of(environ: dict[str, str]) -> bytes:
    job = job_from_environment(environ)
    assert job is not None
    return job.secret


def test_workers_of_one_machine_share_a_key_that_only_their_user_can_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(secret_of, [config(task={"type": "worker", "index": 0})] * 4))
    assert len(found) == 1
    assert found == {secret_of(config())}
    assert secret_of(config(worker=ADDRESSES[:2])) not in found
    with monkeypatch.context() as patch:
        # Another worker makes the key at the same time.
        patch.setattr(Path, "exists", lambda path: False)
        assert found == {secret_of(config())}
    (key,) = folder.iterdir()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, key)] == [0o700, 0o600]
    key.unlink()
    assert secret_of(config()) not in found  # Of no address, which all may know.


def link_elsewhere(folder: Path) -> None:
    (folder / "key").rename(folder.parent / "key")
    (folder / "key").symlink_to(folder.parent / "key")


def take_away(folder: Path) -> None:
    (folder / "key").unlink()
    folder.rmdir()
    folder.touch()


HARMS: dict[str, Callable[[Path], object]] = {
    "others may read it": lambda folder: (folder / "key").chmod(0o640),
    "others may write to its folder": lambda folder: folder.chmod(0o755),
    "it is a link": link_elsewhere,
    "it is empty": lambda folder: (folder / "key").write_bytes(b""),
    "its folder is a file": take_away,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_key_that_others_may_know_is_not_used(
    harm: Callable[[Path], object], folder: Path
) -> None:
    secret_of(config())
    harm(folder)
    with pytest.raises(RunError, match="EVENER_JOB_SECRET") as caught:
        job_from_environment(config())
    assert caught.value.code == "RUN-057"
    assert str(folder) in caught.value.why


def test_a_key_of_another_user_and_without_a_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_of(config())
    own = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: own + 1)
        with pytest.raises(RunError, match="another user"):
            job_from_environment(config())

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(RunError, match="RUN-057"):
        job_from_environment(config())
