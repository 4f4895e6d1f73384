//! Signals, also while files hang or the log is not read.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use multinet_testing::dns::{Edns, Query, Transport};
use multinet_testing::process::{self, Process, free_port};
use multinet_testing::server::{Flags, command, eventually};
use multinet_testing::wait::block_on;
use tempfile::TempDir;

use crate::fixtures::{ZONE, folder};

/// Time limit for the end of the server, longer than the grace period of our manifests after the
/// lameduck.
const GRACE: Duration = Duration::from_secs(15);

fn pipe(folder: &TempDir) -> Result<PathBuf> {
    let pipe = folder.path().join("pipe");
    process::run(Command::new("mkfifo").arg(&pipe))?;
    Ok(pipe)
}

fn free_address() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

#[test]
fn an_unread_log_blocks_neither_answers_nor_the_shutdown() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let (pipe, address) = (pipe(&scratch)?, free_address()?);
    // The pipe is opened for both reading and writing, so that no reader is needed. It has room for
    // about 64 KiB.
    let mut sh = Command::new("sh");
    sh.args(["-ec", r#"exec "$@" 2<>"$0""#]).arg(pipe).arg(command()?.get_program());
    sh.args(["--log-queries", "--lameduck", "0s", "--listen", &address.to_string(), "--manifests"]);
    let mut server = Process::spawn(sh.arg(folder()), &scratch.path().join("log"))?;
    let query = Query::new(ZONE, "SOA");
    eventually("an answer", || Transport::Udp.ask(address, &query))?;
    for _ in 0..3000 {
        Transport::Udp.ask(address, &query)?;
    }
    Transport::Tcp.ask(address, &query)?;
    let status = block_on(server.terminate(GRACE))?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// The server waits for its kubeconfig here, as it might for a network file system.
#[test]
fn a_hanging_file_does_not_block_the_shutdown() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let (pipe, admin) = (pipe(&scratch)?, free_address()?);
    let mut command = command()?;
    command.args(["--lameduck", "0s", "--listen", "127.0.0.1:0", "--admin", &admin.to_string()]);
    let mut server = Process::spawn(command.env("KUBECONFIG", pipe), &scratch.path().join("log"))?;
    eventually("the admin endpoint to listen", || Ok(TcpStream::connect(admin)?))?;
    let status = block_on(server.terminate(GRACE))?;
    ensure!(status.success(), "{status}");
    ensure!(server.log().contains("ending this process by force"), "{}", server.log());
    Ok(())
}

#[test]
fn sighup_reloads_keys_and_secrets() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let (keys, cookies) = (scratch.path().join("keys"), scratch.path().join("cookies"));
    let key = |name: &str| {
        let secret = "c2VjcmV0IG9mIGF0IGxlYXN0IHNpeHRlZW4gb2N0ZXRz";
        format!("key \"{name}\" {{ algorithm hmac-sha256; secret \"{secret}\"; }};\n")
    };
    fs::write(&keys, key("one"))?;
    fs::write(&cookies, "00112233445566778899aabbccddeeff\n")?;
    let mut server = Flags::new()
        .flag("--tsig-key-file", &keys)
        .flag("--cookie-secret-file", &cookies)
        .words("--transfer-to key:one")
        .start(&folder())?;
    let cookie = |cookie: &[u8]| Query::new(ZONE, "SOA").edns(Edns::new(1232).option(10, cookie));
    let made = server.ask(&cookie(b"12345678"))?;
    let made = made.raw[made.raw.len() - 24..].to_vec();
    fs::write(&keys, key("other"))?;
    fs::write(&cookies, "ffeeddccbbaa99887766554433221100\n")?;
    server.process().signal("HUP")?;
    for line in ["cannot reload the TSIG keys", "key:one", "cookie secrets reloaded"] {
        eventually(line, || {
            ensure!(server.log().contains(line), "{}", server.log());
            Ok(())
        })?;
    }
    server.ask(&cookie(&made))?;
    let wrong = server.metric(r#"multinet_dns_cookies_total{proto="udp",cookie="wrong"}"#)?;
    ensure!(wrong == 1.0, "the old secret is still used");

    fs::write(&keys, key("one") + &key("other"))?;
    server.process().signal("HUP")?;
    eventually("the keys to be reloaded", || {
        ensure!(server.log().contains("TSIG keys reloaded"), "{}", server.log());
        Ok(())
    })
}
