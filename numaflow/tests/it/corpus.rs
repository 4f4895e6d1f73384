//! Replays the stored corpus of the fuzz target.

#[path = "../../fuzz/checks/direct_edges.rs"]
mod direct_edges;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use std::path::Path;

#[test]
fn stored_annotations_pass_the_checks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/direct_edges");
    replay::replay(&folder, direct_edges::check);
}
