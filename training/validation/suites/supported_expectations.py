"""Which expectations of Great Expectations can be judged without all rows in memory, and what is near those that cannot."""

from __future__ import annotations

from typing import Any, Final

BETWEEN: Final = "expect_column_values_to_be_between"
SHIPPED_EXPECTATIONS: Final = "great_expectations.expectations.core."
WITHOUT_VALUES: Final = frozenset(
    {
        "expect_column_to_exist",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
        "expect_table_row_count_to_be_between",
        "expect_table_row_count_to_equal",
    }
)
"""Types that read the names of columns or the number of rows, and no value; unless they have a row condition."""
ADDITIVE: Final = frozenset(
    f"expect_{name}"
    for name in (
        "column_pair_values_a_to_be_greater_than_b",
        "column_pair_values_to_be_equal",
        "column_pair_values_to_be_in_set",
        "column_to_exist",
        "column_value_lengths_to_be_between",
        "column_value_lengths_to_equal",
        "column_values_to_be_between",
        "column_values_to_be_dateutil_parseable",
        "column_values_to_be_in_set",
        "column_values_to_be_in_type_list",
        "column_values_to_be_json_parseable",
        "column_values_to_be_null",
        "column_values_to_be_of_type",
        "column_values_to_match_json_schema",
        "column_values_to_match_like_pattern",
        "column_values_to_match_like_pattern_list",
        "column_values_to_match_regex",
        "column_values_to_match_regex_list",
        "column_values_to_match_strftime_format",
        "column_values_to_not_be_in_set",
        "column_values_to_not_be_null",
        "column_values_to_not_match_like_pattern",
        "column_values_to_not_match_like_pattern_list",
        "column_values_to_not_match_regex",
        "column_values_to_not_match_regex_list",
        "multicolumn_sum_to_equal",
        "multicolumn_values_to_be_equal",
        "select_column_values_to_be_unique_within_record",
        "table_column_count_to_be_between",
        "table_column_count_to_equal",
        "table_columns_to_match_ordered_list",
        "table_columns_to_match_set",
        "table_row_count_to_be_between",
        "table_row_count_to_equal",
    )
)
"""Types whose condition sees one row."""
OF_THE_PROFILE: Final = frozenset(
    f"expect_{name}"
    for name in (
        "column_distinct_values_to_be_in_set",
        "column_distinct_values_to_contain_set",
        "column_distinct_values_to_equal_set",
        "column_max_to_be_between",
        "column_mean_to_be_between",
        "column_median_to_be_between",
        "column_min_to_be_between",
        "column_most_common_value_to_be_in_set",
        "column_proportion_of_non_null_values_to_be_between",
        "column_proportion_of_unique_values_to_be_between",
        "column_quantile_values_to_be_between",
        "column_stdev_to_be_between",
        "column_sum_to_be_between",
        "column_unique_value_count_to_be_between",
        "column_values_to_be_unique",
        "compound_columns_to_be_unique",
    )
)
"""Types that see all rows, and that a profile answers in most cases: of numbers, and of at most 100,000 different texts."""
OF_A_BATCH: Final = frozenset({"expect_column_type_to_be", "expect_column_values_to_be_in_type_list", "expect_column_values_to_be_of_type"})
"""Types that look at a frame before they say what they want to know."""
REPEATED: Final = frozenset({"expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique"})
DRIFT: Final = "validate.drift"
_NEAREST: Final = {
    "expect_column_bootstrapped_ks_test_p_value_to_be_greater_than": DRIFT,
    "expect_column_chisquare_test_p_value_to_be_greater_than": DRIFT,
    "expect_column_kl_divergence_to_be_less_than": DRIFT,
    "expect_column_parameterized_distribution_ks_test_p_value_to_be_greater_than": DRIFT,
    "expect_column_pair_cramers_phi_value_to_be_less_than": "expect_column_pair_values_to_be_in_set",
    "expect_column_value_z_scores_to_be_less_than": BETWEEN,
    "expect_column_values_to_be_decreasing": BETWEEN,
    "expect_column_values_to_be_increasing": BETWEEN,
    "expect_column_values_to_not_be_outliers": "expect_column_quantile_values_to_be_between",
    "expect_multicolumn_values_to_be_unique": "expect_compound_columns_to_be_unique",
}


def needs_all_rows(expectation: Any) -> bool:
    """Return whether an expectation can only be judged with all rows of its columns in memory."""
    kind = expectation.configuration.type
    if not type(expectation).__module__.startswith(SHIPPED_EXPECTATIONS):
        return True
    return kind not in ADDITIVE and (kind not in OF_THE_PROFILE or bool(getattr(expectation, "row_condition", None)))


def nearest_supported(kind: str) -> str:
    """Return the name of what is near an expectation and needs few rows in memory."""
    if kind in OF_THE_PROFILE:
        return f"{kind} without row_condition, on a number column or one with fewer different values"
    return _NEAREST.get(kind, "an expectation on single rows, such as expect_column_pair_values_a_to_be_greater_than_b")
