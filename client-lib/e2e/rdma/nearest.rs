//! Two rails with soft-RoCE, and GPUs that are nearer to one of them, as the files in /sys say.

use std::process::Command;
use std::time::Duration;

use super::stand_in::{At, StandIn};
use anyhow::{Context as _, Result, bail, ensure};
use multinet_client::{
    Buffer, Choice, Connector, Endpoint, EndpointAddress, Listener, Transport, TransportKind,
};
use multinet_testing::in_guest;
use tokio::time::timeout;

use super::{BOUND, follow, no_resolver};

/// A second link, and the kernel's files for a machine in which each NIC shares a PCIe switch with
/// a GPU.
const RAILS: &str = r#"
    set -e
    ip link add rdma1 type dummy
    ip link set rdma1 mtu 4200
    ip address add 10.9.1.2/24 dev rdma1
    ip link set rdma1 up
    rdma link add rxe1 type rxe netdev rdma1
    attempts=0
    port=/sys/class/infiniband/rxe1/ports/1
    until grep -qs ACTIVE $port/state && grep -qsx 0000:0000:0000:0000:0000:ffff:0a09:0102 $port/gids/*; do
      attempts=$((attempts + 1))
      [ $attempts -lt 1200 ] || { echo "rxe1 is not ready: $(rdma link show)" >&2; exit 1; }
      sleep 0.1
    done

    mkdir -p /tmp/pci/devices /tmp/pci/net
    for switch in 0 1; do
      root=/tmp/pci/sys/devices/pci0000:${switch}0/0000:${switch}0:01.0/0000:${switch}1:00.0
      nic=$root/0000:${switch}2:00.0/0000:${switch}3:00.0
      gpu=$root/0000:${switch}2:01.0/0000:${switch}4:00.0
      for function in $nic $gpu; do
        mkdir -p $function
        echo $switch >$function/numa_node
      done
      ln -s $gpu /tmp/pci/devices/
      # The interface as it is, and beside that the device that it has not.
      mkdir /tmp/pci/net/rdma$switch
      ln -s /sys/devices/virtual/net/rdma$switch/* /tmp/pci/net/rdma$switch/
      ln -s $nic /tmp/pci/net/rdma$switch/device
    done
    mount --bind /tmp/pci/net /sys/class/net
    mount --bind /tmp/pci/devices /sys/bus/pci/devices
"#;

/// Long, since the guest is slow, and after a timeout the other rail would be used.
const PATIENCE: Duration = Duration::from_secs(60);

/// The addresses of the listener.
const RAIL: [[u8; 4]; 2] = [[10, 9, 0, 2], [10, 9, 1, 2]];

/// The GPU on the same switch as the NIC of each rail.
const GPU: [&str; 2] = ["0000:04:00.0", "0000:14:00.0"];

#[tokio::test]
async fn the_nearest_rail_follows_the_files_in_sys() -> Result<()> {
    in_guest!();
    let status = Command::new("sh").args(["-c", RAILS]).status().context("cannot start sh")?;
    ensure!(status.success(), "there are no two rails: {status}");
    timeout(BOUND, rails_are_chosen_by_their_distance_to_the_gpu()).await.context("rails")??;
    timeout(BOUND, the_peer_on_the_same_numa_node_is_nearest()).await.context("peers")?
}

async fn rails_are_chosen_by_their_distance_to_the_gpu() -> Result<()> {
    let listener = Listener::builder()
        .port(0)
        .frame_size(4096)
        .transport(Transport::Rdma)
        .patience(PATIENCE)
        .bind()
        .await?;
    let port = listener.local_addresses().first().context("it listens nowhere")?.port();
    let mut endpoint = Endpoint::at((RAIL[0], port).into());
    endpoint.addresses = RAIL.map(|ip| EndpointAddress::new(ip.into())).into();
    for (address, network) in endpoint.addresses.iter_mut().zip(["rail0", "rail1"]) {
        address.network = Some(network.to_owned());
    }
    let cases = [
        (None, 0),
        (Some(GPU[0]), 0),
        (Some(GPU[1]), 1),
        // A GPU that is not on this machine, to which all NICs are equally near.
        (Some("0000:24:00.0"), 0),
    ];
    for (gpu, rail) in cases {
        let mut connector =
            Connector::builder().resolver(no_resolver()?).transport(Transport::Rdma).patience(PATIENCE);
        if let Some(address) = gpu {
            connector = connector.gpu(StandIn::plugged_in("stand-in", address, At::Nothing).gpu());
        }
        let peers = follow(connector, vec![endpoint.clone()])?;
        peers.send(Buffer::host(4096)).await?;
        let sender = listener.recv().await?.sender().address();
        ensure!(sender.to_string().starts_with(&format!("10.9.{rail}.")), "{gpu:?}: it came from {sender}");
        let transport = peers.status().first().and_then(|peer| peer.transport);
        ensure!(transport == Some(TransportKind::Rdma), "{gpu:?}: {transport:?}");
    }
    Ok(())
}

/// The two peers differ only in their NUMA nodes; that of the second is the node of our NIC.
async fn the_peer_on_the_same_numa_node_is_nearest() -> Result<()> {
    let mut listeners = Vec::new();
    let mut endpoints = Vec::new();
    for rail in RAIL {
        let listener = Listener::builder()
            .address(rail.into())
            .port(0)
            .frame_size(4096)
            .patience(PATIENCE)
            .bind()
            .await?;
        let mut endpoint = Endpoint::at(listener.local_addresses()[0]);
        endpoint.addresses[0].numa = Some(1);
        endpoints.push(endpoint);
        listeners.push(listener);
    }
    let connector = Connector::builder().resolver(no_resolver()?).choice(Choice::Nearest).patience(PATIENCE);
    let peers = follow(connector, endpoints)?;
    peers.connected(2).await;
    for _ in 0..10 {
        peers.send(Buffer::host(64)).await?;
        tokio::select! {
            frame = listeners[1].recv() => drop(frame?),
            _ = listeners[0].recv() => bail!("the far one has got one"),
        }
    }
    Ok(())
}
