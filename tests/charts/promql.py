"""PromQL as far as the chart uses it, held against the metrics that the program has.

Selectors, modifiers and functions are read. What is not understood is a fault, so that nothing passes unread.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector

from discovery.metrics import ANY, Counters, Metric

TARGET = {"namespace", "job", "pod", "instance"}
"""Labels that Prometheus gives what it scrapes."""

FUNCTIONS = {
    *("absent", "changes", "clamp_max", "count", "histogram_quantile", "increase", "max", "min", "rate", "sum", "time"),
}
WORDS = {"and", "or", "unless", "bool", "by", "ignoring", "on", "group_left", "group_right", "without"}
WITH_LABELS = {"by", "ignoring", "on", "group_left", "group_right", "without"}

_token = re.compile(
    r"""(?P<space>\s+)|(?P<number>[0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"""
    r"""|(?P<braces>\{[^{}]*\})|(?P<range>\[(?:[0-9]+[smhd]|\$__rate_interval)\])|(?P<sign>==|!=|>=|<=|[-+*/%<>(),])"""
)
_matcher = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*(?:,|$)')


class Selector(NamedTuple):
    """A metric as it is asked for, and what its labels must be."""

    name: str
    matchers: dict[str, str]


class Expression(NamedTuple):
    """What one expression asks for, and the labels that it groups or matches by."""

    selectors: list[Selector]
    labels: set[str]


def tokens(expr: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(expr):
        found = _token.match(expr, place)
        assert found is not None, f"not understood: {expr[place : place + 40]!r}"
        place = found.end()
        if found.lastgroup != "space":
            yield str(found.lastgroup), found[0]


def parsed(expr: str) -> Expression:
    """The selectors and labels of an expression."""
    words = [*tokens(expr), ("end", "")]
    selectors: list[Selector] = []
    labels: set[str] = set()
    place = 0
    while words[place][0] != "end":
        kind, text = words[place]
        following = words[place + 1]
        place += 1
        if kind == "braces":
            raise AssertionError(f"labels without a metric: {text}")
        if kind != "name":
            continue
        if text in WITH_LABELS and following[1] == "(":
            end = next(index for index in range(place, len(words)) if words[index][1] == ")")
            labels |= {word for sort, word in words[place:end] if sort == "name"}
            place = end + 1
        elif following[0] == "braces":
            selectors.append(Selector(text, matchers(following[1])))
            place += 1
        else:
            assert text in WORDS or (text in FUNCTIONS and (following[1] == "(" or following[1] == "by")), (
                f"{text}: no function that is known here, and a metric without labels asks for those of everybody"
            )
            if following[1] == "by":
                assert text in FUNCTIONS
    return Expression(selectors, labels)


def matchers(braces: str) -> dict[str, str]:
    text = braces[1:-1].strip()
    found = list(_matcher.finditer(text))
    assert "".join(each[0] for each in found) == text, f"not understood: {braces}"
    return {each[1]: each[3] for each in found}


def series() -> dict[str, Metric | None]:
    """Every name that a scrape shows, with its metric; None for those of every process."""
    known: dict[str, Metric | None] = {}
    for metric in Counters():
        endings = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        known |= {metric.title + ending: metric for ending in endings}
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    return known | {sample.name: None for family in process.collect() for sample in family.samples}


SERIES = series()


def labels_of(name: str) -> set[str]:
    metric = SERIES[name]
    own = set() if metric is None else {*metric.labels}
    return own | ({"le"} if name.endswith("_bucket") else set()) | TARGET


def faults(expr: str) -> list[str]:
    """What an expression asks for that no scrape has."""
    found, asked = [], parsed(expr)
    for name, wanted in asked.selectors:
        if name not in SERIES:
            found.append(f"no metric {name}")
            continue
        found += [f"{name} has no label {label}" for label in wanted.keys() - labels_of(name)]
        found += [
            f"{name} has no {label}={word}"
            for label, value in wanted.items()
            if (metric := SERIES[name]) is not None and (words := metric.labels.get(label, ANY)) != ANY
            for word in value.split("|")
            if word not in words and not word.startswith("$")
        ]
    known = set().union(*(labels_of(each.name) for each in asked.selectors if each.name in SERIES))
    return found + [f"no label {label}" for label in asked.labels - known]
