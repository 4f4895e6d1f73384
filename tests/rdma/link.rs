//! The link of soft-RoCE that the other tests build on, as others' programs see it.

use anyhow::{Context as _, Result, bail, ensure};
use multinet_tests::guest::{Guest, Said};
use tokio::sync::OnceCell;

use super::{BOUND, LINK};

/// Both parts in one guest, with lines between them.
const SCRIPT: &str = r#"
    ibv_devinfo -v -d rxe0

    echo "--- perftest"
    trap 'echo "--- its server"; cat /tmp/server' EXIT
    options="-F -d rxe0 -s 65536 -n 200"
    ib_write_bw $options -x "$(gid_row 10.9.0.1)" >/tmp/server 2>&1 &
    # It listens on its port, 18515.
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
      kill -0 $!
      sleep 0.1
    done
    ib_write_bw $options -x "$(gid_row 10.9.0.2)" 10.9.0.1
    wait $!
"#;

/// What the two parts have said, without perftest's server.
async fn said() -> Result<(&'static str, &'static str)> {
    static SAID: OnceCell<String> = OnceCell::const_new();
    let run = async || {
        let Said { status, output } = Guest::run(&[LINK, SCRIPT].concat(), BOUND).await?;
        ensure!(status == 0, "exit status {status}:\n{output}");
        anyhow::Ok(output)
    };
    let said = SAID.get_or_try_init(run).await?;
    let parts: Vec<_> = said.split("\n--- ").collect();
    let [device, perftest, _] = parts[..] else {
        bail!("three parts were to be said, not\n{said}");
    };
    Ok((device, perftest))
}

#[tokio::test]
async fn the_guest_sees_the_port() -> Result<()> {
    let (device, _) = said().await?;
    ensure!(device.contains("PORT_ACTIVE"), "the port is not active:\n{device}");
    for address in ["::ffff:10.9.0.1", "::ffff:10.9.0.2", "fd09::1", "fd09::2"] {
        let is_row = |line: &str| line.contains("GID[") && line.ends_with(&format!("\t{address}, RoCE v2"));
        ensure!(device.lines().any(is_row), "no row of the GID table has {address}:\n{device}");
    }
    Ok(())
}

#[tokio::test]
async fn two_processes_write_to_each_other() -> Result<()> {
    let (_, perftest) = said().await?;
    for peer in ["10:09:00:01", "10:09:00:02"] {
        ensure!(perftest.contains(&format!(":255:255:{peer}\n")), "no GID {peer}:\n{perftest}");
    }
    // Size, iterations, peak and average bandwidth, messages per second.
    let row = perftest.lines().find_map(|line| line.trim_start().strip_prefix("65536 "));
    let row = row.with_context(|| format!("no row of results:\n{perftest}"))?;
    let numbers: Vec<f64> = row.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    // The rest may be zero: perftest measures how fast the processor's clock ticks first, and on a busy machine the guest's is
    // too unsteady for it.
    ensure!(numbers.len() == 4 && numbers[0] == 200.0, "that is not 200 iterations with results: {row:?}");
    Ok(())
}
