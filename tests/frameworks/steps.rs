//! The steps of the test, one for each program.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::process::{image_binary, run};

use crate::stage::{Host, SERVICE, Stage};

const PATIENCE: Duration = Duration::from_secs(60);

/// Full names of the pods, in their order.
const NAMES: [&str; 2] =
    ["worker-0.train.vision.svc.multinet.cluster.local", "worker-1.train.vision.svc.multinet.cluster.local"];

const MPI_FLAGS: [&str; 3] = ["--allow-run-as-root", "-n", "2"];

pub(crate) async fn iperf3(stage: &Stage) -> Result<()> {
    let _server = stage.spawn(Host::Worker1, &["multinet", "exec", "--", "iperf3", "-s"])?;
    stage.listens(Host::Worker1, 5201).await?;
    let name = format!("worker-1.{SERVICE}");
    let before = stage.traffic()?;
    stage.run(Host::Worker0, &["multinet", "exec", "--", "iperf3", "-n", "64M", "-c", &name])?;
    stage.since(before)?.is_on_net1()?;
    // It has no variable for its interface: only the name decides.
    let before = stage.traffic()?;
    stage.run(Host::Worker0, &["iperf3", "-n", "64M", "-c", "10.244.0.12"])?;
    let traffic = stage.since(before)?;
    ensure!(traffic.eth0 > 50_000_000, "{traffic:?}");
    Ok(())
}

pub(crate) async fn ucx(stage: &Stage) -> Result<()> {
    let _server = stage.spawn(Host::Worker1, &["multinet", "exec", "--for", "ucx", "--", "ucx_perftest"])?;
    stage.listens(Host::Worker1, 13337).await?;
    let name = format!("worker-1.{SERVICE}");
    let measure = ["ucx_perftest", &name, "-t", "tag_bw", "-s", "1000000", "-n", "60", "-w", "2"];
    let before = stage.traffic()?;
    stage.run(Host::Worker0, &[&["multinet", "exec", "--for", "ucx", "--"], &measure[..]].concat())?;
    stage.since(before)?.is_on_net1()
}

