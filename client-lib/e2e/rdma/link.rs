//! The link of soft-RoCE that the other tests build on, as others' programs see it.

use anyhow::{Result, bail, ensure};
use multinet_testing::guest::{Guest, Said};
use multinet_testing::perftest::rows;
use multinet_testing::process::workspace_binary;
use tokio::sync::OnceCell;

use super::{BOUND, LINK};

/// All parts in one guest, with lines between them.
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

    echo "--- multinet bench"
    options="-d rxe0 --transport rdma"
    $MULTINET bench server $options -s 65536 --address 10.9.0.2 >/tmp/server 2>&1 &
    wait_for grep -q 'listening on' /tmp/server
    # The kernel's way there begins with the other address.
    options="$options -x $(gid_row 10.9.0.1) 10.9.0.2"
    $MULTINET bench client $options -s 65536 -n 200
    $MULTINET bench client $options -s 65536 -n 50 -q 4 --report_gbits
    $MULTINET bench client $options -s 64 -n 50 --latency
    $MULTINET bench client -d rxe7 10.9.0.2 --transport rdma -n 5 2>&1 || true
    kill -INT $!
    wait $!

    echo "--- multinet bench --verbs"
    options="-d rxe0 --verbs"
    $MULTINET bench server $options -s 65536 --address 10.9.0.2 -p 18516 >/tmp/server 2>&1 &
    wait_for grep -q 'listening on' /tmp/server
    options="$options -x $(gid_row 10.9.0.1) 10.9.0.2:18516"
    $MULTINET bench client $options -s 65536 -n 200
    $MULTINET bench client $options -s 65536 -n 50 -q 4 --report_gbits
    $MULTINET bench client $options -s 64 -n 50 --latency
    $MULTINET bench client $options -s 2 -D 1
    $MULTINET bench client $options -s 65537 2>&1 || true
    $MULTINET bench client -d rxe7 --verbs 10.9.0.2:18516 2>&1 || true
    # Frames, where there are none.
    $MULTINET bench client 10.9.0.2:18516 --transport tcp -n 5 2>&1 || echo "frames: exit status $?"
    kill -INT $!
    wait $!

    echo "--- multinet send"
    head -c 3000000 /dev/urandom >/tmp/file
    packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
    $MULTINET recv -o /tmp/received --transport rdma --address 10.9.0.2 >/tmp/server 2>&1 &
    wait_for grep -q 'listening on' /tmp/server
    before=$(packets)
    $MULTINET send 10.9.0.2 --transport rdma -f /tmp/file
    wait $!
    grep '^received' /tmp/server
    cmp /tmp/file /tmp/received
    echo "$(($(packets) - before)) packets"
"#;

/// What the five parts have said, without the last server.
async fn said() -> Result<[&'static str; 5]> {
    static SAID: OnceCell<String> = OnceCell::const_new();
    let run = async || {
        let multinet = workspace_binary("multinet", "MULTINET_BIN")?;
        let multinet = format!("MULTINET={}\n", multinet.display());
        let Said { status, output } = Guest::run(&[LINK, &multinet, SCRIPT].concat(), BOUND).await?;
        ensure!(status == 0, "exit status {status}:\n{output}");
        anyhow::Ok(output)
    };
    let said = SAID.get_or_try_init(run).await?;
    let parts: Vec<_> = said.split("\n--- ").collect();
    let [device, perftest, bench, verbs, transfer, _] = parts[..] else {
        bail!("six parts were to be said, not\n{said}");
    };
    Ok([device, perftest, bench, verbs, transfer])
}

#[tokio::test]
async fn the_guest_sees_the_port() -> Result<()> {
    let [device, ..] = said().await?;
    ensure!(device.contains("PORT_ACTIVE"), "the port is not active:\n{device}");
    for address in ["::ffff:10.9.0.1", "::ffff:10.9.0.2", "fd09::1", "fd09::2"] {
        let is_row = |line: &str| line.contains("GID[") && line.ends_with(&format!("\t{address}, RoCE v2"));
        ensure!(device.lines().any(is_row), "no row of the GID table has {address}:\n{device}");
    }
    Ok(())
}

