"""The words of an expectation's result."""

from types import SimpleNamespace

from training.validation.suites.wording import result_of


def test_a_number_of_four_digits_may_be_a_year() -> None:
    config = SimpleNamespace(severity="critical", type="expect_column_max_to_be_between")
    result = SimpleNamespace(expectation_config=config, exception_info={}, success=True, result={"observed_value": 2020})
    found = result_of(result, {"column": "year", "min_value": 1900, "max_value": 12000}, table="orders")
    assert (found.observed, found.allowed) == ("2020", "min_value 1900, max_value 12,000")
