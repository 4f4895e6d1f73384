//! TCP fast open (RFC 7413). Most machines disable it for servers, so that the test has a network
//! of its own.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::process::run;
use multinet_testing::sandboxed;
use multinet_testing::server::Flags;

use crate::fixtures::{ZONE, folder};

#[tokio::test]
async fn a_query_in_the_first_packet_is_answered() -> Result<()> {
    sandboxed!();
    fs::write("/proc/sys/net/ipv4/tcp_fastopen", "3").context("cannot set net.ipv4.tcp_fastopen")?;
    let server = Flags::new().start(&folder())?;
    for _ in 0..3 {
        let port = server.dns().port().to_string();
        let arguments = ["@127.0.0.1", "-p", &port, "+tcp", "+fastopen", ZONE, "SOA"];
        let text = run(Command::new("kdig").args(arguments))?;
        ensure!(text.contains("NOERROR"), "{text}");
    }
    // The first connection only fetches the cookie.
    let opened = fast_opened()?;
    ensure!(opened == 2, "{opened} queries came in a first packet");
    Ok(())
}

/// Returns the number of accepted connections whose first packet carried data.
fn fast_opened() -> Result<u64> {
    let netstat = fs::read_to_string("/proc/net/netstat")?;
    let mut lines = netstat.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().context("no names")?, lines.next().context("no values")?);
    let position = names
        .split(' ')
        .position(|name| name == "TCPFastOpenPassive")
        .context("no counter TCPFastOpenPassive")?;
    Ok(values.split(' ').nth(position).context("no value")?.parse()?)
}
