//! Where messages are written from, and where to: the machine's memory, or a GPU's, which the device reaches where it lies.

use std::net::Ipv6Addr;
use std::num::NonZeroUsize;
use std::ops::Range;

use anyhow::bail;
use multinet_client::verbs::{
    Domain, GpuLanding, GpuPages, Landing, Lent, Reached, Region, Remote, TRIED, reach_gpu,
};
use multinet_client::{Forced, Gpu, Method};
use tracing::info;

/// What a write names: memory of the machine's, or of a GPU.
type Message<'a> = (Option<(&'a Region, Range<usize>)>, Option<(Lent<'a>, Range<usize>)>);

/// What every byte of a message is. Not zero: all of that may be one page of memory, that of the kernel.
const BYTE: u8 = 0xa5;

/// What is written from, and what the other side writes to.
pub(super) enum Buffers {
    Machine(Region, Landing),
    Gpu(GpuPages, GpuLanding),
}

impl Buffers {
    pub(super) fn of_the_machine(domain: &Domain, length: NonZeroUsize) -> anyhow::Result<Self> {
        let region = domain.region(length)?;
        region.write(0, &vec![BYTE; length.get()])?;
        Ok(Self::Machine(region, domain.landing(length)?))
    }

    /// By this port, row of the GID table and GID. It tries first whether the device reaches the GPU.
    pub(super) fn of_a_gpu(
        domain: &Domain,
        length: NonZeroUsize,
        gpu: &dyn Gpu,
        place: (u8, u8, Ipv6Addr),
        forced: Forced,
    ) -> anyhow::Result<Self> {
        let (device, name) = (domain.context().name(), gpu.name());
        let Reached { method, against, .. } =
            reach_gpu(domain.context(), place, &gpu.allocate(TRIED)?, forced);
        let method = match method {
            Some(method @ (Method::DmaBuf | Method::PeerMemory)) => method,
            // Frames would be copied; this is to measure what the device can.
            Some(Method::Staging) | None => bail!("{device} does not reach {name}: {against}"),
        };
        info!(device, gpu = name, %method, not = against, "messages in a GPU");
        let pages = GpuPages::new(gpu.allocate(length)?);
        pages.memory().write(0, &vec![BYTE; length.get()])?;
        pages.register(domain, method)?;
        Ok(Self::Gpu(pages, domain.gpu_landing(gpu.allocate(length)?, method)?))
    }

    /// For the other side to write to.
    pub(super) fn remote(&self) -> anyhow::Result<Remote> {
        Ok(match self {
            Self::Machine(_, landing) => landing.remote(0)?,
            Self::Gpu(_, landing) => landing.remote(),
        })
    }

    /// The machine's memory, if it is that: where messages are written from, and where to.
    pub(super) fn machine(&self) -> Option<(&Region, &Landing)> {
        match self {
            Self::Machine(region, landing) => Some((region, landing)),
            Self::Gpu(..) => None,
        }
    }

    /// So many bytes, for a write.
    pub(super) fn message(&self, size: usize) -> Message<'_> {
        match self {
            Self::Machine(region, _) => (Some((region, 0..size)), None),
            Self::Gpu(pages, _) => (None, Some((Lent::Gpu(pages), 0..size))),
        }
    }
}
