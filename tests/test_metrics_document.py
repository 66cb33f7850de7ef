"""``docs/metrics.md`` has every metric, as the registry knows it, and other documents name none that is not there.

``python -m tests.test_metrics_document --write`` writes its table anew.
"""

import re
import sys

from discovery.metrics import ANY, Counters, Metric
from tests.documents import PROJECT, read, replaced

PAGE = "docs/metrics.md"


def table() -> str:
    """All metrics as Markdown."""
    head = "| metric | type | labels | what it says |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(f"| {' | '.join(_cells(metric))} |" for metric in Counters())


def _cells(metric: Metric) -> list[str]:
    labels = [f"`{name}`" + (f": {', '.join(words)}" if words != ANY else "") for name, words in metric.labels.items()]
    return [f"`{metric.title}`", metric.kind, "; ".join(labels), metric.documentation]


def with_table(text: str) -> str:
    return replaced(text, "metrics", table())


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    text = read(PAGE)
    assert text == with_table(text), "run: .venv/bin/python -m tests.test_metrics_document --write"


def test_documents_name_no_metric_that_is_not_there() -> None:
    known = {metric.title for metric in Counters()}
    for page in [
        PROJECT / "README.md",
        PROJECT / "charts/discovery/README.md",
        *sorted((PROJECT / "docs").glob("*.md")),
    ]:
        named = set(re.findall(r"\bdiscovery_[a-z_]+", page.read_text(encoding="utf-8"))) - {"discovery_"}
        assert {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in named} <= known, page.name


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_metrics_document --write")
    (PROJECT / PAGE).write_text(with_table(read(PAGE)), encoding="utf-8")
