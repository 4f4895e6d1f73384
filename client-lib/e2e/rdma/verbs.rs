//! Verbs on a real device: what arrives, and how failures are reported. Everything else is tested
//! on a fake device (`client-lib/verbs/src/tests`), and by the frames of the other modules.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use multinet_client::gid::{self, DeviceGid, SourceAddress};
use multinet_client::verbs::{
    Call, Capacities, Class, Completion, CompletionQueue, Context, Library, MemoryRegion, Path,
    ProtectionDomain, QueuePair, QueuePairAddress, ReceiveBuffer, RemoteAddress, UnconnectedQueuePair, Write,
};
use multinet_testing::in_guest;

const HALF: usize = 128 << 10;
/// The capacity of the queues of a queue pair.
const DEPTH: u16 = 16;
const HERE: &str = "10.9.0.1";
const THERE: &str = "10.9.0.2";

const CAPACITIES: Capacities = Capacities { send: DEPTH, receive: DEPTH };

/// One end: the objects of a queue pair, with memory to write from and memory for the other end.
struct End {
    context: Context,
    place: DeviceGid,
    domain: ProtectionDomain,
    region: MemoryRegion,
    receive_buffer: ReceiveBuffer,
    queue: CompletionQueue,
    lid: u16,
    mtu: u32,
}

impl End {
    fn at(address: &str) -> Result<Self> {
        let place = gid_of(address)?;
        let devices = Library::load()?.devices()?;
        let device = devices.iter().find(|device| device.name() == place.device).context("no such device")?;
        let context = device.open()?;
        let port = context.query_port(u8::try_from(place.port)?)?;
        let domain = ProtectionDomain::new(&context)?;
        let size = NonZeroUsize::new(2 * HALF).context("zero")?;
        let (region, receive_buffer) = (domain.memory_region(size)?, domain.receive_buffer(size)?);
        let queue = CompletionQueue::new(&context, 8 * DEPTH)?;
        Ok(Self { context, place, domain, region, receive_buffer, queue, lid: port.lid, mtu: port.mtu })
    }

    fn unconnected(&self) -> Result<(UnconnectedQueuePair, QueuePairAddress)> {
        let unconnected = UnconnectedQueuePair::new(&self.domain, &self.queue, CAPACITIES)?;
        let address = unconnected.address(self.place.gid, self.lid);
        Ok((unconnected, address))
    }

    fn path(&self) -> Result<Path> {
        let (port, gid_index) = (u8::try_from(self.place.port)?, u8::try_from(self.place.index)?);
        Ok(Path { port, gid_index, mtu: self.mtu, class: Class::default(), is_global: true })
    }

    /// Returns a write of a range of the region, with an immediate.
    fn write(&self, id: u64, sge: Range<usize>, remote: RemoteAddress, immediate: u32) -> Write<'_> {
        let (sge, immediate) = (Some((&self.region, sge)), Some(immediate));
        Write { id, sge, zero_copy: None, remote, immediate, is_signalled: true }
    }

    /// Waits for the next completion.
    fn next_completion(&self) -> Result<Completion> {
        next_completion(&self.queue)
    }

    /// Waits for the next completion, which has to be a failure. Returns its message and hint.
    fn next_failure(&self) -> Result<String> {
        match self.next_completion()?.status {
            Ok(()) => bail!("it has succeeded"),
            Err(status) => Ok(format!("{status}; {}", status.hint().unwrap_or_default())),
        }
    }
}

