//! One address in front of both replicas, as a Service of Kubernetes is.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use multinet_testing::process::free_port;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Balancer that leads each connection to the next replica that accepts it.
pub(crate) struct Balancer {
    address: SocketAddr,
    // Dropping the balancer drops this task, which ends it.
    _task: JoinSet<()>,
}

impl Balancer {
    /// Starts a balancer in front of these ports.
    pub(crate) async fn start(ports: [u16; 2]) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let listener = TcpListener::bind(address).await.context("cannot listen for the balancer")?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            for turn in 0.. {
                let Ok((client, _)) = listener.accept().await else { return };
                connections.spawn(carry(client, [ports[turn % 2], ports[(turn + 1) % 2]]));
            }
        });
        Ok(Self { address, _task: task })
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Carries one connection to its end. Errors need no report, because both ends see them.
async fn carry(mut client: TcpStream, ports: [u16; 2]) {
    for port in ports {
        if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
            let _ = copy_bidirectional(&mut client, &mut server).await;
            return;
        }
    }
}