pub(crate) async fn mooncake(stage: &Stage) -> Result<()> {
    // The shell sees the variables that multinet sets.
    let script =
        format!(r#"exec wheels-python {} "$MOONCAKE_LOCAL_HOSTNAME" "$0""#, stage.program("transfer.py"));
    let call = |peer| {
        ["multinet", "exec", "--for", "mooncake", "--service", SERVICE, "--", "sh", "-c", &script, peer]
    };
    let mut target = stage.spawn(Host::Worker1, &call("target"))?;
    let place = target.logged("ready at ", PATIENCE).await?;
    ensure!(place.starts_with("worker-1.train."), "{place}");
    let before = stage.traffic()?;
    stage.run(Host::Worker0, &call(&place))?;
    stage.since(before)?.is_on_net1()
}

pub(crate) fn open_mpi(stage: &Stage) -> Result<()> {
    let ssh = stage.ssh()?;
    let program = stage.program("send.py");
    let mpirun = ["mpirun", "--prtemca", "plm_ssh_agent", &ssh, "--hostfile"];
    let ranks = |printed: &str| {
        let is_there = |rank| printed.contains(&format!("rank {rank} of 2 on worker-{rank}"));
        ensure!(is_there(0) && is_there(1), "{printed}");
        Ok(())
    };

    // From a worker, with the second names of the hosts. Each rank finds its own NIC.
    let hosts = hostfile(stage, "mpi")?;
    let rank = ["multinet", "exec", "--for", "mpi", "--strict", "--", "wheels-python", &program];
    let before = stage.traffic()?;
    let words = [&mpirun[..], &[&hosts], &MPI_FLAGS, &rank].concat();
    ranks(&stage.run(Host::Worker0, &words)?)?;
    stage.since(before)?.is_on_net1()?;

    // From a launcher without a second NIC, which reaches the hosts on the default network.
    let hosts = stage.file("by-eth0");
    fs::write(&hosts, "10.244.0.11 slots=1\n10.244.0.12 slots=1\n")?;
    let hosts = hosts.display().to_string();
    // It waits for the service, not for a NIC.
    let launcher =
        ["timeout", "60", "multinet", "exec", "--for", "mpi", "--service", SERVICE, "--wait", "1h", "--"];
    let words = [&launcher, &mpirun[..], &[&hosts], &MPI_FLAGS, &["wheels-python", &program]].concat();
    let before = stage.traffic()?;
    ranks(&stage.run(Host::Launcher, &words)?)?;
    stage.since(before)?.is_on_net1()?;

    // Without multinet, Open MPI uses both NICs.
    let words = [&mpirun[..], &[&hosts], &MPI_FLAGS, &["wheels-python", &program]].concat();
    let before = stage.traffic()?;
    ranks(&stage.run(Host::Launcher, &words)?)?;
    let traffic = stage.since(before)?;
    ensure!(traffic.eth0 > 10_000_000, "{traffic:?}");
    Ok(())
}

pub(crate) fn mpich(stage: &Stage) -> Result<()> {
    let hosts = hostfile(stage, "mpich")?;
    let ssh = stage.ssh()?;
    let printed = stage.run(
        Host::Worker0,
        &["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", &ssh, "-f", &hosts, "-n", "2", "hostname"],
    )?;
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort_unstable();
    ensure!(lines == ["worker-0", "worker-1"], "{printed}");
    Ok(())
}

pub(crate) fn deepspeed_and_horovod(stage: &Stage) -> Result<()> {
    for (format, function) in [("deepspeed", "_parse_hostfile"), ("horovod", "parse_host_files")] {
        let hosts = hostfile(stage, format)?;
        let source = stage.downloads.join(format!("parsers/{format}.py")).display().to_string();
        let parser = stage.program("hosts.py");
        let printed = run(Command::new("python3").args([&parser, &source, function, &hosts]))?;
        let expected = NAMES.map(|name| format!("{name}:1")).join(",");
        ensure!(printed.trim_end() == expected, "{format}: {printed}");
    }
    Ok(())
}

pub(crate) fn ray(stage: &Stage) -> Result<()> {
    let hosts = hostfile(stage, "ray")?;
    let source = stage.downloads.join("parsers/ray.py").display().to_string();
    // PyTorch's packages have the module of Python that reads YAML.
    let reader = stage.program("ray_hosts.py");
    let printed = stage.run(Host::Worker0, &["torch-python", &reader, &source, &hosts])?;
    ensure!(printed.trim_end() == format!("{} {} 1", NAMES[0], NAMES[1]), "{printed}");
    Ok(())
}

/// Writes the hosts of the service to a file in a launcher's format. Returns its path.
fn hostfile(stage: &Stage, format: &str) -> Result<String> {
    let words = ["multinet", "hostfile", SERVICE, "--count", "2", "--slots", "1", "--format", format];
    let path = stage.file(&format!("hosts-{format}"));
    fs::write(&path, stage.run(Host::Worker0, &words)?)?;
    Ok(path.display().to_string())
}

/// Runs PyTorch in both pods, with these words before its command line.
async fn all_reduce(stage: &Stage, before: &[&str]) -> Result<()> {
    let (program, master) = (stage.program("all_reduce.py"), format!("worker-0.{SERVICE}"));
    let printed = stage.both(&[before, &["torch-python", &program, &master, "2"]].concat()).await?;
    summed(&printed)
}

/// Fails unless both ranks have the sum of four rounds.
fn summed(printed: &str) -> Result<()> {
    let has = |rank| printed.contains(&format!("rank {rank} of 2 has 16.0"));
    ensure!(has(0) && has(1), "{printed}");
    Ok(())
}

pub(crate) async fn torch(stage: &Stage) -> Result<()> {
    let before = stage.traffic()?;
    all_reduce(stage, &["multinet", "exec", "--strict", "--for", "gloo", "--"]).await?;
    stage.since(before)?.is_on_net1()
}

pub(crate) async fn torchrun(stage: &Stage) -> Result<()> {
    let before = stage.traffic()?;
    let program = stage.program("all_reduce.py");
    // Python 3.11 cannot start the processes of PyTorch 1.13 without files for their output.
    let arguments = ["--nproc_per_node=1", "-r", "1", "-t", "1", &program];
    let words = [&["multinet", "torchrun", SERVICE, "--count", "2", "--"], &arguments[..]].concat();
    summed(&stage.both(&words).await?)?;
    stage.since(before)?.is_on_net1()
}

/// PyTorch takes the interface of the host's name, although its master has a second name. So the
/// counts above can fail.
pub(crate) async fn without_multinet(stage: &Stage) -> Result<()> {
    let before = stage.traffic()?;
    all_reduce(stage, &[]).await?;
    let traffic = stage.since(before)?;
    ensure!(traffic.eth0 > 50_000_000 && traffic.net1 < 1_000_000, "{traffic:?}");
    Ok(())
}

/// The static program runs in a container that has no other file, and prints what the usual one
/// prints.
pub(crate) fn the_small_program(stage: &Stage) -> Result<()> {
    let root = stage.file("root");
    for folder in ["proc", "sys", "dev", "etc"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let program = image_binary("multinet")?;
    fs::copy(&program, root.join("multinet")).with_context(|| program.display().to_string())?;
    // As container runtimes do.
    let script = r#"
        for folder in proc sys dev; do mount --rbind /$folder "$0/$folder" || exit 1; done
        cp /etc/resolv.conf "$0/etc"
        exec chroot "$0" "$@"
    "#;
    let root = root.display().to_string();
    for words in [
        &["env", "--for", "nccl,ucx,gloo,mpi", "--service", SERVICE][..],
        &["hostfile", SERVICE],
        &["resolve", SERVICE, "rendezvous"],
    ] {
        let small = [&["unshare", "--mount", "sh", "-c", script, &root, "/multinet"], words].concat();
        let small = stage.run(Host::Worker0, &small)?;
        let usual = stage.run(Host::Worker0, &[&["multinet"], words].concat())?;
        ensure!(small == usual, "{words:?}: {small}\n{usual}");
    }
    Ok(())
}
