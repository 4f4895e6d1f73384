//! Fetches beside frames that are sent, and beside UCX' get.

use std::net::{Ipv4Addr, SocketAddr};
use std::slice::from_ref;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use futures::stream;
use multinet_client::{Connector, Delivery, Offers, Reference};
use multinet_testing::bench::{Table, at_least, at_most, figure, text};
use multinet_testing::measure::{Log, percentile};
use tokio::time::timeout;

use super::allocations;
use super::roles::{Role, orphaned, print};
use super::tools::{multinet, multinet_trip, over, ucx_get, ucx_get_time};

/// Smallest payload with a target of bandwidth.
const FROM: u32 = 1 << 20;

/// Smallest share of the bandwidth of frames that are sent.
const TARGET: f64 = 0.95;

/// Payload whose latency is measured.
const SIZE: u32 = 64 << 10;

/// Fetches at a time, and outstanding messages of UCX.
pub(crate) const AT_ONCE: usize = 16;

const ID: &str = "payload";

/// Time limit of a measurement.
const BOUND: Duration = Duration::from_secs(60);

const GIB: f64 = (1_u64 << 30) as f64;

/// Measures bandwidths in rounds in which the programs take turns.
pub(crate) fn bandwidths(sizes: &[u32], seconds: u64, rounds: usize, log: &Log) -> Result<Table> {
    let columns = "bytes | fetch | send | UCX get | / send | target | / UCX get | target";
    let note = format!("In GiB a second, {AT_ONCE} at a time; medians of {rounds} rounds.");
    let mut table = Table::new("Bandwidth of fetches", note, columns);
    for &size in sizes.iter().filter(|&&size| size >= FROM) {
        log.print(&format!("fetches, {size} bytes"));
        let [mut fetched, mut sent, mut got] = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            let (_offers, address) = Role::Offers { size }.start()?;
            let (_fetcher, rate) = Role::Fetcher { pod: address.parse()?, size, seconds }.start()?;
            fetched.push(rate.parse::<f64>()? / GIB);
            sent.push(multinet(size, seconds)?.bandwidth / GIB);
            got.push(ucx_get(size, seconds)? / GIB);
        }
        let (of_send, of_ucx) = (over(&fetched, &sent)?, over(&fetched, &got)?);
        let above = if of_ucx >= 1.0 { "at least 1: met" } else { "at least 1: **missed**" };
        let of_send = figure([of_send], 3);
        let target = at_least(Some(TARGET), from_ref(&of_send));
        let rates = [fetched, sent, got].map(|rates| figure(rates, 2));
        let ratios = [of_send, target, figure([of_ucx], 3), text(above)];
        table.row([text(size)].into_iter().chain(rates).chain(ratios));
    }
    Ok(table)
}

/// Measures the time of a fetch of 64 KiB, beside that of a frame of the same size.
pub(crate) fn latencies(count: usize, rounds: usize) -> Result<Table> {
    let [mut fetched, mut sent, mut echoes, mut got] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        let (_offers, address) = Role::Offers { size: SIZE }.start()?;
        let fetcher = Role::FetchTrips { pod: address.parse()?, trips: count };
        fetched.push(fetcher.start()?.1.parse()?);
        // There and back, of which a frame is half.
        sent.push(multinet_trip(SIZE, count)? / 2.0);
        let (_server, address) = Role::EchoServer.start()?;
        let client = Role::EchoClient { server: address.parse()?, trips: count };
        echoes.push(client.start()?.1.parse()?);
        got.push(ucx_get_time(SIZE, count)?);
    }
    let note = format!("In microseconds, one at a time; medians of {rounds} rounds.");
    let mut table = Table::new("Time of a fetch of 64 KiB", note, " | time | fetch / this | target");
    let both: Vec<f64> = sent.iter().zip(&echoes).map(|(sent, echo): (&f64, &f64)| sent + echo).collect();
    let of_both = figure([over(&fetched, &both)?], 2);
    let verdict = at_most(Some(1.0), from_ref(&of_both));
    let of_ucx = figure([over(&fetched, &got)?], 2);
    table.row([text("a fetch"), figure(fetched, 1), text(""), text("")]);
    table.row([text("a frame that is sent"), figure(sent, 1), text(""), text("")]);
    table.row([text("the frame and a round trip of a bare tokio echo"), figure(both, 1), of_both, verdict]);
    let verdict = at_most(Some(1.0), from_ref(&of_ucx));
    table.row([text("UCX get, which polls"), figure(got, 1), of_ucx, verdict]);
    Ok(table)
}

/// Offers one payload until standard input ends.
pub(crate) async fn offer(size: u32) -> Result<()> {
    let offers = Offers::builder().address(Ipv4Addr::LOCALHOST.into()).port(0).host("bench").bind().await?;
    let _offer = offers.offer(ID.parse()?, vec![0xa5; size as usize]).await?;
    print(format_args!("{}", offers.local_addresses().first().context("nothing was bound")?));
    orphaned().await;
    Ok(())
}

/// Returns the bytes a second of fetches for this time, a few at a time.
pub(crate) async fn fetch_for(pod: SocketAddr, size: u32, seconds: u64) -> Result<f64> {
    let fetcher = Pod::new(pod, size)?;
    fetcher.fetch(size).await?;
    let begin = Instant::now();
    let until = begin + Duration::from_secs(seconds);
    let fetching = stream::repeat(()).take_while(|()| std::future::ready(Instant::now() < until));
    let mut fetching = std::pin::pin!(fetching.map(|()| fetcher.fetch(size)).buffer_unordered(AT_ONCE));
    let mut count = 0_u64;
    while let Some(fetched) = timeout(BOUND, fetching.next()).await? {
        fetched?;
        count += 1;
    }
    Ok(count as f64 * f64::from(size) / begin.elapsed().as_secs_f64())
}

/// Returns the median time of this many fetches, in microseconds.
pub(crate) async fn fetch_trips(pod: SocketAddr, trips: usize) -> Result<f64> {
    let fetcher = Pod::new(pod, SIZE)?;
    let mut times = Vec::with_capacity(trips);
    for number in 0..trips + trips / 10 {
        let start = Instant::now();
        timeout(BOUND, fetcher.fetch(SIZE)).await??;
        if number >= trips / 10 {
            times.push(start.elapsed());
        }
    }
    Ok(percentile(&times, 50) * 1e3)
}

/// The pod with the payload.
struct Pod {
    connector: Connector,
    address: (String, String),
    reference: Reference,
}

impl Pod {
    fn new(address: SocketAddr, size: u32) -> Result<Self> {
        let connector = allocations::connector(Delivery::AtLeastOnce)?;
        let connector = connector.fetch_frame_size(size).fetch_slots(AT_ONCE as u32).build()?;
        let address = (address.ip().to_string(), address.port().to_string());
        Ok(Self { connector, address, reference: format!("bench/{ID}").parse()? })
    }

    /// Fetches the payload, and leaves it on offer.
    async fn fetch(&self, size: u32) -> Result<()> {
        let (name, port) = &self.address;
        let frame = self.connector.fetch(name, port, &self.reference).await?;
        ensure!(frame.len() == size as usize, "{} bytes", frame.len());
        Ok(())
    }
}
