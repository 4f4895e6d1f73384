//! Messages in GPUs: stand-ins have the GPUs' part, soft-RoCE the device's.

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, ensure};
use multinet_client::verbs::Class;
use multinet_client::{Forced, Method};
use multinet_testing::in_guest;

#[path = "../../../../e2e/rdma/stand_in.rs"]
mod stand_in;

use stand_in::{At, StandIn};

use super::super::{DeviceArgs, Extent};
use super::buffers::Buffers;
use super::{Connected, Prepared, Setup, bandwidth, latency};

/// Not whole pages.
const SIZE: u32 = 300_001;

const OURS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));
const THEIRS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));

#[tokio::test]
async fn messages_lie_where_they_are_wanted() -> Result<()> {
    in_guest!();
    let kinds = [machine, reached];
    for (ours, theirs) in kinds.into_iter().flat_map(|ours| kinds.map(|theirs| (ours, theirs))) {
        let (client, server) = pair(&ours(), &theirs(), 2)?;
        let figures = bandwidth::measure(&client, Extent::Count(20), 8)?;
        ensure!(figures.iterations == 40, "{figures:?}");
        // They came to where the other side wants them, and nothing came back.
        ensure!(client.buffers.arrived()? == vec![0; SIZE as usize], "the client has been written to");
        ensure!(server.buffers.arrived()? == vec![0xa5; SIZE as usize], "other bytes have come");
        drop((client, server));

        let (client, server) = pair(&ours(), &theirs(), 1)?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| latency::echo(&server, &stop));
            let measured = latency::measure(&client, Extent::Count(20));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            echo.join().ok().context("the echo has panicked")??;
            measured.map(drop)
        })?;
    }
    what_no_device_reaches_is_told()
}

fn what_no_device_reaches_is_told() -> Result<()> {
    let hidden = |forced| Setup { gpu: Some(StandIn::new("hidden", At::Nothing).gpu()), forced, ..machine() };
    let cases = [
        (Forced::No, "rxe0 does not reach hidden: dma-buf: rxe0 does not take dma-bufs; peermem: neither"),
        (Forced::To(Method::PeerMemory), "rxe0 does not reach hidden: peermem: "),
    ];
    for (forced, expected) in cases {
        let error = Prepared::new(OURS, &hidden(forced), SIZE, 1, 8).err().context("it is prepared")?;
        ensure!(format!("{error:#}").starts_with(expected), "{error:#}");
    }
    Ok(())
}

fn machine() -> Setup {
    let device = DeviceArgs { device: None, row: None, use_cuda: None };
    Setup { device, gpu: None, forced: Forced::No, class: Class::default() }
}

fn reached() -> Setup {
    let gpu = Some(StandIn::new("reached", At::Memory).gpu());
    Setup { gpu, forced: Forced::To(Method::PeerMemory), ..machine() }
}

/// Both sides of a measurement.
fn pair(ours: &Setup, theirs: &Setup, pairs: usize) -> Result<(Connected, Connected)> {
    let client = Prepared::new(OURS, ours, SIZE, pairs, 8)?;
    let server = Prepared::new(THEIRS, theirs, SIZE, pairs, 8)?;
    let sides = [client.side.clone(), server.side.clone()];
    Ok((client.connect(&sides[1], THEIRS, SIZE)?, server.connect(&sides[0], OURS, SIZE)?))
}

impl Buffers {
    /// What has been written here.
    fn arrived(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; SIZE as usize];
        match self {
            Self::Machine(_, landing) => landing.read(0, &mut bytes)?,
            Self::Gpu(_, landing) => landing.memory().read(0, &mut bytes)?,
        }
        Ok(bytes)
    }
}
