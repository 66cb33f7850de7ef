"""The chart's README describes every value, as ``values.yaml`` does."""

from tests.charts import readme


def test_the_table_of_values_is_that_of_the_chart() -> None:
    assert readme.README.read_text() == readme.written(), "run: .venv/bin/python -m tests.charts.readme --write"


def test_every_value_is_described() -> None:
    assert readme.undescribed() == []
    assert len(readme.described()) > 150


def test_descriptions_are_sentences() -> None:
    assert [
        path for path, said in readme.described().items() if not said.endswith((".", "`", ")")) or len(said) < 10
    ] == []
