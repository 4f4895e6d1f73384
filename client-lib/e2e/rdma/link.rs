//! The soft-RoCE link that the other tests use, as other programs see it.

use anyhow::{Result, bail, ensure};
use multinet_testing::guest::{self, Said};
use multinet_testing::perftest::rows;
use multinet_testing::process::workspace_binary;
use tokio::sync::OnceCell;

use super::{BOUND, LINK};

/// The script of all parts, which share one guest, with separators between their outputs.
const SCRIPT: &str = r#"
    ibv_devinfo -v -d rxe0

    echo "--- perftest"
    trap 'echo "--- its server"; cat /tmp/server' EXIT
    options="-F -d rxe0 -s 65536 -n 50"
    # The row and the device that multinet prints are those with which others connect.
    row=$($MULTINET env --value gid)
    [ "$row $($MULTINET env --value rdma)" = "$(gid_row 10.9.0.1) rxe0" ]
    ib_write_bw $options -x "$row" >/tmp/server 2>&1 &
    # It listens on its port, 18515.
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
      kill -0 $!
      sleep 0.1
    done
    ib_write_bw $options -x "$(gid_row 10.9.0.2)" 10.9.0.1
    wait $!

    echo "--- multinet bench"
    options="-d rxe0 --transport rdma"
    $MULTINET bench server $options -s 65536 --address 10.9.0.2 >/tmp/server 2>&1 &
    wait_for grep -q 'listening on' /tmp/server
    # The kernel's way there begins with the other address.
    options="$options -x $(gid_row 10.9.0.1) 10.9.0.2"
    $MULTINET bench client $options -s 65536 -n 40
    $MULTINET bench client $options -s 65536 -n 10 -q 4 --report_gbits
    $MULTINET bench client $options -s 64 -n 20 --latency
    $MULTINET bench client -d rxe7 10.9.0.2 --transport rdma -n 5 2>&1 || true
    kill -INT $!
    wait $!

    echo "--- multinet send"
    head -c 300000 /dev/urandom >/tmp/file
    packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
    $MULTINET recv -o /tmp/received --transport rdma --address 10.9.0.2 --frame-size 65536 >/tmp/server 2>&1 &
    wait_for grep -q 'listening on' /tmp/server
    before=$(packets)
    $MULTINET send 10.9.0.2 --transport rdma --frame-size 65536 -f /tmp/file
    wait $!
    grep '^received' /tmp/server
    cmp /tmp/file /tmp/received
    echo "$(($(packets) - before)) packets"
"#;

/// Returns the outputs of the four parts, without the last server's.
async fn outputs() -> Result<[&'static str; 4]> {
    static SAID: OnceCell<String> = OnceCell::const_new();
    let run = async || {
        let multinet = workspace_binary("multinet", "MULTINET_BIN")?;
        let multinet = format!("MULTINET={}\n", multinet.display());
        let Said { status, output } = guest::run(&[LINK, &multinet, SCRIPT].concat(), BOUND).await?;
        ensure!(status == 0, "exit status {status}:\n{output}");
        anyhow::Ok(output)
    };
    let said = SAID.get_or_try_init(run).await?;
    let parts: Vec<_> = said.split("\n--- ").collect();
    let [device, perftest, bench, transfer, _] = parts[..] else {
        bail!("five parts were to be said, not\n{said}");
    };
    Ok([device, perftest, bench, transfer])
}

#[tokio::test]
async fn the_guest_sees_the_port() -> Result<()> {
    let [device, ..] = outputs().await?;
    ensure!(device.contains("PORT_ACTIVE"), "the port is not active:\n{device}");
    for address in ["::ffff:10.9.0.1", "::ffff:10.9.0.2", "fd09::1", "fd09::2"] {
        let is_row = |line: &str| line.contains("GID[") && line.ends_with(&format!("\t{address}, RoCE v2"));
        ensure!(device.lines().any(is_row), "no row of the GID table has {address}:\n{device}");
    }
    Ok(())
}

#[tokio::test]
async fn two_processes_write_to_each_other() -> Result<()> {
    let [_, perftest, ..] = outputs().await?;
    for peer in ["10:09:00:01", "10:09:00:02"] {
        ensure!(perftest.contains(&format!(":255:255:{peer}\n")), "no GID {peer}:\n{perftest}");
    }
    // Iterations, peak and average bandwidth, message rate.
    let rows = rows(perftest, 65_536);
    // The others may be zero: perftest first measures the clock rate of the processor, which is too
    // unsteady in a guest on a busy machine.
    ensure!(
        rows.len() == 1 && rows[0].len() == 4 && rows[0][0] == 50.0,
        "that is not 50 iterations: {rows:?}"
    );
    Ok(())
}

/// Both use the same device and GIDs, and the same parser reads them.
#[tokio::test]
async fn bench_prints_the_same_columns_as_perftest() -> Result<()> {
    let [_, perftest, bench, ..] = outputs().await?;
    ensure!(bench.matches("Transport type : RDMA").count() == 3, "{bench}");
    let header = |said: &str| {
        let header = said.lines().find(|line| line.trim_start().starts_with("#bytes"));
        header.map(|header| header.split_whitespace().collect::<Vec<_>>().join(" ").replace("MiB", "MB"))
    };
    ensure!(header(perftest).is_some() && header(perftest) == header(bench), "{perftest}\n{bench}");
    check_figures(bench)?;
    let refused = "cannot be reached by RDMA: no RDMA device named rxe7 has a GID of 10.9.0.1";
    ensure!(bench.contains(refused), "{bench}");
    Ok(())
}

#[tokio::test]
async fn a_file_is_sent_over_rdma() -> Result<()> {
    let [.., transfer] = outputs().await?;
    for told in ["sent 300000 bytes, SHA-256 ", "received 300000 bytes, SHA-256 "] {
        ensure!(transfer.contains(told), "{told:?} is not in {transfer}");
    }
    let packets = transfer.lines().find_map(|line| line.strip_suffix(" packets")?.parse::<u32>().ok());
    // A packet carries at most 4096 bytes.
    ensure!(packets.is_some_and(|packets| packets >= 300_000 / 4096), "{packets:?}:\n{transfer}");
    Ok(())
}

/// Checks the figures for bandwidth with one and four queue pairs, and for latency.
fn check_figures(bench: &str) -> Result<()> {
    let bandwidths = rows(bench, 65_536);
    let iterations: Vec<f64> = bandwidths.iter().map(|row| row[0]).collect();
    ensure!(iterations == [40.0, 40.0] && bandwidths.iter().flatten().all(|it| *it > 0.0), "{bandwidths:?}");
    let latencies = rows(bench, 64);
    let [ref row] = latencies[..] else { bail!("{latencies:?}\n{bench}") };
    // Iterations, then minimum, maximum, median, average, deviation and two percentiles.
    ensure!(
        row.len() == 8 && row[0] == 20.0 && row[1] > 0.0 && row[1] <= row[3] && row[3] <= row[2],
        "{row:?}"
    );
    Ok(())
}
