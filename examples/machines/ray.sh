#!/bin/bash
# Trains on this machine and those that are named, as a Ray cluster: ray.sh HOST...
# evener[ray] and this folder are on all of them, under the same paths, and ssh reaches them.
set -eu
cd "$(dirname "$0")"
head=$(hostname --ip-address)
stop() {
    for host in "$@"; do ssh "$host" ray stop || true; done
    ray stop
}
trap 'stop "$@"' EXIT
ray start --head --port=6379 --disable-usage-stats
for host in "$@"; do
    ssh "$host" ray start "--address=$head:6379" --disable-usage-stats
done
evener launch --ray "$head:6379" --workers $(($# + 1)) --ray-resources CPU=4,GPU=2 train.py /shared/run
