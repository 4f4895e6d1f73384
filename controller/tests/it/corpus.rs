//! The stored corpora of the fuzz targets, replayed.

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
fn claims_of_the_corpus_pass() {
    replay(&folder("fuzz/seeds/claim"), claim::check);
}

#[test]
fn annotations_of_the_corpus_pass() {
    replay(&folder("fuzz/seeds/network_status"), network_status::check);
}
