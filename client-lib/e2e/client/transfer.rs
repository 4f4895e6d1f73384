//! `multinet send` to services whose pods start one after the other, or that may send themselves.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::process::Process;
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Manifests};
use multinet_testing::wait::eventually;
use tempfile::TempDir;

use crate::multinet::{CHANGEABLE, SERVICE, multinet, slice};

const PATIENCE: Duration = Duration::from_secs(20);

const SIZE: usize = 8 << 20;

/// Three more receivers come during the transfer. They must get nothing, because they have missed
/// its beginning.
#[tokio::test]
async fn one_receiver_gets_everything_although_others_come_later() -> Result<()> {
    sandboxed!();
    let addresses = ["10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.5"];
    for address in addresses {
        ip(&["address", "add", &format!("{address}/32"), "dev", "lo"])?;
    }
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    let endpoints: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .zip(addresses)
        .map(|(host, address)| (host, address, "gpu-1"))
        .collect();
    manifests.write("slice.yaml", &slice(&endpoints))?;
    let server = Flags::new().start(manifests.path())?;
    let folder = TempDir::new()?;

    let mut first = receive(&folder, addresses[1]).await?;
    let pipe = folder.path().join("pipe");
    let parts = writer(&pipe)?;
    let mut command = multinet()?;
    command.args(["send", "--server", &server.dns().to_string(), SERVICE, "rdma"]).arg(&pipe);
    let mut sender = Process::spawn(&mut command, &folder.path().join("send.log"))?;
    let content: Vec<u8> = (0..SIZE).map(|place| (place % 251) as u8).collect();
    let (half, rest) = content.split_at(SIZE / 2);
    parts.send(half.to_vec())?;
    eventually("the first half to arrive", PATIENCE, async || {
        let part = part(folder.path())?.context("no data has arrived")?;
        ensure!(fs::metadata(part)?.len() >= 1 << 20, "less than 1 MiB has arrived");
        Ok(())
    })
    .await?;
    let mut late = Vec::new();
    for address in [addresses[0], addresses[2], addresses[3]] {
        late.push(receive(&folder, address).await?);
    }
    // In this time, the sender would find the others if it queried DNS again.
    tokio::time::sleep(Duration::from_secs(2)).await;
    parts.send(rest.to_vec())?;
    drop(parts);

    for process in [&mut sender, &mut first] {
        let status = process.exited(PATIENCE).await?;
        ensure!(status.success(), "{}: {status}: {}", process.name(), process.log());
    }
    ensure!(fs::read(output(&folder, addresses[1]))? == content, "the output differs from the input");
    for receiver in &mut late {
        receiver.check_running()?;
    }
    Ok(())
}

/// The receiver follows changes of the service's addresses.
#[tokio::test]
async fn only_the_pods_of_a_service_may_send() -> Result<()> {
    sandboxed!();
    let (stranger, pod) = ("10.9.0.2", "10.9.0.3");
    for address in [stranger, pod] {
        ip(&["address", "add", &format!("{address}/32"), "dev", "lo"])?;
    }
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    manifests.write("slice.yaml", &slice(&[("a", stranger, "gpu-1")]))?;
    let server = Flags::new().start(manifests.path())?;
    let folder = TempDir::new()?;
    let dns = server.dns().to_string();
    let mut receiver = receive_as(&folder, pod, &["--from", SERVICE, "--server", &dns]).await?;
    let content = folder.path().join("content");
    fs::write(&content, "content")?;
    // A connection to an address of this machine comes from the same address.
    let send = |wait: &str| -> Result<_> {
        let mut command = multinet()?;
        Ok(command.args(["send", pod, "--wait", wait, "--file"]).arg(&content).output()?)
    };
    let refused = send("1")?;
    let said = String::from_utf8(refused.stderr)?;
    ensure!(!refused.status.success() && said.contains("may not send here"), "{said}");
    manifests.write("slice.yaml", &slice(&[("b", pod, "gpu-1")]))?;
    let sent = send("20")?;
    ensure!(sent.status.success(), "{}", String::from_utf8(sent.stderr)?);
    let status = receiver.exited(PATIENCE).await?;
    ensure!(status.success(), "{}", receiver.log());
    ensure!(fs::read(output(&folder, pod))? == b"content", "the output differs from the input");
    Ok(())
}

