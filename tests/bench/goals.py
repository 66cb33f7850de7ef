"""Goals, their samples and the table: pure arithmetic and text, no measuring."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Bound:
    """What a figure has to be: ``at least`` or ``at most`` a number, as a ratio where there is a reference."""

    sign: Literal[">=", "<="]
    value: float

    def holds(self, figure: float) -> bool:
        """Whether the figure is on the right side; one that is no number never is."""
        return figure >= self.value if self.sign == ">=" else figure <= self.value

    def eased(self, share: float) -> "Bound":
        """A bound that is met at that share of this one already; that nothing at all may happen stays."""
        return Bound(self.sign, self.value * share if self.sign == ">=" else self.value / share)


@dataclass
class Row:
    """One line of the table: the samples of the product and of its reference, round by round.

    Without a reference the bound is about the product's own figure; without a bound the row only informs.
    """

    goal: str
    what: str
    unit: str
    bound: Bound | None
    reference_name: str | None = None
    absent: str | None = None  # why nothing could be measured
    product: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)

    def add(self, product: float, reference: float | None = None) -> None:
        """Keep the samples of one round; none where the reference is absent."""
        if self.absent is not None:
            return
        if (reference is None) != (self.reference_name is None):
            raise ValueError(f"{self.goal} {self.what}: a sample of {self.reference_name} is missing, or not wanted")
        self.product.append(product)
        if reference is not None:
            self.reference.append(reference)

    @property
    def figure(self) -> float:
        """The ratio of the medians, or the product's median where there is no reference."""
        if self.absent is not None:
            return math.nan
        middle = statistics.median(self.product)
        return middle if self.reference_name is None else _divide(middle, statistics.median(self.reference))

    @property
    def figures(self) -> list[float]:
        """The same, round by round."""
        if self.reference_name is None:
            return list(self.product)
        return [_divide(product, reference) for product, reference in zip(self.product, self.reference, strict=True)]

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where the row only informs or nothing could be measured."""
        return self.meets(1)

    def meets(self, share: float) -> bool | None:
        """Whether that share of the goal is reached."""
        if self.bound is None or self.absent is not None:
            return None
        # A count of losses is a promise about every round, not about the middle one.
        figure = max(self.product) if self.bound == NONE_AT_ALL else self.figure
        return self.bound.eased(share).holds(figure)

    def as_json(self) -> dict[str, object]:
        """Everything that was measured."""
        return {
            "goal": self.goal,
            "what": self.what,
            "unit": self.unit,
            "reference": self.reference_name,
            "wanted": wanted(self),
            "figure": None if math.isnan(self.figure) else self.figure,
            "figures": self.figures,
            "product_samples": self.product,
            "reference_samples": self.reference,
            "met": self.met,
            "absent": self.absent,
        }


NONE_AT_ALL = Bound("<=", 0)


def _divide(product: float, reference: float) -> float:
    return product / reference if reference else float("nan")


def number(value: float) -> str:
    """A figure with as many digits as mean something."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def _spread(samples: Sequence[float]) -> str:
    return f"{number(statistics.median(samples))} ({number(min(samples))}..{number(max(samples))})"


def wanted(row: Row) -> str:
    """The bound of a row in words."""
    against = "" if row.reference_name is None else f"x {row.reference_name}"
    if row.bound is None:
        return against.replace("x ", "beside ", 1) or "-"
    return f"{row.bound.sign} {row.bound.value:g}{against or ' ' + row.unit}"


def table(rows: Sequence[Row], share: float = 1.0) -> str:
    """All rows as a Markdown table, what was not measured, and the count of goals met as the last line.

    A goal counts as missed only below that share of it.
    """
    lines = [["goal", "what", "wanted", "ratio", "by round", "product", "reference", "unit", "met"]]
    for row in rows:
        measured = row.absent is None
        compared = measured and row.reference_name is not None
        lines.append(
            [
                row.goal,
                row.what,
                wanted(row),
                f"{row.figure:.2f}x" if compared else "-",
                f"{min(row.figures):.2f}..{max(row.figures):.2f}" if compared else "-",
                _spread(row.product) if measured else "-",
                _spread(row.reference) if compared else "-",
                row.unit,
                verdict(row, share),
            ]
        )
    return "\n".join([*aligned(lines), "", *_totals(rows, share)])


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table whose first line is its head."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in ruled
    ]


def verdict(row: Row, share: float = 1.0) -> str:
    """Whether a goal is met, in words; why not, where nothing could be measured."""
    if row.absent is not None:
        return f"not measured: {row.absent}"
    met = row.meets(share)
    if met and not row.met:
        return f"met at {share:g} of it"
    return {True: "met", False: "NOT MET", None: "-"}[met]


def _totals(rows: Sequence[Row], share: float) -> list[str]:
    goals = [row for row in rows if row.bound is not None]
    absent = [row.absent for row in goals if row.absent is not None]
    notes = [f"not measured: {len(absent)} ({', '.join(sorted(set(absent)))})"] if absent else []
    return [*notes, f"{sum(row.meets(share) is True for row in goals)} of {len(goals)} goals met"]
