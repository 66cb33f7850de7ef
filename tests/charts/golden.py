"""What the chart renders for three main set-ups, as files: ``python -m tests.charts.golden --write``.

A change of a template then shows in the diff of a commit what it does to a cluster. ``goldens/`` has the present chart,
``released/`` what the last released version rendered for the same values: written at a release, with
``python -m tests.charts.golden --release``, and compared with what an upgrade may not change.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from tests.charts.engine import CHART, Engine

FOLDER = Path(__file__).parent
GOLDENS = FOLDER / "goldens"
RELEASED = FOLDER / "released"

SETUPS: dict[str, dict[str, Any]] = {
    # One line of a terminal: a trial, with the chart's own Redis. The password is given, since a generated one differs.
    "trial": {"redis": {"embedded": {"password": "trial"}}},
    # A Redis of one's own, reached by TLS and behind Sentinel, scaled and watched.
    "production": {
        "redis": {
            "url": "rediss+sentinel://discovery@sentinel-0:26379,sentinel-1:26379/mymaster/0",
            "existingSecret": "redis",
            "caKey": "ca.crt",
            "sentinel": {"user": "discovery", "existingSecret": "sentinel"},
        },
        "autoscaling": {"enabled": True},
        "networkPolicy": {"enabled": True},
        "ingress": {"enabled": True, "className": "nginx", "hosts": [{"host": "discovery.example.com"}]},
        "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    },
    # Many clusters, through Karmada, of which the Service itself is exported too.
    "clusters": {
        "replicaCount": 3,
        "poolDiscovery": "karmada",
        "redis": {"url": "redis+cluster://redis-0:6379,redis-1:6379", "existingSecret": "redis"},
        "karmada": {"kubeconfigSecret": "karmada", "contexts": ["karmada-apiserver"]},
        "router": {"namespace": "routing", "service": "global-router"},
        "serviceExport": {"enabled": True},
        "config": {"leaseDurationSecs": 30, "heartbeatIntervalSecs": 10, "storeTimeoutMs": 3000},
    },
}


def rendered(engine: Engine, setup: str) -> str:
    """Everything that the chart renders for a set-up, by template, as ``helm template`` prints it."""
    texts = engine.render(yaml.safe_dump(SETUPS[setup]), chart=CHART)
    parts = [f"# Source: {path}\n{text.strip()}\n" for path, text in sorted(texts.items()) if text.strip()]
    return "---\n" + "---\n".join(part for part in parts if "NOTES.txt" not in part.partition("\n")[0])


def main(words: list[str]) -> None:
    folders = {("--write",): [GOLDENS], ("--release",): [GOLDENS, RELEASED]}.get(tuple(words))
    if folders is None:
        sys.exit("usage: python -m tests.charts.golden --write | --release")
    engine = Engine()
    for setup in SETUPS:
        for folder in folders:
            folder.mkdir(exist_ok=True)
            (folder / f"{setup}.yaml").write_text(rendered(engine, setup))
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1:])
