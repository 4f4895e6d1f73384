//! Large frames in stripes over several queue pairs: they arrive whole and in order, with small
//! frames between them, and after connections have broken.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_client::{
    Acknowledge, Buffer, Connector, Delivery, Endpoint, Frame, Listener, ListenerBuilder, PeerSet, Rdma,
    Transport,
};
use multinet_testing::in_guest;
use multinet_testing::multus::ip;
use multinet_testing::wait::eventually;

use super::{HERE, amount, follow, no_resolver, pair_lines, pairs};

const LARGEST: usize = 700_000;
const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_in_parts_arrive_whole_and_in_order() -> Result<()> {
    in_guest!();
    let frames = amount(30, 300) as u64;
    for stripes in [2, 8] {
        let (listener, peers) = connected(stripes, Delivery::AtMostOnce).await?;
        // The connections of the round before may still have queue pairs.
        eventually("the queue pairs of this connection alone", BOUND, async || {
            ensure!(pairs()? == 2 * usize::from(stripes), "{} queue pairs, not {stripes} for each", pairs()?);
            Ok(())
        })
        .await?;
        let before = positions()?;
        let sending = send(&peers, frames);
        let receiving = async {
            for number in 0..frames {
                let frame = tokio::time::timeout(BOUND, listener.recv()).await??;
                ensure!(frame.bytes() == payload(number), "frame {number} is another");
            }
            anyhow::Ok(())
        };
        futures::try_join!(sending, receiving).with_context(|| format!("{stripes} pairs"))?;
        ensure!(peers.statistics().disconnects == 0, "{:?}", peers.statistics());
        // Two thirds of the frames are striped, with at least ten packets a stripe. The receiver
        // answers with at most one packet a frame.
        let sent = |(pair, now): (u32, u32)| now.wrapping_sub(before[&pair]) & 0x00ff_ffff;
        let sent: Vec<u32> = positions()?.into_iter().map(sent).collect();
        let busy = sent.iter().filter(|&&packets| packets > 2 * frames as u32).count();
        ensure!(
            busy == usize::from(stripes),
            "by {stripes} pairs, but each has sent so many packets: {sent:?}"
        );
        listener.close().await;
    }
    Ok(())
}

/// With the most slots for each of the most queue pairs, a completion queue would exceed
/// soft-RoCE's limit. Frames that are never striped need one queue pair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_frames_have_one_pair() -> Result<()> {
    in_guest!();
    let listener = listener().frame_size(1000).slots(4096).bind().await?;
    let peers = connect(&listener, Rdma::MOST_STRIPES, Delivery::AtMostOnce).await?;
    ensure!(pairs()? == 2, "{} queue pairs, not one for each", pairs()?);
    peers.send("short").await?;
    let frame = tokio::time::timeout(BOUND, listener.recv()).await??;
    ensure!(frame.bytes() == b"short", "{frame:?}");
    Ok(())
}

/// Frames that were in flight arrive again, none of them twice or in part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_in_parts_outlive_their_connection() -> Result<()> {
    in_guest!();
    let frames = amount(60, 300);
    let (listener, peers) = connected(4, Delivery::AtLeastOnce).await?;
    let sending = send(&peers, frames as u64);
    let receiving = async {
        let mut came = vec![false; frames];
        for count in 0..frames {
            if count == frames / 3 {
                ip(&["link", "set", "rdma0", "down"])?;
                eventually("the connection to break", BOUND, async || {
                    ensure!(peers.statistics().disconnects > 0, "{:?}", peers.statistics());
                    Ok(())
                })
                .await?;
                ip(&["link", "set", "rdma0", "up"])?;
            }
            let frame = tokio::time::timeout(BOUND, listener.recv()).await??;
            let number = u64::from_be_bytes(*frame.bytes().first_chunk().context("an empty frame")?);
            ensure!(frame.bytes() == payload(number), "frame {number} is another");
            let came = came.get_mut(number as usize).context("a frame that was not sent")?;
            ensure!(!std::mem::replace(came, true), "frame {number} has come twice");
        }
        anyhow::Ok(())
    };
    futures::try_join!(sending, receiving)?;
    peers.flush().await?;
    let statistics = peers.statistics();
    ensure!(statistics.disconnects > 0 && statistics.acknowledged == frames as u64, "{statistics:?}");
    Ok(())
}

async fn send(peers: &PeerSet, frames: u64) -> Result<()> {
    for number in 0..frames {
        let bytes = payload(number);
        // Some frames are sent without a copy.
        let frame = if number % 2 == 0 {
            let mut buffer = Buffer::host(bytes.len());
            buffer.as_mut().context("shared")?.copy_from_slice(&bytes);
            Frame::new(buffer)
        } else {
            Frame::new(bytes)
        };
        tokio::time::timeout(BOUND, peers.send(frame.key("key").metadata(vec![1; (number % 50) as usize])))
            .await??;
    }
    Ok(())
}

/// Returns a payload with the number of the frame. Every third payload is short.
fn payload(number: u64) -> Vec<u8> {
    let mut filling = fastrand::Rng::with_seed(number);
    let length =
        if number.is_multiple_of(3) { filling.usize(0..1000) } else { filling.usize(250_000..LARGEST) };
    let mut payload = vec![0; 8 + length - length % 8];
    let (first, rest) = payload.split_at_mut(8);
    first.copy_from_slice(&number.to_be_bytes());
    filling.fill(rest);
    payload
}

async fn connected(stripes: u8, delivery: Delivery) -> Result<(Listener, PeerSet)> {
    let listener = listener().frame_size(LARGEST as u32).bind().await?;
    let peers = connect(&listener, stripes, delivery).await?;
    Ok((listener, peers))
}

fn listener() -> ListenerBuilder {
    Listener::builder().address(HERE.into()).port(0).acknowledge(Acknowledge::OnDrop).patience(BOUND)
}

async fn connect(listener: &Listener, stripes: u8, delivery: Delivery) -> Result<PeerSet> {
    let connector = Connector::builder()
        .resolver(no_resolver()?)
        .transport(Transport::Rdma)
        .delivery(delivery)
        .patience(BOUND)
        .rdma(Rdma::default().stripes(stripes));
    let peers = follow(connector, vec![Endpoint::at(listener.local_addresses()[0])])?;
    tokio::time::timeout(BOUND, peers.connected(1)).await.with_context(|| format!("{:?}", peers.status()))?;
    Ok(peers)
}

/// Returns the number of the next packet of each queue pair.
fn positions() -> Result<BTreeMap<u32, u32>> {
    let number = |pair: &str, name: &str| {
        let mut words = pair.split_whitespace().skip_while(|word| *word != name).skip(1);
        words.next().and_then(|number| number.parse().ok()).with_context(|| format!("no {name} in {pair}"))
    };
    let pairs = pair_lines()?;
    pairs.iter().map(|pair| Ok((number(pair, "lqpn")?, number(pair, "sq-psn")?))).collect()
}
