//! Frames from GPU to GPU. A [`StandIn`] replaces the GPU and the calls to its driver; everything
//! else is the library's own code, and soft-RoCE reads and writes the memory. Where there is a real
//! GPU, frames are also sent from it to itself over TCP.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stand_in::{At, StandIn};
use anyhow::{Context as _, Result, ensure};
use multinet_client::{
    Acknowledge, Buffer, Connector, ConnectorBuilder, Cuda, Delivery, Endpoint, Forced, Frame, Gpu, Listener,
    ListenerBuilder, Method, Offers, PeerSet, Rdma, Received, Tls, Transport, TransportKind, Unacknowledged,
};
use multinet_testing::pki::{Certificate, FileAuthority};
use multinet_testing::{in_guest, skip};
use tempfile::TempDir;

use super::{amount, no_resolver, some};

/// The size of the largest frame.
const SIZE: u32 = 1 << 20;

/// The sizes of the frames of each GPU. Every third one is enough for `make test`.
const SIZES: [usize; 7] = [1, 63, 4096, 4097, 65_536, 300_001, SIZE as usize];

const GUEST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));

const FORCED: Forced = Forced::To(Method::PeerMemory);

/// A GPU, if any, and its method.
type Kind = (Option<StandIn>, Forced);

/// All parts share one guest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_travel_from_gpu_to_gpu() -> Result<()> {
    in_guest!();
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    the_stand_in_works().context("the stand-in")?;
    // Memory that devices reach, memory that they do not, and no GPU; in all combinations.
    let kinds: [fn() -> Kind; 3] = [
        || (Some(StandIn::new("reached", At::Memory)), FORCED),
        || (Some(StandIn::new("hidden", At::Nothing)), Forced::No),
        || (None, Forced::No),
    ];
    for (sender, theirs) in kinds.map(|kind| kind()) {
        for (receiver, ours) in kinds.map(|kind| kind()) {
            let case = format!("{sender:?} {theirs:?} to {receiver:?} {ours:?}");
            let gpus = [&sender, &receiver].map(|gpu| gpu.as_ref().map(StandIn::gpu));
            // The delivery makes no difference to memory.
            let is_once = receiver.is_none();
            let delivery = if is_once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce };
            let count =
                travel(GUEST, (Transport::Rdma, delivery), &gpus, [theirs, ours]).await.context(case)?;
            if ours == FORCED {
                let flushes = receiver.as_ref().map_or(0, StandIn::flushes);
                ensure!(flushes >= count, "{count} frames have come to a GPU that was told of {flushes}");
            }
        }
    }
    for (ours, theirs) in [(true, true), (true, false), (false, true)] {
        let gpus = [ours, theirs].map(|is_gpu| is_gpu.then(|| StandIn::new("reached", At::Memory).gpu()));
        let case = format!("a fetch from a GPU: {ours}, to a GPU: {theirs}");
        payloads_are_fetched(GUEST, Transport::Rdma, &gpus, FORCED).await.context(case)?;
    }
    // With one queue pair, where the others used several.
    let gpus = [(); 2].map(|()| Some(StandIn::new("reached", At::Memory).gpu()));
    travel(GUEST, (Transport::Rdma, Delivery::AtMostOnce), &gpus, [FORCED; 2]).await.context("one pair")?;
    let gpus = [(); 2].map(|()| Some(StandIn::new("hidden", At::Nothing).gpu()));
    let ends = (Transport::Tcp, Delivery::AtLeastOnce);
    travel(GUEST, ends, &gpus, [Forced::No; 2]).await.context("TCP")?;
    many_small_frames_arrive_in_their_slots().await.context("many")?;
    for transport in [Transport::Rdma, Transport::Tcp] {
        an_unreadable_frame_is_given_up(transport).await.context("broken")?;
    }
    frames_are_fetched_with_tls_too().await.context("TLS")?;
    a_forced_method_that_fails_names_the_reason().await.context("forced")?;
    a_forced_method_costs_frames_and_no_connection().await.context("forced at the sender")?;
    payloads_are_in_a_gpu_only_on_request().await.context("no GPU")?;
    slots_that_do_not_fit_are_in_the_machines_memory().await.context("no room")
}

