//! The client library's own tests of senders and receivers, over RDMA instead of TCP.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::guest::{self, Said};

use super::{BOUND, LINK};

/// Tests that show what RDMA does differently, and that end with the connection.
const FEW: &str = "--exact names::a_peer_set_that_closes_takes_no_more_frames names::peers_do_not_keep_a_peer_set_open \
                   names::a_peer_that_has_left_is_no_longer_listed \
                   secure::frames_arrive_unchanged_with_tls_and_without fetch::a_fetched_payload_is_taken_when_it_is_acknowledged \
                   secure::rdma_without_encryption_is_used_only_by_name";

/// Most tests, without those whose strangers come from many addresses, for which they need the
/// loopback interface. Peers that break the protocol by hand do so over TCP while the others use
/// RDMA; breaches over RDMA are tested in `hostile`.
const MOST: &str = "delivery:: names:: secure:: hostile:: fetch:: --skip hostile::flood:: --skip one_address";

#[tokio::test]
async fn peers_are_the_same_by_rdma() -> Result<()> {
    are_the_same_by_rdma(FEW, 6).await
}

#[tokio::test]
#[ignore = "takes minutes: make soak"]
async fn soak_peers_are_the_same_by_rdma() -> Result<()> {
    are_the_same_by_rdma(MOST, 30).await
}

/// Runs these tests over RDMA, of which there have to be at least `count`.
async fn are_the_same_by_rdma(tests: &str, count: u32) -> Result<()> {
    let peers = test_binary("peers")?;
    let script =
        format!("{LINK}\nMULTINET_TEST_RDMA=10.9.0.2 '{}' --test-threads=1 {tests}", peers.display());
    let Said { status, output } = guest::run(&script, 2 * BOUND).await?;
    eprintln!("{output}");
    let passed = output.split_once("test result: ok. ").and_then(|(_, rest)| rest.split(' ').next());
    let passed: u32 = passed.context("no result")?.parse()?;
    ensure!(status == 0 && passed >= count, "exit status {status}, {passed} have passed");
    Ok(())
}

/// Returns the newest build of a test binary of the workspace, which is beside this one.
fn test_binary(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let mut found = Vec::new();
    for file in this.parent().context("no folder")?.read_dir()? {
        let file = file?;
        let file_name = file.file_name();
        let hash = file_name.to_str().and_then(|it| it.strip_prefix(name)?.strip_prefix('-'));
        if hash.is_some_and(|hash| !hash.contains('.')) {
            found.push((file.metadata()?.modified()?, file.path()));
        }
    }
    let (_, newest) = found
        .into_iter()
        .max()
        .with_context(|| format!("no {name}: run `cargo test --workspace --no-run` first"))?;
    Ok(newest)
}
