//! Whether an address, or a GPU, can really be used: a write from memory to memory, from the device to itself and by the GID that connections leave from.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use multinet_memory::{GpuError, GpuMemory, Method};
use thiserror::Error;

use crate::completion_queue::{CompletionQueue, Status};
use crate::context::{Context, SourceGid};
use crate::error::{Error, LoadError};
use crate::gpu::{GpuAccessError, GpuPages};
use crate::library::Library;
use crate::memory::{MemoryRegion, ProtectionDomain, RemoteAddress};
use crate::queue_pair::{Capacities, Class, Path, QueuePair, UnconnectedQueuePair, Write, ZeroCopy};

/// For so long a completion is waited for: longer than a device repeats what is not acknowledged.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long nothing is done between two looks at the queue.
const PAUSE: Duration = Duration::from_micros(50);

/// What is written: several packets of every path MTU.
const SIZE: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

const RECEIVED: u64 = 1;
const WRITTEN: u64 = 2;
const IMMEDIATE: u32 = 0x6d6e_6574;

/// The port that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probed {
    /// The largest packet that it carries, in bytes of payload.
    pub mtu: u32,
}

/// What is in the way.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// There is no libibverbs.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// A call fails.
    #[error(transparent)]
    Call(#[from] Error),
    /// The GPU has failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The device cannot reach the GPU's memory.
    #[error(transparent)]
    GpuAccessError(#[from] GpuAccessError),
    /// libibverbs does not show the device.
    #[error("libibverbs does not show {0}")]
    NoDevice(String),
    /// The port is not active.
    #[error("{device} port {port} is not active")]
    Inactive {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The write failed.
    #[error("{device} cannot write to itself by GID {gid_index}: {status}")]
    Failed {
        /// The device.
        device: String,
        /// The row of the GID.
        gid_index: u8,
        /// How it failed.
        status: Status,
    },
    /// Nothing was heard of the write.
    #[error("{device} does not say within {PATIENCE:?} what became of a write to itself by GID {gid_index}")]
    Silent {
        /// The device.
        device: String,
        /// The row of the GID.
        gid_index: u8,
    },
    /// Other bytes arrived than were sent.
    #[error("{device} wrote other bytes, or another immediate, than it was given")]
    Different {
        /// The device.
        device: String,
    },
}

impl ProbeError {
    /// Whether it may be otherwise the next time: there may be room again, or a link that was down. What a device or a GPU cannot do stays so, and one that
    /// has written something else is not asked again until it does not.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Call(call) | Self::GpuAccessError(GpuAccessError::Call { call }) => {
                call.is_out_of_resources()
            }
            Self::Gpu(_) | Self::GpuAccessError(GpuAccessError::Gpu(_)) | Self::Inactive { .. } => true,
            Self::Failed { status, .. } => status.is_unanswered(),
            Self::Library(_) | Self::NoDevice(_) | Self::Silent { .. } | Self::Different { .. } => false,
            Self::GpuAccessError(GpuAccessError::Method(_)) => false,
        }
    }

    /// What is probably wrong, and what to do. It is no part of the message.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Library(error) => Some(error.hint()),
            Self::Call(error) => error.hint(),
            Self::NoDevice(_) => Some(
                "install the provider of this device (ibverbs-providers), and see that its /dev/infiniband/uverbs* is in this container",
            ),
            Self::Inactive { .. } => Some("bring its link up"),
            Self::Failed { status, .. } => status.hint(),
            Self::Silent { .. } => Some("soft-RoCE in a network namespace of its own behaves so"),
            Self::Gpu(_) | Self::GpuAccessError(_) | Self::Different { .. } => None,
        }
    }
}

/// Writes from a device to itself by one of its GIDs, and compares. It waits, for some seconds at most: not for an async task.
///
/// # Errors
///
/// [`ProbeError`], which says what is in the way.
pub fn probe(device: &str, source: SourceGid) -> Result<Probed, ProbeError> {
    probe_by(Library::load()?, device, source)
}

/// As [`probe`], by these functions.
pub(crate) fn probe_by(
    library: &'static Library,
    device: &str,
    source: SourceGid,
) -> Result<Probed, ProbeError> {
    let devices = library.devices()?;
    let found = devices.iter().find(|found| found.name() == device);
    let context = found.ok_or_else(|| ProbeError::NoDevice(device.to_owned()))?.open()?;
    let domain = ProtectionDomain::new(&context)?;
    let loopback = Loopback::new(&domain, source)?;
    let (region, receive_buffer) = (domain.memory_region(SIZE)?, domain.receive_buffer(SIZE)?);
    let pattern = pattern();
    region.write(0, &pattern)?;
    loopback.write(Some((&region, 0..SIZE.get())), None, receive_buffer.remote(0)?)?;
    let mut arrived = vec![0; SIZE.get()];
    receive_buffer.read(0, &mut arrived)?;
    loopback.compare(&pattern, &arrived)?;
    Ok(Probed { mtu: loopback.mtu })
}

