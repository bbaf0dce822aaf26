#!/bin/bash
# Verify acme.py on 8 devices of each host:   mkdir -p records && HOSTS="lab1 lab2" ./acme-ray.sh
# The folder, and the environment with the suite and Ray, have the same paths on all hosts.
set -euo pipefail

address=$(hostname -I | cut -d ' ' -f 1):${PORT:-6379}
ray=$(command -v ray)
export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0 # a judge that is nice waits for whatever else the host does

# the cluster lasts as long as this process: hosts leave a minute after its head has ended
"$ray" start --head --block --port "${address#*:}" --num-cpus 0 --include-dashboard false &
head=$!
trap 'kill $head; wait $head || true' EXIT
until "$ray" health-check --address "$address" 2> /dev/null; do
    kill -0 $head
    sleep 1
done
for host in $HOSTS; do
    ssh "$host" "RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0 $ray start --address $address --include-log-monitor false --resources '{\"acme_x1\": 8}'"
done

conformance run acme.py --level full --ray "$address" --resource acme_x1 --records records/all.jsonl --resume
