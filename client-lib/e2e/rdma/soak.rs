//! The other tests again, with larger amounts.

use anyhow::{Context as _, Result};
use multinet_testing::guest;

/// Set in the guest, where [`amount`](super::amount) then returns the larger amount.
pub(crate) const AT_LENGTH: &str = "MULTINET_TEST_AT_LENGTH";

/// The tests that use [`amount`](super::amount).
const SUBJECTS: &[&str] = &[
    "fallback::peers_differ",
    "fork::frames_arrive_whole_while_children_are_forked",
    "gpu::frames_travel_from_gpu_to_gpu",
    "hostile::flood::strangers_that_ask_for_rdma_take_no_more_than_there_is",
    "hostile::receivers::receivers_that_break_the_rules_are_cut_off",
    "hostile::receivers::receivers_that_fail_under_way_cost_their_own_frames_only",
    "hostile::receivers::receivers_whose_ends_cannot_be_get_no_frame",
    "removal::frames_go_on_when_a_device_is_taken_away_and_comes_back",
    "stripes::frames_in_parts_arrive_whole_and_in_order",
    "stripes::frames_in_parts_outlive_their_connection",
    "turmoil::nothing_is_lost_and_nothing_comes_twice",
];

#[tokio::test]
#[ignore = "takes minutes: make soak"]
async fn soak_subjects_at_length() -> Result<()> {
    for subject in SUBJECTS {
        let outcome = guest::run_test(subject, &format!("export {AT_LENGTH}=1")).await;
        outcome.with_context(|| format!("{subject} at length"))?;
    }
    Ok(())
}