/// Writes into a GPU's memory, and from there, by this method, and compares. Of the memory, the first bytes are overwritten; it has to have 16 KiB or
/// more. It waits, for twenty seconds at most: not for an async task.
///
/// # Errors
///
/// [`ProbeError`], which says what is in the way.
pub fn probe_gpu(
    context: &Context,
    source: SourceGid,
    memory: &Arc<dyn GpuMemory>,
    method: Method,
) -> Result<(), ProbeError> {
    let domain = ProtectionDomain::new(context)?;
    let loopback = Loopback::new(&domain, source)?;
    let (region, receive_buffer) = (domain.memory_region(SIZE)?, domain.receive_buffer(SIZE)?);
    let mut arrived = vec![0; SIZE.get()];

    let there = pattern();
    region.write(0, &there)?;
    let gpu = domain.gpu_receive_buffer(Arc::clone(memory), method)?;
    loopback.write(Some((&region, 0..SIZE.get())), None, gpu.remote())?;
    memory.flush()?;
    memory.read(0, &mut arrived)?;
    loopback.compare(&there, &arrived)?;

    let back = pattern();
    memory.write(0, &back)?;
    let pages = GpuPages::new(Arc::clone(memory));
    pages.register(&domain, method)?;
    loopback.write(None, Some((ZeroCopy::Gpu(&pages), 0..SIZE.get())), receive_buffer.remote(0)?)?;
    receive_buffer.read(0, &mut arrived)?;
    loopback.compare(&back, &arrived)
}

fn pattern() -> Vec<u8> {
    std::iter::repeat_with(|| fastrand::u8(..)).take(SIZE.get()).collect()
}

/// Two pairs of one device, so that a failure of one does not hide its reason at the other.
struct Loopback {
    device: String,
    gid_index: u8,
    mtu: u32,
    queue: CompletionQueue,
    sender: QueuePair,
    receiver: QueuePair,
}

impl Loopback {
    fn new(domain: &ProtectionDomain, source: SourceGid) -> Result<Self, ProbeError> {
        let SourceGid { port, gid_index, gid } = source;
        let context = domain.context();
        let (device, attributes) = (context.name().to_owned(), context.query_port(port)?);
        if !attributes.is_active {
            return Err(ProbeError::Inactive { device, port });
        }
        let queue = CompletionQueue::new(context, 4)?;
        let capacities = Capacities { send: 1, receive: 1 };
        let (sender, receiver) = (
            UnconnectedQueuePair::new(domain, &queue, capacities)?,
            UnconnectedQueuePair::new(domain, &queue, capacities)?,
        );
        let ends = [&sender, &receiver].map(|unconnected| unconnected.address(gid, attributes.lid));
        let mtu = attributes.mtu;
        let path = Path { port, gid_index, mtu, class: Class::default(), is_global: true };
        let (sender, receiver) = (sender.connect(path, ends[1])?, receiver.connect(path, ends[0])?);
        Ok(Self { device, gid_index, mtu, queue, sender, receiver })
    }

    /// Writes, and waits until it has arrived.
    fn write(
        &self,
        sge: Option<(&MemoryRegion, Range<usize>)>,
        zero_copy: Option<(ZeroCopy<'_>, Range<usize>)>,
        remote: RemoteAddress,
    ) -> Result<(), ProbeError> {
        let (device, gid_index) = (self.device.clone(), self.gid_index);
        self.receiver.post_receive(RECEIVED)?;
        let immediate = Some(IMMEDIATE);
        self.sender.post_writes(&[Write {
            id: WRITTEN,
            sge,
            zero_copy,
            remote,
            immediate,
            is_signalled: true,
        }])?;
        let (mut received, mut is_written) = (None, false);
        let begun = Instant::now();
        while !(received.is_some() && is_written) {
            let Some(completion) = self.queue.poll()? else {
                if begun.elapsed() > PATIENCE {
                    return Err(ProbeError::Silent { device, gid_index });
                }
                std::thread::sleep(PAUSE);
                continue;
            };
            completion.status.map_err(|status| ProbeError::Failed {
                device: device.clone(),
                gid_index,
                status,
            })?;
            match completion.id {
                RECEIVED => received = Some(completion.immediate),
                _ => is_written = true,
            }
        }
        if received == Some(Some(IMMEDIATE)) { Ok(()) } else { Err(ProbeError::Different { device }) }
    }

    fn compare(&self, sent: &[u8], arrived: &[u8]) -> Result<(), ProbeError> {
        if sent == arrived { Ok(()) } else { Err(ProbeError::Different { device: self.device.clone() }) }
    }
}