/// A sender that has filled the disk and stops gives way to one that has sent less.
#[tokio::test]
async fn a_full_disk_ends_the_transfer_that_stands_still() -> Result<()> {
    sandboxed!();
    let address = "10.9.0.2";
    ip(&["address", "add", &format!("{address}/32"), "dev", "lo"])?;
    let (folder, disk) = (TempDir::new()?, TempDir::new()?);
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(disk.path()))?;
    let output = disk.path().join("out");
    let mut command = multinet()?;
    command.args(["recv", "--address", address, "--output"]).arg(&output);
    let mut receiver = Process::spawn(&mut command, &folder.path().join("recv.log"))?;
    receiver.logged("listening on", PATIENCE).await?;
    let pipe = folder.path().join("pipe");
    let parts = writer(&pipe)?;
    let mut command = multinet()?;
    command.args(["send", address, "--frame-size", "65536", "--file"]).arg(&pipe);
    let stranger = Process::spawn(&mut command, &folder.path().join("send.log"))?;
    parts.send(vec![1; 900 << 10])?;
    eventually("the disk to be nearly full", PATIENCE, async || {
        let part = part(disk.path())?.context("nothing has arrived")?;
        ensure!(fs::metadata(part)?.len() >= 800 << 10, "not much has arrived");
        Ok(())
    })
    .await?;
    // Longer than a transfer may pause before it counts as standing still.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let content = folder.path().join("content");
    fs::write(&content, vec![2; 500 << 10])?;
    run(multinet()?.args(["send", address, "--file"]).arg(&content))?;
    let status = receiver.exited(PATIENCE).await?;
    ensure!(status.success(), "{}", receiver.log());
    ensure!(fs::read(output)? == fs::read(&content)?, "not what was sent");
    drop(stranger);
    run(Command::new("umount").arg(disk.path()))
}

/// To open a named pipe is to wait for its writer, and the kernel does not end the first process of
/// a container by a signal without a handler.
#[tokio::test]
async fn sigterm_ends_a_sender_that_waits_for_a_pipe_as_the_first_process_of_a_container() -> Result<()> {
    sandboxed!();
    let folder = TempDir::new()?;
    let pipe = folder.path().join("pipe");
    run(Command::new("mkfifo").arg(&pipe))?;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork"]).arg(multinet()?.get_program());
    command.args(["send", "127.0.0.1:9", "--file"]).arg(&pipe);
    let mut unshare = Process::spawn(&mut command, &folder.path().join("send.log"))?;
    let id = unshare.pid();
    let status = eventually("the sender to end", PATIENCE, async || {
        // It may not have its handler yet.
        let first = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let _ = Command::new("kill").args(["-s", "TERM", first.trim()]).output();
        unshare.exited(Duration::from_millis(200)).await
    })
    .await?;
    ensure!(status.code() == Some(143), "{status}: {}", unshare.log());
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn receive(folder: &TempDir, address: &str) -> Result<Process> {
    receive_as(folder, address, &[]).await
}

async fn receive_as(folder: &TempDir, address: &str, more: &[&str]) -> Result<Process> {
    let mut command = multinet()?;
    command.args(["recv", "--address", address, "--output"]).arg(output(folder, address)).args(more);
    let log = folder.path().join(format!("{address}.log"));
    let mut receiver = Process::spawn(&mut command, &log)?;
    receiver.logged("listening on", PATIENCE).await?;
    Ok(receiver)
}

fn output(folder: &TempDir, address: &str) -> PathBuf {
    folder.path().join(format!("{address}.out"))
}

/// Returns the path of the unfinished output file of a receiver.
fn part(folder: &Path) -> Result<Option<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "part")))
}

/// Creates a named pipe with a thread that writes to it. The test does not wait for the thread.
fn writer(pipe: &Path) -> Result<mpsc::Sender<Vec<u8>>> {
    ensure!(Command::new("mkfifo").arg(pipe).status()?.success(), "cannot create a named pipe");
    let (parts, inbox) = mpsc::channel::<Vec<u8>>();
    let pipe = pipe.to_owned();
    std::thread::spawn(move || -> std::io::Result<()> {
        let mut pipe = File::options().write(true).open(pipe)?;
        inbox.iter().try_for_each(|part| pipe.write_all(&part))
    });
    Ok(parts)
}
