//! Replays the stored corpora of the fuzz targets.

#[path = "../../fuzz/checks/claim.rs"]
mod claim;
#[path = "../../fuzz/checks/hold.rs"]
mod hold;
#[path = "../../fuzz/checks/network_status.rs"]
mod network_status;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use std::path::Path;

use self::replay::replay;

fn folder(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn stored_claims_pass_the_checks() {
    replay(&folder("fuzz/seeds/claim"), claim::check);
}

#[test]
fn stored_annotations_pass_the_checks() {
    replay(&folder("fuzz/seeds/network_status"), network_status::check);
}
