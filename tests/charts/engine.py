"""Helm's own engine as a process beside the tests, one for each test session.

``Engine`` is what tests call; ``python -m tests.charts.engine`` is the process. It is a process of its own since the
engine is a Go program in a library: its runtime has threads and signal handlers, which tests of signals and children
must not meet. One line of JSON asks, one answers. Values go in as the text of a values file, read by Helm: numbers then
arrive in templates as they do from ``helm install -f``, where F48 lives.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.documents import PROJECT

CHART = PROJECT / "charts" / "discovery"


class Refused(Exception):
    """Helm refused the values, or a template did; the text is what a user reads."""


class Engine:
    """Asks the process. Not to be shared between threads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.charts.engine"],
            cwd=PROJECT,
            env=os.environ | {"GOGC": "1000"},  # a third of its time would go into collecting a few megabytes
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def ask(self, call: str, **arguments: Any) -> Any:
        """What Helm answers; ``Refused`` with its words where it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Helm's process ended with {self._process.wait(20)}"
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer["result"]

    def render(self, values: str = "", *, chart: Path = CHART, name: str = "discovery", **options: Any) -> Any:
        """The text of every template of the chart, by path, as ``helm template -f`` would make it."""
        options = {"name": name, "namespace": "prod", **options}
        return self.ask("render", chart=str(chart), values=values, options=options)

    def lint(self, values: str = "", *, chart: Path = CHART) -> list[dict[str, Any]]:
        """The findings of ``helm lint --strict``: ``severity`` (2 is a warning, 3 an error), ``path``, ``error``."""
        found = self.ask("lint", chart=str(chart), values=values)
        return [*found["messages"], *({"severity": 3, "path": "", "error": error} for error in found["errors"])]


# ---- the process


class Helm:
    """The calls that the process answers."""

    def __init__(self) -> None:
        import helm_python

        self._helm = helm_python
        self._charts: dict[str, Any] = {}
        self._clusters: dict[str, Any] = {}

    def render(self, chart: str, values: str, options: dict[str, Any]) -> Any:
        if chart not in self._charts:
            self._charts[chart] = self._helm.Chart.load(chart)
        return self._charts[chart].render(self._values(values), **options)

    def lint(self, chart: str, values: str) -> Any:
        return self._helm.lint(chart, self._values(values), strict=True, namespace="prod")

    def metadata(self, chart: str) -> Any:
        with self._helm.Chart.load(chart) as loaded:
            return loaded.metadata

    def release(self, action: str, kubeconfig: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        """An action on releases, such as ``install``, with the cluster of a kubeconfig.

        Helm's records stay in this process: in a cluster they are Secrets, sent as protobuf.
        """
        if kubeconfig not in self._clusters:
            self._clusters[kubeconfig] = self._helm.Config(
                kubeconfig_path=kubeconfig, namespace="prod", storage_driver="memory", burst_limit=1000, qps=1000
            )
        return getattr(self._clusters[kubeconfig], action)(*arguments, **options)

    def set_values(self, text: str) -> Any:
        """The values that the word behind ``--set`` gives."""
        return self._helm.parse_set_string(text)

    def _values(self, text: str) -> dict[str, Any]:
        return self._helm.values_from_yaml(text) if text.strip() else {}

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        call = getattr(self, question.pop("call"))
        try:
            return {"result": call(**question)}
        except self._helm.HelmError as error:
            return {"refused": str(error)}


def main() -> None:
    # What the library prints goes to standard error, so that answers stay alone on standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    helm = Helm()
    for line in sys.stdin:
        answers.write(json.dumps(helm.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
