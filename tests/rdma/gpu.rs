//! Frames from GPU to GPU. A stand-in has the GPU's part ([`StandIn`]): all but the calls to a GPU's driver is the library's own, and the device that
//! reads and writes the memory is soft-RoCE.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::channel::mpsc::unbounded;
use multinet_client::{
    Buffer, Connector, Delivery, Endpoint, Forced, Frame, Gpu as _, Listener, ListenerBuilder, Method,
    PeerSet, Rdma, Resolver, Transport, TransportKind,
};
use multinet_tests::gpu::{At, StandIn};
use multinet_tests::in_guest;

/// The largest frame.
const SIZE: u32 = 1 << 20;

/// Of a GPU: how many bytes frames have.
const SIZES: [usize; 7] = [1, 63, 4096, 4097, 65_536, 300_001, SIZE as usize];

const FORCED: Forced = Forced::To(Method::PeerMemory);

/// All in one guest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_travel_from_gpu_to_gpu() -> Result<()> {
    in_guest!();
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    what_the_kernel_can_is_found_out().context("the stand-in")?;
    let reached = || StandIn::new("reached", At::Memory);
    let hidden = || StandIn::new("hidden", At::Nothing);
    // Where devices reach the memory, where they do not, and all mixtures.
    for (sender, theirs) in [(Some(reached()), FORCED), (Some(hidden()), Forced::No), (None, Forced::No)] {
        for (receiver, ours) in [(Some(reached()), FORCED), (Some(hidden()), Forced::No), (None, Forced::No)]
        {
            let case = format!("{sender:?} {theirs:?} to {receiver:?} {ours:?}");
            // Which one makes no difference to memory.
            let is_once = receiver.is_none();
            let delivery = if is_once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce };
            let ends = (Transport::Rdma, delivery);
            travel(ends, (sender.as_ref(), theirs), (receiver.as_ref(), ours)).await.context(case)?;
        }
    }
    let (sender, receiver) = (hidden(), hidden());
    let ends = (Transport::Tcp, Delivery::AtLeastOnce);
    travel(ends, (Some(&sender), Forced::No), (Some(&receiver), Forced::No)).await.context("TCP")?;
    what_is_forced_and_does_not_work_says_why().await.context("forced")?;
    nobody_has_a_gpu_unasked().await.context("no GPU")
}

/// The kernel exports the memory, and finds the same bytes in it; soft-RoCE takes no dma-buf.
fn what_the_kernel_can_is_found_out() -> Result<()> {
    let memory = StandIn::new("hidden", At::Nothing).allocate(NonZeroUsize::MIN)?;
    memory.export()?;
    let memory = StandIn::new("reached", At::Memory).allocate(NonZeroUsize::MIN)?;
    memory.write(0, b"x")?;
    let mut found = [0];
    memory.read(0, &mut found)?;
    ensure!(found == *b"x" && memory.length() == 1, "{found:?}");
    Ok(())
}

type End<'s> = (Option<&'s StandIn>, Forced);