/// The kernel exports the memory, and writes to it arrive.
fn the_stand_in_works() -> Result<()> {
    let memory = StandIn::new("hidden", At::Nothing).allocate(NonZeroUsize::MIN)?;
    memory.export()?;
    let memory = StandIn::new("reached", At::Memory).allocate(NonZeroUsize::MIN)?;
    memory.write(0, b"x")?;
    let mut found = [0];
    memory.read(0, &mut found)?;
    ensure!(found == *b"x" && memory.length() == 1, "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_travel_by_tcp_between_real_gpus() -> Result<()> {
    let gpu: Arc<dyn Gpu> = match Cuda::count() {
        Ok(1..) => Cuda::device(0)?,
        Ok(0) => skip!("CUDA finds no GPU"),
        Err(error) => skip!("no GPU: {error}"),
    };
    let loopback = [127, 0, 0, 1].into();
    let gpus = [Some(Arc::clone(&gpu)), Some(gpu)];
    travel(loopback, (Transport::Tcp, Delivery::AtLeastOnce), &gpus, [Forced::No; 2]).await?;
    travel(loopback, (Transport::Tcp, Delivery::AtMostOnce), &gpus, [Forced::No; 2]).await?;
    payloads_are_fetched(loopback, Transport::Tcp, &gpus, Forced::No).await
}

/// Fetches payloads of all sizes, which have to arrive unchanged and where they are wanted, as long
/// as they are on offer.
async fn payloads_are_fetched(
    address: IpAddr,
    transport: Transport,
    [ours, theirs]: &[Option<Arc<dyn Gpu>>; 2],
    forced: Forced,
) -> Result<()> {
    let rdma = Rdma::default().gpu_method(forced);
    let offers =
        Offers::builder().address(address).port(0).host("decode-0").patience(Duration::from_secs(60));
    let offers = offers.transport(transport).rdma(rdma).bind().await?;
    let mut fetcher =
        connector((transport, Delivery::AtMostOnce), forced)?.fetch_frame_size(SIZE).fetch_slots(4);
    if let Some(gpu) = theirs {
        fetcher = fetcher.fetch_gpu(Arc::clone(gpu));
    }
    let fetcher = fetcher.build()?;
    for size in some(SIZES.to_vec()) {
        let mut payload = vec![0; size];
        fastrand::fill(&mut payload);
        let frame = Frame::new(buffer(ours.as_ref(), &payload)?).metadata(vec![7; size % 100]);
        let offer = offers.offer(size.to_string().parse()?, frame).await?;
        for is_last in [false, true] {
            let pods = vec![Endpoint::at(offers.local_addresses()[0])];
            let frame = fetcher.fetch_from("decode", pods, &offer.reference()).await?;
            ensure!(frame.metadata() == vec![7; size % 100], "{frame:?}");
            arrived(&frame, theirs.is_some(), &payload)?;
            if is_last {
                frame.acknowledge();
            }
        }
        offer.taken().await?;
    }
    fetcher.close().await;
    Ok(())
}

/// Sends frames of all sizes, several in flight, which have to arrive unchanged and where they are
/// wanted. Returns their number.
async fn travel(
    address: IpAddr,
    (transport, delivery): (Transport, Delivery),
    [ours, theirs]: &[Option<Arc<dyn Gpu>>; 2],
    forced: [Forced; 2],
) -> Result<u64> {
    let mut listener = listener(address, forced[1]).transport(transport);
    if let Some(gpu) = theirs {
        listener = listener.gpu(Arc::clone(gpu));
    }
    let listener = listener.bind().await?;
    let peers = connect(&listener, (transport, delivery), forced[0])?;
    peers.connected(1).await;
    let kind = if transport == Transport::Tcp { TransportKind::Tcp } else { TransportKind::Rdma };
    ensure!(peers.status()[0].transport == Some(kind), "{:?}", peers.status());
    let each = amount(2, 6);
    let sizes: Vec<usize> = some(SIZES.to_vec()).collect();
    for &size in &sizes {
        let mut payloads = vec![vec![0; size]; each];
        payloads.iter_mut().for_each(|payload| fastrand::fill(payload));
        let sending = async {
            for payload in &payloads {
                // A key before the payload, so that some begin within a page.
                let frame = Frame::new(buffer(ours.as_ref(), payload)?).key("key");
                peers.send(frame.metadata(vec![7; size % 100])).await?;
            }
            anyhow::Ok(())
        };
        let receiving = async {
            for payload in &payloads {
                let frame = listener.recv().await?;
                ensure!(frame.key() == b"key" && frame.metadata() == vec![7; size % 100], "{frame:?}");
                // A payload that a device wrote to a GPU is visible nowhere else.
                let seen = if forced[1] == FORCED { &[][..] } else { payload };
                ensure!(frame.bytes() == seen, "{} bytes, not {}", frame.bytes().len(), seen.len());
                arrived(&frame, theirs.is_some(), payload)?;
                frame.acknowledge();
            }
            Ok(())
        };
        futures::try_join!(sending, receiving)?;
    }
    // Buffers of both kinds of memory in one frame.
    let parts = [vec![1; 10], vec![3; 5000], vec![2; 20]];
    let seamed = Frame::new(parts[0].clone()).and(buffer(ours.as_ref(), &parts[1])?).and(parts[2].clone());
    peers.send(seamed).await?;
    let frame = listener.recv().await?;
    arrived(&frame, theirs.is_some(), &parts.concat())?;
    frame.acknowledge();
    peers.flush().await?;
    ensure!(peers.statistics().disconnects == 0, "{:?}", peers.statistics());
    Ok((sizes.len() * each) as u64)
}

/// Returns a buffer with this payload, in a GPU or in the machine's memory.
fn buffer(gpu: Option<&Arc<dyn Gpu>>, payload: &[u8]) -> Result<Buffer> {
    let Some(gpu) = gpu else { return Ok(payload.to_vec().into()) };
    let buffer = Buffer::gpu(&**gpu, NonZeroUsize::new(payload.len()).context("nothing")?)?;
    ensure!(buffer.len() == payload.len() && buffer.bytes().is_empty(), "{buffer:?}");
    buffer.gpu_memory().context("no memory of a GPU")?.write(0, payload)?;
    Ok(buffer)
}

fn arrived(frame: &Received, is_in_gpu: bool, payload: &[u8]) -> Result<()> {
    ensure!(frame.len() == payload.len(), "{frame:?}, not {} bytes", payload.len());
    if !is_in_gpu {
        ensure!(frame.gpu().is_err() && frame.bytes() == payload, "{} bytes are others", payload.len());
        return Ok(());
    }
    let mut found = vec![0; frame.gpu()?.len()];
    frame.gpu()?.read(&mut found)?;
    ensure!(found == payload, "{} bytes in the GPU are others", payload.len());
    Ok(())
}

/// Payload and header go to different memory: far more of them than are in flight at a time, and
/// than either queue holds.
async fn many_small_frames_arrive_in_their_slots() -> Result<()> {
    let frames = amount(1000, 3000) as u32;
    let gpu = || StandIn::new("reached", At::Memory).gpu();
    let listener = listener(GUEST, FORCED).frame_size(4096).slots(300).gpu(gpu()).bind().await?;
    let peers = connect(&listener, (Transport::Rdma, Delivery::AtLeastOnce), FORCED)?;
    let place = gpu();
    let sending = async {
        for number in 0..frames {
            let payload = number.to_le_bytes().repeat(1 + number as usize % 7);
            // From a GPU, from the machine, and empty.
            let frame = match number % 3 {
                0 => Frame::new(buffer(Some(&place), &payload)?),
                1 => Frame::new(payload),
                _ => Frame::new(Vec::new()).metadata(payload),
            };
            peers.send(frame).await?;
        }
        anyhow::Ok(())
    };
    let receiving = async {
        for number in 0..frames {
            let payload = number.to_le_bytes().repeat(1 + number as usize % 7);
            let frame = listener.recv().await?;
            let (metadata, expected) =
                if number % 3 == 2 { (&payload[..], &[][..]) } else { (&[][..], &payload[..]) };
            ensure!(frame.metadata() == metadata, "frame {number}: {frame:?}");
            arrived(&frame, true, expected).with_context(|| format!("frame {number}"))?;
            frame.acknowledge();
        }
        Ok(())
    };
    futures::try_join!(sending, receiving)?;
    peers.flush().await?;
    ensure!(peers.statistics().disconnects == 0, "{:?}", peers.statistics());
    Ok(())
}

/// Only the frame is given up, not the connection.
async fn an_unreadable_frame_is_given_up(transport: Transport) -> Result<()> {
    let listener = listener(GUEST, Forced::No).transport(transport).bind().await?;
    let peers = connect(&listener, (transport, Delivery::AtLeastOnce), Forced::No)?;
    let gpu = StandIn::new("hidden", At::Nothing);
    let frames = [buffer(Some(&gpu.gpu()), b"before")?, buffer(Some(&gpu.gpu()), b"broken")?];
    peers.connected(1).await;
    for (number, frame) in frames.into_iter().enumerate() {
        gpu.set_broken(number == 1);
        let sent = peers.send(frame).await?;
        if number == 0 {
            let frame = listener.recv().await?;
            ensure!(frame.bytes() == b"before", "{frame:?}");
            frame.acknowledge();
        }
        let is_given_up = sent.acknowledged().await == Err(Unacknowledged::GivenUp);
        ensure!(is_given_up == (number == 1), "frame {number}: {:?}", peers.statistics());
    }
    peers.send("after").await?;
    let frame = listener.recv().await?;
    ensure!(frame.bytes() == b"after", "{frame:?}");
    frame.acknowledge();
    ensure!(peers.flush().await == Err(Unacknowledged::GivenUp), "a frame has been given up");
    peers.flush().await?;
    let statistics = peers.statistics();
    ensure!(statistics.undeliverable == 1 && statistics.disconnects == 0, "{statistics:?}");
    Ok(())
}

/// With TLS, another part of the library writes.
async fn frames_are_fetched_with_tls_too() -> Result<()> {
    let folder = TempDir::new()?;
    let authority = FileAuthority::new(folder.path())?;
    let (server, client) = (authority.server("infer")?, authority.client("camera", "vision")?);
    let tls = |it: &Certificate| Tls::from_files(&it.cert, &it.key, authority.ca());
    let listener = listener(GUEST, Forced::No).tls(tls(&server)?).bind().await?;
    let connector = connector((Transport::Tcp, Delivery::AtLeastOnce), Forced::No)?.tls(tls(&client)?);
    let peers = follow(&listener, connector)?;
    let gpu = StandIn::new("hidden", At::Nothing);
    let broken = buffer(Some(&gpu.gpu()), b"broken")?;
    peers.connected(1).await;
    gpu.set_broken(true);
    let outcome = peers.send(broken).await?.acknowledged().await;
    ensure!(outcome == Err(Unacknowledged::GivenUp), "{outcome:?}");
    gpu.set_broken(false);
    let mut payload = vec![0; SIZE as usize];
    fastrand::fill(&mut payload);
    peers.send(buffer(Some(&gpu.gpu()), &payload)?).await?;
    let frame = listener.recv().await?;
    arrived(&frame, false, &payload)?;
    frame.acknowledge();
    ensure!(peers.flush().await == Err(Unacknowledged::GivenUp), "a frame has been given up");
    let statistics = peers.statistics();
    ensure!(statistics.undeliverable == 1 && statistics.disconnects == 0, "{statistics:?}");
    Ok(())
}

/// On both sides, with the kernel's reason.
async fn a_forced_method_that_fails_names_the_reason() -> Result<()> {
    let gpu = StandIn::new("hidden", At::Nothing);
    let cases = [
        (Method::DmaBuf, "dma-buf: rxe0: cannot register a dma-buf: Operation not supported"),
        (Method::PeerMemory, "peermem: rxe0: cannot register a GPU's memory: Bad address"),
    ];
    for (method, why) in cases {
        let listener = listener(GUEST, Forced::To(method)).gpu(gpu.gpu()).bind().await?;
        let peers = connect(&listener, (Transport::Auto, Delivery::AtLeastOnce), Forced::No)?;
        peers.connected(1).await;
        let status = peers.status();
        let reason = status[0].instead_of_rdma.as_deref().unwrap_or_default();
        let whose = "rxe0 does not reach hidden by the forced method, ";
        ensure!(reason.contains(&format!("{whose}{why}")), "{method}: {reason:?}");
    }
    Ok(())
}

/// A frame from a GPU that the method does not reach is given up. All others are sent by the same
/// connection.
async fn a_forced_method_costs_frames_and_no_connection() -> Result<()> {
    let gpu = StandIn::new("hidden", At::Nothing).gpu();
    for (method, delivery) in
        [(Method::DmaBuf, Delivery::AtLeastOnce), (Method::PeerMemory, Delivery::AtMostOnce)]
    {
        let listener = listener(GUEST, Forced::No).acknowledge(Acknowledge::OnDrop).bind().await?;
        let peers = connect(&listener, (Transport::Rdma, delivery), Forced::To(method))?;
        let memory = buffer(Some(&gpu), b"unreached")?;
        // Frames are copied until the method has been tried.
        let sending = async {
            let begun = Instant::now();
            while peers.statistics().undeliverable < 3 {
                peers.send(memory.clone()).await?;
                peers.send("between").await?;
                ensure!(begun.elapsed() < Duration::from_secs(100), "{:?}", peers.statistics());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            ensure!(peers.flush().await == Err(Unacknowledged::GivenUp), "frames have been given up");
            anyhow::Ok(())
        };
        let receiving = async {
            loop {
                let frame = listener.recv().await?;
                ensure!(frame.bytes() == b"unreached" || frame.bytes() == b"between", "{frame:?}");
            }
        };
        tokio::select! {
            outcome = sending => outcome,
            outcome = receiving => outcome,
        }?;
        let statistics = peers.statistics();
        ensure!(statistics.disconnects == 0 && statistics.lost == 0, "{method}: {statistics:?}");
    }
    Ok(())
}

async fn payloads_are_in_a_gpu_only_on_request() -> Result<()> {
    let listener = listener(GUEST, Forced::No).bind().await?;
    let peers = connect(&listener, (Transport::Rdma, Delivery::AtLeastOnce), Forced::No)?;
    peers.send(vec![1, 2, 3]).await?;
    let frame = listener.recv().await?;
    let error = frame.gpu().err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(error == "the listener has no GPU: give it one by ListenerBuilder::gpu", "{error}");
    Ok(())
}

/// The method is tried with little memory, and works. Then the GPU has no room for the slots.
async fn slots_that_do_not_fit_are_in_the_machines_memory() -> Result<()> {
    // The place where the library looks for the module that resolves addresses of GPUs.
    let script = "mount -t tmpfs none /sys/kernel/mm && mkdir -p /sys/kernel/mm/memory_peers/nv_mem && \
                  echo 1 >/sys/kernel/mm/memory_peers/nv_mem/version";
    ensure!(Command::new("sh").args(["-c", script]).status()?.success(), "no stand-in for the module");
    let gpu = StandIn::small("small", At::Memory, 2 * SIZE as usize);
    let gpus = [None, Some(gpu.gpu())];
    travel(GUEST, (Transport::Rdma, Delivery::AtLeastOnce), &gpus, [Forced::No; 2]).await?;
    ensure!(gpu.flushes() == 1, "it has been tried once, and not {} times", gpu.flushes());
    Ok(())
}

fn listener(address: IpAddr, forced: Forced) -> ListenerBuilder {
    Listener::builder()
        .address(address)
        .port(0)
        .frame_size(SIZE)
        .slots(4)
        .patience(Duration::from_secs(60))
        .rdma(Rdma::default().gpu_method(forced))
}

fn connect(listener: &Listener, ends: (Transport, Delivery), forced: Forced) -> Result<PeerSet> {
    follow(listener, connector(ends, forced)?)
}

fn connector((transport, delivery): (Transport, Delivery), forced: Forced) -> Result<ConnectorBuilder> {
    Ok(Connector::builder()
        .resolver(no_resolver()?)
        .transport(transport)
        .delivery(delivery)
        .patience(Duration::from_secs(60))
        .rdma(Rdma::default().gpu_method(forced).stripes(if delivery == Delivery::AtLeastOnce {
            3
        } else {
            1
        })))
}

/// Returns a PeerSet with the listener as its only peer.
fn follow(listener: &Listener, connector: ConnectorBuilder) -> Result<PeerSet> {
    crate::follow(connector, vec![Endpoint::at(listener.local_addresses()[0])])
}
