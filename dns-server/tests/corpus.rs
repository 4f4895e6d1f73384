//! Replays the stored corpora of the fuzz targets.

#![expect(clippy::expect_used, reason = "a check that cannot be set up has failed")]

#[path = "../fuzz/checks/manifest.rs"]
mod manifest;
#[path = "../fuzz/checks/packet.rs"]
mod packet;
#[path = "../../fuzz/replay.rs"]
mod replay;
#[path = "../fuzz/checks/snapshot.rs"]
mod snapshot;

use std::path::Path;

use replay::replay;

fn folder(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn packets_of_the_corpus_pass_the_check() {
    replay(&folder("fuzz/seeds/packet"), packet::check);
}

#[test]
fn manifests_of_the_quickstart_and_their_mutants_pass_the_check() {
    replay(&folder("../deploy/examples/quickstart"), manifest::check);
}

#[test]
fn snapshots_of_the_corpus_pass_the_check() {
    replay(&folder("fuzz/seeds/snapshot"), snapshot::check);
}
