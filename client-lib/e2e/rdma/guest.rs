//! The guest itself: what a script in it says comes out, whatever becomes of it.

use std::time::Duration;

use anyhow::Result;
use multinet_testing::guest::Guest;

use super::BOUND;

/// Looks at what the guest promises, speaks on both streams, and fails.
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

#[tokio::test]
async fn a_failing_script_is_heard_to_its_end() -> Result<()> {
    let said = Guest::run(SCRIPT, BOUND).await?;
    assert_eq!((said.status, &*said.output), (7, "to be\nor not to be\n"));
    assert!(!std::path::Path::new("/etc/written").exists(), "the guest writes to this machine");
    Ok(())
}

#[tokio::test]
async fn a_guest_that_takes_too_long_is_ended() -> Result<()> {
    // Too short for it to boot.
    let error = Guest::run("sleep 3600", Duration::from_millis(500)).await.unwrap_err().to_string();
    assert!(error.starts_with("the guest: waited 500ms for qemu-system-x86_64 to exit"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_guest_that_dies_is_not_waited_for() -> Result<()> {
    let script = "echo before; echo c >/proc/sysrq-trigger; sleep 3600";
    let error = Guest::run(script, BOUND).await.unwrap_err().to_string();
    assert!(error.starts_with("the guest: it ended before its script did"), "{error}");
    // The end of the console is that of a panic, of which the head may have scrolled away.
    assert!(error.contains("Kernel ") && error.contains("before\n"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_test_runs_again_inside() -> Result<()> {
    multinet_testing::in_guest!();
    assert!(std::path::Path::new("/sys/class/infiniband/rxe0").exists(), "there is no rxe0");
    Ok(())
}