fn next_completion(queue: &CompletionQueue) -> Result<Completion> {
    let begun = Instant::now();
    loop {
        if let Some(completion) = queue.poll()? {
            return Ok(completion);
        }
        ensure!(begun.elapsed() < Duration::from_secs(60), "nothing has completed");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Returns the GID for an address, as connections choose it.
fn gid_of(address: &str) -> Result<DeviceGid> {
    let address: IpAddr = address.parse()?;
    let choice =
        gid::choose(&gid::local_ports()?, SourceAddress { address, interface: "rdma0", port_gid: None });
    choice.chosen.with_context(|| format!("no row for {address}: {:?}", choice.rejected))
}

fn connected(one: &End, other: &End) -> Result<(QueuePair, QueuePair)> {
    let ((first, its), (second, others)) = (one.unconnected()?, other.unconnected()?);
    Ok((first.connect(one.path()?, others)?, second.connect(other.path()?, its)?))
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; HALF];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// All parts share one guest.
#[tokio::test]
async fn verbs_work_on_a_real_device() -> Result<()> {
    in_guest!();
    written_bytes_arrive().context("writing")?;
    failures_name_their_cause().context("failing")?;
    a_device_reports_whether_it_supports_dma_bufs().context("dma-buf")
}

/// Soft-RoCE of this kernel does not support dma-bufs.
fn a_device_reports_whether_it_supports_dma_bufs() -> Result<()> {
    ensure!(Library::load()?.has_dma_buf(), "this libibverbs is too old to tell");
    ensure!(!End::at(HERE)?.domain.supports_dma_buf()?, "it supports them");
    Ok(())
}

fn written_bytes_arrive() -> Result<()> {
    for (one, other) in [(HERE, THERE), ("fd09::1", "fd09::2"), (HERE, HERE)] {
        let (here, there) = (End::at(one)?, End::at(other)?);
        let (ours, theirs) = connected(&here, &there)?;
        let sent = [bytes(1), bytes(2)];
        here.region.write(0, &sent[0])?;
        here.region.write(HALF, &sent[1])?;
        theirs.post_receive(7)?;
        theirs.post_receive(8)?;
        // Crosswise, so that an ignored offset shows.
        ours.post_writes(&[
            here.write(1, 0..HALF, there.receive_buffer.remote(HALF)?, 0xdead_beef),
            here.write(2, HALF..2 * HALF, there.receive_buffer.remote(0)?, 1),
        ])?;
        for (id, immediate) in [(7, 0xdead_beef), (8, 1)] {
            let completion = there.next_completion()?;
            ensure!(
                completion == Completion { id, status: Ok(()), immediate: Some(immediate) },
                "{completion:?}"
            );
        }
        for id in [1, 2] {
            let completion = here.next_completion()?;
            ensure!(completion == Completion { id, status: Ok(()), immediate: None }, "{completion:?}");
        }
        let mut arrived = [vec![0; HALF], vec![0; HALF]];
        there.receive_buffer.read(HALF, &mut arrived[0])?;
        there.receive_buffer.read(0, &mut arrived[1])?;
        ensure!(arrived == sent, "other bytes have arrived from {one} at {other}");
        ensure!(there.receive_buffer.received(HALF..2 * HALF)?[..] == sent[0], "other bytes, where they lie");
    }
    Ok(())
}

fn failures_name_their_cause() -> Result<()> {
    let (here, there) = (End::at(HERE)?, End::at(THERE)?);

    let (ours, theirs) = connected(&here, &there)?;
    theirs.post_receive(1)?;
    let RemoteAddress { address, key } = there.receive_buffer.remote(0)?;
    let wrong = RemoteAddress { address, key: key ^ 0xff00 };
    ours.post_writes(&[
        here.write(1, 0..100, wrong, 0),
        here.write(2, 0..100, RemoteAddress { address, key }, 0),
    ])?;
    let said = here.next_failure().context("a wrong key")?;
    ensure!(said.starts_with("remote access error") && said.contains("its key is an old one"), "{said}");
    let said = here.next_failure().context("after a failure")?;
    ensure!(said.contains("an earlier request of the same queue pair has failed"), "{said}");

    // The peer's queue pair is destroyed.
    let (ours, theirs) = connected(&here, &there)?;
    drop(theirs);
    ours.post_writes(&[here.write(3, 0..100, RemoteAddress { address, key }, 0)])?;
    let said = here.next_failure().context("a peer that is gone")?;
    ensure!(said.contains("the peer's device does not answer"), "{said}");

    // The sender waits for a peer that is not ready.
    let (here, there) = (End::at(HERE)?, End::at(THERE)?);
    let (ours, theirs) = connected(&here, &there)?;
    ours.post_writes(&[here.write(4, 0..100, there.receive_buffer.remote(0)?, 5)])?;
    std::thread::sleep(Duration::from_millis(100));
    ensure!(here.queue.poll()?.is_none(), "it has not waited for the peer");
    theirs.post_receive(9)?;
    let completion = here.next_completion()?;
    ensure!(completion == Completion { id: 4, status: Ok(()), immediate: None }, "{completion:?}");
    let completion = there.next_completion()?;
    ensure!(completion == Completion { id: 9, status: Ok(()), immediate: Some(5) }, "{completion:?}");

    let (unconnected, own) = here.unconnected()?;
    let nowhere: Ipv6Addr = "2001:db8::1".parse()?;
    let error = unconnected
        .connect(here.path()?, QueuePairAddress { gid: nowhere, ..own })
        .err()
        .context("it is connected")?;
    ensure!(error.call() == Call::READY_TO_RECEIVE, "{error}");
    let hint = error.hint().context("no hint")?;
    ensure!(hint.starts_with("the kernel finds no route to the peer's GID"), "{error}; {hint}");

    let (ours, _theirs) = connected(&here, &there)?;
    let beyond = here.write(5, HALF..2 * HALF + 1, RemoteAddress { address, key }, 0);
    let error = ours.post_writes(&[beyond]).err().context("it is written")?;
    ensure!(
        error.to_string().starts_with("rxe0: cannot reach into registered memory: Invalid argument"),
        "{error}"
    );
    let taken = (0..1000).take_while(|_| ours.post_receive(6).is_ok()).count();
    ensure!((DEPTH.into()..1000).contains(&taken), "the receive queue has taken {taken}");
    let full = ours.post_receive(6).err().context("there is room again")?;
    ensure!(full.call() == Call::RECEIVE, "{full}");

    let other = Library::load()?.devices()?[0].open()?;
    let foreign = UnconnectedQueuePair::new(&here.domain, &CompletionQueue::new(&other, 8)?, CAPACITIES)
        .err()
        .context("a pair of two contexts")?;
    ensure!(foreign.call() == Call::QUEUE_PAIR, "{foreign}");

    let error = here.context.query_port(9).err().context("there is a ninth port")?;
    ensure!(error.to_string().starts_with("rxe0: cannot ask for the port's state: "), "{error}");
    Ok(())
}
