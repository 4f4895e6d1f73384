//! NICs and routes as in real pods. The library has to choose the kernel's route, and to connect by
//! it.
//!
//! The sandbox is one pod, and the network namespace `peer` the other. Both have a default network
//! on `eth0`.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_client::Listener;
use multinet_client::nic::{AddressState, RouteError, local_interfaces, route_to, second_nics};
use multinet_testing::multus::ip;
use multinet_testing::process::Process;
use multinet_testing::sandboxed;
use multinet_testing::wait::eventually;
use tempfile::TempDir;

use crate::multinet::{Outcome, multinet};

const PATIENCE: Duration = Duration::from_secs(20);

/// Commands that create two pods with a default network, and two more links between them.
const PODS: &str = "
    link set lo up
    netns add peer
    -n peer link set lo up
    link add eth0 type veth peer name eth0 netns peer
    link add net1 type veth peer name net1 netns peer
    link add net2 type veth peer name net2 netns peer
    address add 10.244.0.11/24 dev eth0
    -n peer address add 10.244.0.12/24 dev eth0
    link set eth0 up
    link set net1 up
    link set net2 up
    -n peer link set eth0 up
    -n peer link set net1 up
    -n peer link set net2 up
    route add default via 10.244.0.12
    -n peer route add default via 10.244.0.11
";

/// Commands that add an address of each pod on the first of these links.
const ON_NET1: &str = "
    address add 192.168.111.11/24 dev net1
    -n peer address add 192.168.111.12/24 dev net1
";

/// Runs `ip` with each of these lines as arguments.
fn set_up(lines: &[&str]) -> Result<()> {
    let mut lines =
        lines.iter().flat_map(|lines| lines.lines()).map(str::trim).filter(|line| !line.is_empty());
    lines.try_for_each(|line| ip(&line.split(' ').collect::<Vec<_>>()))
}

/// Writes a setting of the network to both pods.
fn set(name: &str, value: u32) -> Result<()> {
    let write = format!("echo {value} > /proc/sys/net/{name}");
    for program in [&["sh", "-c"][..], &["ip", "netns", "exec", "peer", "sh", "-c"]] {
        let status = Command::new(program[0]).args(&program[1..]).arg(&write).status()?;
        ensure!(status.success(), "{write}: {status}");
    }
    Ok(())
}

fn address(text: &str) -> Result<IpAddr> {
    Ok(text.parse()?)
}

fn doctor(arguments: &[&str]) -> Result<Outcome> {
    Outcome::of(multinet()?.args(["doctor", "--resolv-conf", "/dev/null"]).args(arguments))
}

/// Server in the peer.
struct Server {
    process: Process,
    folder: TempDir,
}

impl Server {
    async fn start(arguments: &[&str]) -> Result<Self> {
        let folder = TempDir::new()?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", "peer"]).arg(multinet()?.get_program()).args(["bench", "server"]);
        let mut process = Process::spawn(command.args(arguments), &folder.path().join("server.log"))?;
        process.logged("listening on", PATIENCE).await?;
        Ok(Self { process, folder })
    }

    /// Checks that frames reach the peer by this interface, and that `multinet doctor` names it.
    fn reached(&mut self, peer: &str, interface: &str) -> Result<()> {
        let route = route_to(address(peer)?)?.on_second_nic()?;
        ensure!(route.interface == interface, "{route:?}");
        let frames = ["bench", "client", peer, "-s", "4096", "-n", "20", "--transport", "tcp"];
        let outcome = Outcome::of(multinet()?.args(frames))?;
        ensure!(outcome.status == Some(0), "{outcome:?}\n{}", self.process.log());
        let doctor = doctor(&[&format!("{peer}:18515")])?;
        let is_said =
            |line: &str| line.contains("connected in") && line.contains(&format!(" on {interface}"));
        ensure!(doctor.stdout.lines().any(is_said), "{doctor:?}");
        ensure!(self.folder.path().exists());
        Ok(())
    }
}

