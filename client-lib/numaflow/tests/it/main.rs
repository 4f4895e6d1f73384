//! The adapters on loopback, called as Numaflow's SDK calls them.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod boundary;
mod claim_check;

use std::net::Ipv4Addr;
use std::time::Duration;

use multinet_client::{Connector, ConnectorBuilder, Resolver};
use tokio::time::timeout;

const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(Ipv4Addr::LOCALHOST);

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the settings of a connector without DNS: the tests connect to addresses.
fn connector() -> ConnectorBuilder {
    let resolver = Resolver::builder().servers([([127, 0, 0, 1], 9).into()]).build().unwrap();
    Connector::builder().resolver(resolver).fetch_wait(PATIENCE)
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap()
}

/// Waits for a condition that no event announces.
async fn eventually(mut condition: impl FnMut() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