#[tokio::test]
async fn two_processes_write_to_each_other() -> Result<()> {
    let [_, perftest, ..] = said().await?;
    for peer in ["10:09:00:01", "10:09:00:02"] {
        ensure!(perftest.contains(&format!(":255:255:{peer}\n")), "no GID {peer}:\n{perftest}");
    }
    // Iterations, peak and average bandwidth, messages per second.
    let rows = rows(perftest, 65_536);
    // The rest may be zero: perftest measures how fast the processor's clock ticks first, and on a busy machine the guest's is
    // too unsteady for it.
    ensure!(
        rows.len() == 1 && rows[0].len() == 4 && rows[0][0] == 200.0,
        "that is not 200 iterations: {rows:?}"
    );
    Ok(())
}

/// The same device, the same rows of its table, the same parser.
#[tokio::test]
async fn bench_prints_what_perftest_prints() -> Result<()> {
    let [_, perftest, bench, ..] = said().await?;
    ensure!(bench.matches("Transport type : RDMA").count() == 3, "{bench}");
    let header = |said: &str| {
        let header = said.lines().find(|line| line.trim_start().starts_with("#bytes"));
        header.map(|header| header.split_whitespace().collect::<Vec<_>>().join(" ").replace("MiB", "MB"))
    };
    ensure!(header(perftest).is_some() && header(perftest) == header(bench), "{perftest}\n{bench}");
    has_figures(bench)?;
    let refused = "cannot be reached by RDMA: no RDMA device named rxe7 has a GID of 10.9.0.1";
    ensure!(bench.contains(refused), "{bench}");
    Ok(())
}

/// The device alone, by the same columns.
#[tokio::test]
async fn writes_alone_are_measured_as_perftest_does() -> Result<()> {
    let [_, _, _, verbs, _] = said().await?;
    has_figures(verbs)?;
    // With the two that are turned away, which have begun their table.
    ensure!(verbs.matches("Transport type : VERBS").count() == 6, "{verbs}");
    // For as long as was asked for, not for so many.
    ensure!(rows(verbs, 2).len() == 1, "{verbs}");
    for reason in [
        "10.9.0.2:18516 refuses: it takes messages of 1 to 65536 bytes (--size)",
        "no RDMA device has a GID of 10.9.0.1; `multinet doctor` says why",
        "frames: exit status 1",
    ] {
        ensure!(verbs.contains(reason), "{reason:?} is not in {verbs}");
    }
    Ok(())
}

#[tokio::test]
async fn a_file_goes_by_rdma() -> Result<()> {
    let [.., transfer] = said().await?;
    for told in ["sent 3000000 bytes, SHA-256 ", "received 3000000 bytes, SHA-256 "] {
        ensure!(transfer.contains(told), "{told:?} is not in {transfer}");
    }
    let packets = transfer.lines().find_map(|line| line.strip_suffix(" packets")?.parse::<u32>().ok());
    // Of 4096 bytes at most.
    ensure!(packets.is_some_and(|packets| packets >= 3_000_000 / 4096), "{packets:?}:\n{transfer}");
    Ok(())
}

/// Bandwidth by one and by four queue pairs, and latency.
fn has_figures(bench: &str) -> Result<()> {
    let bandwidths = rows(bench, 65_536);
    let iterations: Vec<f64> = bandwidths.iter().map(|row| row[0]).collect();
    ensure!(
        iterations == [200.0, 200.0] && bandwidths.iter().flatten().all(|it| *it > 0.0),
        "{bandwidths:?}"
    );
    let latencies = rows(bench, 64);
    let [ref row] = latencies[..] else { bail!("{latencies:?}\n{bench}") };
    // Iterations, then least, most, median, average, deviation and two percentiles.
    ensure!(
        row.len() == 8 && row[0] == 50.0 && row[1] > 0.0 && row[1] <= row[3] && row[3] <= row[2],
        "{row:?}"
    );
    Ok(())
}