/// Frames of all sizes, several of each under way, arrive as they were sent, where they are wanted.
async fn travel(
    (transport, delivery): (Transport, Delivery),
    sender: End<'_>,
    receiver: End<'_>,
) -> Result<()> {
    let mut listener = listener(receiver.1).transport(transport);
    if let Some(gpu) = receiver.0 {
        listener = listener.gpu(gpu.gpu());
    }
    let listener = listener.bind().await?;
    let peers = connect(&listener, (transport, delivery), sender.1)?;
    peers.connected(1).await;
    let kind = if transport == Transport::Tcp { TransportKind::Tcp } else { TransportKind::Rdma };
    ensure!(peers.status()[0].transport == Some(kind), "{:?}", peers.status());
    let flushes = receiver.0.map_or(0, StandIn::flushes);
    let mut count = 0;
    for size in SIZES {
        let mut payloads = vec![vec![0; size]; 6];
        payloads.iter_mut().for_each(|payload| fastrand::fill(payload));
        let sending = async {
            for payload in &payloads {
                let buffer = match sender.0 {
                    None => payload.clone().into(),
                    Some(gpu) => {
                        let buffer = Buffer::gpu(gpu, NonZeroUsize::new(size).context("nothing")?)?;
                        ensure!(buffer.len() == size && buffer.bytes().is_empty(), "{buffer:?}");
                        buffer.gpu_memory().context("no memory of a GPU")?.write(0, payload)?;
                        buffer
                    }
                };
                // With something before it, so that not all begins where a page does.
                peers.send(Frame::new(buffer).key("key").metadata(vec![7; size % 100])).await?;
            }
            Ok(())
        };
        let receiving = async {
            for payload in &payloads {
                let frame = listener.recv().await?;
                ensure!(frame.len() == size && frame.key() == b"key", "{frame:?}");
                ensure!(frame.metadata() == vec![7; size % 100], "{frame:?}");
                let is_landed = receiver.1 == FORCED;
                let seen = if is_landed { &[][..] } else { payload };
                ensure!(
                    frame.bytes() == seen,
                    "{} bytes are to be seen, not {}",
                    frame.bytes().len(),
                    seen.len()
                );
                match receiver.0 {
                    None => ensure!(frame.gpu().is_err()),
                    Some(_) => {
                        let mut found = vec![0; frame.gpu()?.len()];
                        frame.gpu()?.read(&mut found)?;
                        ensure!(found == *payload, "{size} bytes in the GPU are others");
                    }
                }
                frame.acknowledge();
                count += 1;
            }
            Ok(())
        };
        futures::try_join!(sending, receiving)?;
    }
    // A frame with a seam, of both kinds of memory.
    if let Some(gpu) = sender.0 {
        let buffer = Buffer::gpu(gpu, NonZeroUsize::new(5000).context("nothing")?)?;
        buffer.gpu_memory().context("no memory of a GPU")?.write(0, &[3; 5000])?;
        peers.send(Frame::new(vec![1; 10]).and(buffer).and(vec![2; 20])).await?;
        let frame = listener.recv().await?;
        let whole = [&[1; 10][..], &[3; 5000], &[2; 20]].concat();
        let found = match receiver.0 {
            None => frame.bytes().to_vec(),
            Some(_) => {
                let mut found = vec![0; frame.len()];
                frame.gpu()?.read(&mut found)?;
                found
            }
        };
        ensure!(found == whole, "the parts are others");
        frame.acknowledge();
    }
    if receiver.1 == FORCED {
        let flushed = receiver.0.map_or(0, StandIn::flushes) - flushes;
        ensure!(flushed >= count, "{count} frames have come to the GPU, which was told of {flushed}");
    }
    peers.flush().await;
    ensure!(peers.statistics().disconnects == 0, "{:?}", peers.statistics());
    Ok(())
}

/// On both sides, with the reason of the kernel.
async fn what_is_forced_and_does_not_work_says_why() -> Result<()> {
    let gpu = StandIn::new("hidden", At::Nothing);
    let cases = [
        (Method::DmaBuf, "dma-buf: rxe0: cannot register a dma-buf: Operation not supported"),
        (Method::PeerMemory, "peermem: rxe0: cannot register memory: Bad address"),
    ];
    for (method, why) in cases {
        let listener = listener(Forced::To(method)).gpu(gpu.gpu()).bind().await?;
        let peers = connect(&listener, (Transport::Auto, Delivery::AtLeastOnce), Forced::No)?;
        peers.connected(1).await;
        let status = peers.status();
        let reason = status[0].instead_of_rdma.as_deref().unwrap_or_default();
        let whose = "rxe0 does not reach hidden by what is forced, ";
        ensure!(reason.contains(&format!("{whose}{why}")), "{method}: {reason:?}");
    }
    Ok(())
}

async fn nobody_has_a_gpu_unasked() -> Result<()> {
    let listener = listener(Forced::No).bind().await?;
    let peers = connect(&listener, (Transport::Rdma, Delivery::AtLeastOnce), Forced::No)?;
    peers.send(vec![1, 2, 3]).await?;
    let frame = listener.recv().await?;
    let error = frame.gpu().err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(error == "the listener has no GPU: give it one by ListenerBuilder::gpu", "{error}");
    Ok(())
}

fn listener(forced: Forced) -> ListenerBuilder {
    Listener::builder()
        .address([10, 9, 0, 2].into())
        .port(0)
        .frame_size(SIZE)
        .slots(4)
        .patience(Duration::from_secs(60))
        .rdma(Rdma::default().gpu_method(forced))
}

fn connect(
    listener: &Listener,
    (transport, delivery): (Transport, Delivery),
    forced: Forced,
) -> Result<PeerSet> {
    let nobody = Resolver::builder().servers([SocketAddr::from(([127, 0, 0, 1], 9))]).build()?;
    let connector = Connector::builder()
        .resolver(nobody)
        .transport(transport)
        .delivery(delivery)
        .patience(Duration::from_secs(60))
        .rdma(Rdma::default().gpu_method(forced))
        .build()?;
    let (endpoints, changes) = unbounded();
    endpoints.unbounded_send(vec![Endpoint::at(listener.local_addresses()[0])])?;
    Ok(connector.follow("infer", changes))
}
