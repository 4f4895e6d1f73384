//! A device that is removed while connections use it, and comes back.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use multinet_client::{
    Acknowledge, Buffer, Connector, Delivery, Endpoint, Frame, Listener, PeerSet, Transport, TransportKind,
};
use multinet_testing::in_guest;
use multinet_testing::wait::eventually;
use tokio::sync::Notify;

use super::{HERE, amount, follow, no_resolver, pairs};

const BOUND: Duration = Duration::from_secs(120);

/// The kernel removes a soft-RoCE device only when no process has it open. So connections that
/// break have to free everything that belongs to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_go_on_when_a_device_is_taken_away_and_comes_back() -> Result<()> {
    in_guest!();
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let frames = amount(60, 200) as u32;
    let (listener, peers) = connected().await?;
    let has_begun = Notify::new();
    let sending = async {
        let mut buffer = Buffer::host(100_000);
        for number in 0..frames {
            // Every other frame is sent without a copy.
            let frame = match buffer.as_mut() {
                Some(bytes) if number % 2 == 0 => {
                    bytes.fill(number as u8);
                    Frame::new(buffer.clone())
                }
                _ => Frame::new(vec![number as u8; 100_000]),
            };
            let sent = tokio::time::timeout(BOUND, peers.send(frame.metadata(number.to_be_bytes().to_vec())))
                .await??;
            if number % 20 == 0 {
                sent.acknowledged().await?;
            }
        }
        peers.flush().await?;
        anyhow::Ok(())
    };
    let receiving = async {
        let mut came = vec![false; frames as usize];
        for count in 0..frames {
            if count == frames / 4 {
                has_begun.notify_one();
            }
            let frame = tokio::time::timeout(BOUND, listener.recv()).await??;
            let number = u32::from_be_bytes(frame.metadata().try_into()?);
            ensure!(frame.bytes() == vec![number as u8; 100_000], "frame {number} is another");
            let came = came.get_mut(number as usize).context("a frame that was not sent")?;
            ensure!(!std::mem::replace(came, true), "frame {number} has come twice");
        }
        anyhow::Ok(())
    };
    // Received frames lie in memory of the device, so they have to be taken meanwhile.
    let changing = async {
        has_begun.notified().await;
        change_device().await
    };
    futures::try_join!(sending, receiving, changing)?;
    let statistics = peers.statistics();
    ensure!(statistics.acknowledged == u64::from(frames) && statistics.disconnects > 0, "{statistics:?}");
    eventually("the queue pairs of the one connection that there is", BOUND, async || match pairs()? {
        2 => Ok(()),
        count => bail!("{count} queue pairs"),
    })
    .await
}

async fn change_device() -> Result<()> {
    // This removes rxe0 as soon as possible, and the command waits for that.
    tokio::task::spawn_blocking(|| run("ip", "link delete rdma0")).await??;
    eventually("rxe0 to be gone", BOUND, async || {
        ensure!(!Path::new("/sys/class/infiniband/rxe0").exists(), "rxe0 is still there");
        Ok(())
    })
    .await?;
    for command in [
        "link add rdma0 type dummy",
        "link set rdma0 mtu 4200",
        "address add 10.9.0.1/24 dev rdma0",
        "address add 10.9.0.2/24 dev rdma0",
        "link set rdma0 up",
    ] {
        run("ip", command)?;
    }
    run("rdma", "link add rxe0 type rxe netdev rdma0")
}

fn run(program: &str, arguments: &str) -> Result<()> {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn connected() -> Result<(Listener, PeerSet)> {
    let listener = Listener::builder()
        .address(HERE.into())
        .port(0)
        .frame_size(100_000)
        .acknowledge(Acknowledge::OnDrop)
        .patience(Duration::from_secs(20))
        .bind()
        .await?;
    let connector = Connector::builder()
        .resolver(no_resolver()?)
        .transport(Transport::Rdma)
        .delivery(Delivery::AtLeastOnce)
        .patience(Duration::from_secs(20));
    let peers = follow(connector, vec![Endpoint::at(listener.local_addresses()[0])])?;
    tokio::time::timeout(BOUND, peers.connected(1)).await?;
    ensure!(peers.status()[0].transport == Some(TransportKind::Rdma), "{:#?}", peers.status());
    Ok((listener, peers))
}
