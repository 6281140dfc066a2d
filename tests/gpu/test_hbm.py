"""Tests a store with a cache on a real GPU, with the same checks as on the simulated one."""

from __future__ import annotations

import pytest

from serving.gpu.driver import Driver
from tests.support.hbm.behaviour import (  # noqa: F401
    test_a_budget_of_dram_leaves_the_gpu_as_it_is,
    test_a_difference_that_does_not_fit_is_answered_by_the_host,
    test_a_gpu_that_holds_everything_answers_everything,
    test_a_rollback_finds_the_old_rows_and_what_it_leaves_can_be_discarded,
    test_a_small_gpu_holds_what_is_used_most,
    test_a_snapshot_that_nobody_announced_is_prepared_when_it_is_asked_for,
    test_an_overlay_that_is_merged_before_the_gpu_follows_leaves_no_old_row,
    test_bytes_are_divided_among_row_sizes,
    test_every_row_is_its_snapshots_own_under_everything_at_once,
    test_more_snapshots_than_the_gpu_has_numbers_for,
    test_removed_ids_are_misses_and_return_when_they_are_written,
    test_two_snapshots_are_answered_side_by_side_until_one_is_left,
    test_what_is_asked_for_comes_in_and_what_is_not_used_goes,
    test_what_was_hot_is_on_the_gpu_again_after_a_restart,
)


@pytest.fixture
def device(driver: Driver) -> Driver:
    return driver