/// The CNI plugin `sbr` creates such routes by `net1`, for packets from its address only.
#[tokio::test]
async fn a_route_for_packets_from_the_second_nic_only_is_found() -> Result<()> {
    sandboxed!();
    set_up(&[
        PODS,
        ON_NET1,
        "rule add from 192.168.111.11/32 table 100
         route del 192.168.111.0/24 dev net1
         route add 192.168.111.0/24 dev net1 src 192.168.111.11 table 100
         -n peer rule add from 192.168.111.12/32 table 100
         -n peer route del 192.168.111.0/24 dev net1
         -n peer route add 192.168.111.0/24 dev net1 src 192.168.111.12 table 100",
    ])?;
    let mut server = Server::start(&[]).await?;
    server.reached("192.168.111.12", "net1")?;
    // Of two such NICs with a gateway each, the one on the peer's network is used.
    set_up(&["address add 192.168.110.11/24 dev net2
         rule add from 192.168.110.11/32 table 99
         route add default via 192.168.110.1 dev net2 table 99
         route add default via 192.168.111.1 dev net1 table 100"])?;
    server.reached("192.168.111.12", "net1")
}

/// Either NIC answers ARP requests for the addresses of both. Here the wrong one has answered.
#[tokio::test]
async fn two_nics_in_one_subnet_accept_packets_by_either() -> Result<()> {
    sandboxed!();
    set_up(&[
        PODS,
        ON_NET1,
        "address add 192.168.111.21/24 dev net2
         -n peer address add 192.168.111.22/24 dev net2",
    ])?;
    set("ipv4/conf/all/rp_filter", 0)?;
    let mut server = Server::start(&[]).await?;
    // Packets to .22 arrive by the first link, and packets to .11 return by the second one.
    set_up(&["-n peer route add 192.168.111.11/32 dev net2"])?;
    set("ipv4/conf/net1/rp_filter", 0)?;
    set("ipv4/conf/net2/rp_filter", 0)?;
    server.reached("192.168.111.22", "net1")?;
    let doctor = doctor(&[])?;
    let said = "net1 (192.168.111.11) and net2 (192.168.111.21) are in one subnet, 192.168.111.0/24: packets from 192.168.111.21 leave by net1";
    ensure!(doctor.stdout.contains(said), "{doctor:?}");
    Ok(())
}

/// Hosts that announce their address by BGP have it on the loopback interface.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_address_of_the_loopback_interface_is_reached_by_the_nics_without_one() -> Result<()> {
    sandboxed!();
    set_up(&[
        PODS,
        "address add 10.50.0.1/32 dev lo
         route add 10.50.0.2/32 dev net1 src 10.50.0.1
         -n peer address add 10.50.0.2/32 dev lo
         -n peer route add 10.50.0.1/32 dev net2 src 10.50.0.2",
    ])?;
    for name in ["all", "net1", "net2"] {
        set(&format!("ipv4/conf/{name}/rp_filter"), 0)?;
    }
    let local = second_nics()?;
    ensure!(
        local.len() == 1 && local[0].ip == address("10.50.0.1")? && local[0].interface == "net1",
        "{local:?}"
    );
    Server::start(&[]).await?.reached("10.50.0.2", "net1")?;
    // Its answers do not leave by the default network, though a peer comes by it.
    let listener = Listener::builder().port(0).bind().await?;
    let answer = |seconds: u32| {
        let port = listener.local_addresses()[0].port();
        let greet = format!(
            "exec 3<>/dev/tcp/10.50.0.1/{port}; printf 'MNET\\0\\001\\0\\002{{}}' >&3; timeout {seconds} cat <&3"
        );
        let output = Command::new("ip").args(["netns", "exec", "peer", "bash", "-c", &greet]).output()?;
        anyhow::Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let by_net2 = tokio::task::block_in_place(|| answer(20))?;
    ensure!(by_net2.contains("refuse"), "{by_net2}");
    set_up(&["-n peer route del 10.50.0.1/32 dev net2"])?;
    let by_eth0 = tokio::task::block_in_place(|| answer(1))?;
    ensure!(by_eth0.is_empty(), "{by_eth0}");
    Ok(())
}

#[tokio::test]
async fn an_address_of_two_nics_leaves_by_the_one_on_the_way() -> Result<()> {
    sandboxed!();
    set_up(&[
        PODS,
        "address add 192.168.111.11/32 dev net1
         address add 192.168.111.11/24 dev net2
         -n peer address add 192.168.111.12/24 dev net2",
    ])?;
    Server::start(&[]).await?.reached("192.168.111.12", "net2")?;
    let listener = Listener::builder().port(0).bind().await?;
    let listening = listener.local_addresses();
    ensure!(listening.len() == 1, "{listening:?}");
    Ok(())
}

/// Multus' `default-route` moves the default route to another interface.
#[tokio::test]
async fn eth0_is_the_default_network_wherever_the_default_route_is() -> Result<()> {
    sandboxed!();
    set_up(&[
        PODS,
        ON_NET1,
        "route del default
         route add default via 192.168.111.12",
    ])?;
    let mut server = Server::start(&[]).await?;
    server.reached("192.168.111.12", "net1")?;
    let refused = route_to(address("10.244.0.12")?)?.on_second_nic();
    ensure!(matches!(&refused, Err(RouteError::DefaultNetwork { .. })), "{refused:?}");
    // This holds even without a default route in the main table.
    set_up(&["route del default"])?;
    let refused = route_to(address("10.244.0.12")?)?.on_second_nic();
    ensure!(matches!(&refused, Err(RouteError::DefaultNetwork { .. })), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_listener_skips_an_address_that_another_host_has() -> Result<()> {
    sandboxed!();
    set_up(&[PODS, ON_NET1, "-n peer address add fd00:111::12/64 dev net1 nodad"])?;
    set_up(&["address add fd00:111::11/64 dev net1"])?;
    // The kernel checks for a second whether another host has the address.
    let listening = listening().await?;
    ensure!(listening.iter().any(|ip| *ip == "fd00:111::11"), "a tentative address: {listening:?}");
    set_up(&["address add fd00:111::12/64 dev net1"])?;
    let failed = address("fd00:111::12")?;
    eventually("duplicate address detection to fail", PATIENCE, async || {
        let interfaces = local_interfaces()?;
        let mut all = interfaces.iter().flat_map(|interface| &interface.addresses);
        let is_it = all.any(|its| its.ip == failed && its.state == AddressState::Duplicate);
        ensure!(is_it, "{interfaces:?}");
        Ok(())
    })
    .await?;
    let listening = self::listening().await?;
    ensure!(listening.iter().all(|ip| *ip != "fd00:111::12"), "{listening:?}");
    ensure!(listening.iter().any(|ip| *ip == "192.168.111.11"), "{listening:?}");
    let error = Listener::builder().address(failed).bind().await.err().context("no error")?.to_string();
    ensure!(error.contains("another host on its network has this address"), "{error}");
    Ok(())
}

async fn listening() -> Result<Vec<String>> {
    let listener = Listener::builder().port(0).bind().await?;
    Ok(listener.local_addresses().iter().map(|address| address.ip().to_string()).collect())
}

#[tokio::test]
async fn obstacles_are_named_by_send_and_doctor() -> Result<()> {
    sandboxed!();
    set_up(&[PODS, ON_NET1])?;
    // Otherwise a host sends only one such error per second.
    set("ipv4/icmp_ratelimit", 0)?;
    let server = Server::start(&[]).await?;
    // Without an answer from the neighbour, the kernel gives up after three seconds.
    let said = |wait: &str, what: &str| {
        let send = ["send", "192.168.111.12", "--wait", wait];
        let send = Outcome::of(multinet()?.args(send))?;
        ensure!(send.status == Some(1) && send.stderr.contains(what), "{what}: {send:?}");
        let doctor = doctor(&["192.168.111.12:18515"])?;
        ensure!(doctor.status == Some(1), "{what}: {doctor:?}");
        Ok(doctor.stdout)
    };
    let firewall = |what: &str, how: &[&str]| {
        let mut iptables = Command::new("ip");
        iptables.args([
            "netns", "exec", "peer", "iptables", what, "INPUT", "-p", "tcp", "--dport", "18515", "-j",
        ]);
        let status = iptables.args(how).status()?;
        ensure!(status.success(), "iptables: {status}");
        Ok(())
    };
    for how in [
        &["REJECT"][..],
        &["REJECT", "--reject-with", "icmp-admin-prohibited"],
        &["REJECT", "--reject-with", "tcp-reset"],
    ] {
        firewall("-A", how)?;
        let doctor = said("1", "a firewall or NetworkPolicy rejects it")?;
        ensure!(doctor.contains("NetworkPolicy"), "{how:?}: {doctor}");
        firewall("-D", how)?;
    }
    drop(server);
    said("1", "nothing listens there")?;
    set_up(&["-n peer link set net1 down"])?;
    let doctor = said("4", "net1 has no carrier")?;
    ensure!(doctor.contains("net1 (192.168.111.11) has no carrier"), "{doctor}");
    set_up(&["link set net1 down"])?;
    let doctor = said("1", "the default network, since net1 is down: bring it up")?;
    ensure!(
        doctor.contains("net1 (192.168.111.11) is down") && !doctor.contains("attach this pod"),
        "{doctor}"
    );
    set_up(&["link set net1 up", "-n peer link set net1 up", "route add prohibit 192.168.111.12/32"])?;
    let doctor = said("1", "a route or rule of this pod forbids it")?;
    ensure!(doctor.contains("no route or rule of the pod forbids it"), "{doctor}");
    Ok(())
}
