//! Probes of a device: it writes from memory to memory, from itself to itself, by the GID that
//! connections use. That shows whether an address, or a GPU, can be used.

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

/// The longest wait for a completion. A device gives up its retransmissions earlier.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);

/// The time between two polls for the completion of the write.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The number of bytes that are written: several packets of any path MTU.
const SIZE: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

const RECEIVED: u64 = 1;
const WRITTEN: u64 = 2;
const IMMEDIATE: u32 = 0x6d6e_6574;

/// A port that works, as a probe has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probed {
    /// The path MTU of the port, in bytes of payload.
    pub mtu: u32,
}

/// Why the probe of a device failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The library libibverbs cannot be used.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// A call of verbs failed, for example to open the device.
    #[error(transparent)]
    Call(#[from] Error),
    /// The GPU failed to copy its memory, or to make writes visible.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The RDMA device cannot reach the GPU's memory.
    #[error(transparent)]
    GpuAccess(#[from] GpuAccessError),
    /// No device of this name is shown by libibverbs.
    #[error("libibverbs does not show {0}")]
    NoDevice(String),
    /// The port of the device is not active.
    #[error("{device} port {port} is not active")]
    Inactive {
        /// The name of the device whose port it is.
        device: String,
        /// The number of the port, from 1.
        port: u8,
    },
    /// The device's write to itself failed.
    #[error("{device} cannot write to itself by GID {gid_index}: {status}")]
    Failed {
        /// The name of the device that was to write.
        device: String,
        /// The index of the GID by which the device was to write.
        gid_index: u8,
        /// The completion status of the write, which says why.
        status: Status,
    },
    /// The device's write to itself did not complete in time.
    #[error("{device} has not completed a write to itself by GID {gid_index} within {COMPLETION_TIMEOUT:?}")]
    Silent {
        /// The name of the device that was to write.
        device: String,
        /// The index of the GID by which the device was to write.
        gid_index: u8,
    },
    /// The write completed, but other bytes arrived than were sent.
    #[error("{device} wrote other bytes, or another immediate, than were posted")]
    Different {
        /// The name of the device that corrupted the bytes.
        device: String,
    },
}

impl ProbeError {
    /// Returns whether a later attempt may succeed: a resource may be free again, or a link up.
    /// A limitation of a device or a GPU is permanent. So are corrupted bytes: a device that
    /// corrupted some is not trusted because it did not the next time.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Call(call) | Self::GpuAccess(GpuAccessError::Call { call }) => call.is_out_of_resources(),
            Self::Gpu(_) | Self::GpuAccess(GpuAccessError::Gpu(_)) | Self::Inactive { .. } => true,
            Self::Failed { status, .. } => status.is_unanswered(),
            Self::Library(_) | Self::NoDevice(_) | Self::Silent { .. } | Self::Different { .. } => false,
            Self::GpuAccess(GpuAccessError::Method(_)) => false,
        }
    }

    /// Returns the likely cause and the remedy. It is not part of the message.
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
            Self::Gpu(_) | Self::GpuAccess(_) | Self::Different { .. } => None,
        }
    }
}

/// Writes from a device to itself by one of its GIDs, and compares the bytes. It blocks for a few
/// seconds at most: not for an async task.
///
/// # Errors
///
/// [`ProbeError`], with the cause.
pub fn probe(device: &str, source: SourceGid) -> Result<Probed, ProbeError> {
    probe_by(Library::load()?, device, source)
}

/// Probes as [`probe`] does, by the functions of this library, which may be a test's fake.
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

/// Writes into a GPU's memory and back by this method, and compares the bytes. The memory has at
/// least 16 KiB, whose beginning is overwritten. It blocks for twenty seconds at most: not for an
/// async task.
///
/// # Errors
///
/// [`ProbeError`], with the cause.
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

/// Two queue pairs of one device. With two, a failure of the receiver does not hide its reason at
/// the sender.
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

    /// Posts a write to the device itself, and waits until it has arrived.
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
                if begun.elapsed() > COMPLETION_TIMEOUT {
                    return Err(ProbeError::Silent { device, gid_index });
                }
                std::thread::sleep(POLL_INTERVAL);
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
