//! Tests of the guest itself: the output of a script arrives, however the script or the guest ends.

use std::time::Duration;

use anyhow::Result;
use multinet_testing::guest::{self, Guest};

use super::{BOUND, LINK};

/// Checks what the guest provides, writes to both streams, and fails.
const SCRIPT: &str = r#"
    test "$(id -u)" = 0
    touch /etc/written /tmp/written /dev/shm/written /run/written
    ip address show dev lo up | grep -q 127.0.0.1
    printf 'to be\nor'
    printf ' not' >&2
    echo ' to be'
    exit 7
    echo never
"#;

/// Leaves traces of many kinds behind.
const LEAVE: &str = r#"
    rdma link show | grep -q rxe0
    touch /etc/left
    mount -t tmpfs tmpfs /mnt
    ip netns add left
    sleep 3600 &
    rdma link delete rxe0
    rmmod dummy rdma_rxe
"#;

/// Checks that no trace is left.
const LOOK: &str = r#"
    test ! -e /etc/left
    test -z "$(mount | grep ' /mnt ')"
    test -z "$(ip netns list)"
    test -z "$(pgrep sleep)"
    test "$(ls /sys/class/net)" = lo
    test -d /sys/module/dummy
    test -d /sys/module/rdma_rxe
"#;

#[tokio::test]
async fn a_failing_script_is_heard_to_its_end() -> Result<()> {
    let said = guest::run(SCRIPT, BOUND).await?;
    assert_eq!((said.status, &*said.output), (7, "to be\nor not to be\n"));
    assert!(!std::path::Path::new("/etc/written").exists(), "the guest writes to this machine");
    Ok(())
}

#[tokio::test]
async fn a_script_finds_nothing_of_the_one_before() -> Result<()> {
    for script in [&*[LINK, LEAVE].concat(), LOOK] {
        let said = guest::run(script, BOUND).await?;
        assert_eq!(said.status, 0, "{script}: {}", said.output);
    }
    Ok(())
}

#[tokio::test]
async fn a_guest_that_takes_too_long_is_ended() -> Result<()> {
    // Too short a time to boot.
    let error = Guest::boot(Duration::from_millis(500)).await.unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("waited 500ms for qemu-system-x86_64 to create booted"), "{error}");
    Ok(())
}

/// It has a guest of its own.
#[tokio::test]
#[ignore = "boots a guest to kill it: make soak"]
async fn soak_a_guest_that_dies_is_not_waited_for() -> Result<()> {
    let script = "echo before; echo c >/proc/sysrq-trigger; sleep 3600";
    let error = Guest::boot(BOUND).await?.run(script, BOUND).await.unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("qemu-system-x86_64 ended: exit status: 0"), "{error}");
    // The console ends with a panic, whose beginning may have scrolled away.
    assert!(error.contains("Kernel ") && error.contains("before\n"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_test_runs_again_inside() -> Result<()> {
    multinet_testing::in_guest!();
    assert!(std::path::Path::new("/sys/class/infiniband/rxe0").exists(), "there is no rxe0");
    Ok(())
}
