//! Both ends of a connection over RDMA, built by hand, so that each can break any rule.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use multinet_client::gid::{self, DeviceGid, SourceAddress};
use multinet_client::verbs::{
    Capacities, Class, Completion, CompletionQueue, Library, MemoryRegion, Path, ProtectionDomain, QueuePair,
    QueuePairAddress, ReceiveBuffer, RemoteAddress, UnconnectedQueuePair, Write,
};
use multinet_client::{Endpoint, Listener};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{BOUND, HERE};

pub(super) const HEADER: usize = 40;
/// The receive requests of a queue pair, and the entries of a ring.
const REQUESTS: u16 = 64;
/// The identifier of writes by hand. Completions of received immediates carry the number of their
/// queue pair.
const WRITTEN: u64 = 1 << 40;

/// The layout of memory: the number of slots, their stride, and the offset of what follows the
/// header.
type Form = (u64, u64, u64);

const RING: Form = (REQUESTS as u64, 192, 40);

/// An end that is not connected yet.
struct Ours {
    place: DeviceGid,
    region: MemoryRegion,
    receive_buffer: ReceiveBuffer,
    queue: CompletionQueue,
    unconnected: Vec<UnconnectedQueuePair>,
    end: Value,
}

/// A connected end.
pub(super) struct Raw {
    pub(super) stream: TcpStream,
    /// Tests may drop some of them.
    pub(super) pairs: Vec<QueuePair>,
    pub(super) queue: CompletionQueue,
    pub(super) region: MemoryRegion,
    /// `None` once a test has dropped it.
    pub(super) receive_buffer: Option<ReceiveBuffer>,
    /// The memory that the other side offers.
    pub(super) theirs: RemoteAddress,
    form: Form,
}

/// A receiver by hand.
pub(super) struct Receiver(TcpListener);

impl Ours {
    fn new(address: IpAddr, (places, stride, prefix): Form, count: usize) -> Result<Self> {
        let local = SourceAddress { address, interface: "rdma0", port_gid: None };
        let place = gid::choose(&gid::local_ports()?, local).chosen.context("no GID")?;
        let context = Library::load()?.devices()?.first().context("no device")?.open()?;
        let domain = ProtectionDomain::new(&context)?;
        let length = |length| NonZeroUsize::new(length).context("zero");
        let (region, receive_buffer) = (
            domain.memory_region(length(usize::from(REQUESTS) * 192)?)?,
            domain.receive_buffer(length((places * stride) as usize)?)?,
        );
        let queue = CompletionQueue::new(&context, 2000)?;
        let capacities = Capacities { send: 128, receive: REQUESTS };
        let unconnected = (0..count)
            .map(|_| UnconnectedQueuePair::new(&domain, &queue, capacities))
            .collect::<Result<Vec<_>, _>>()?;
        let RemoteAddress { address, key } = receive_buffer.remote(0)?;
        let ends: Vec<QueuePairAddress> =
            unconnected.iter().map(|unconnected| unconnected.address(place.gid, 0)).collect();
        let first = ends.first().context("no pair")?;
        let further: Vec<Value> =
            ends[1..].iter().map(|end| json!({"qpn": end.qpn, "psn": end.psn})).collect();
        let end = json!({
            "device": "by hand", "qpn": first.qpn, "psn": first.psn, "gid": first.gid, "mtu": 1024,
            "address": address, "rkey": key, "places": places, "stride": stride, "prefix": prefix, "further": further,
        });
        Ok(Self { place, region, receive_buffer, queue, unconnected, end })
    }

    fn connect(self, stream: TcpStream, theirs: &Value) -> Result<Raw> {
        ensure!(theirs.is_object(), "it offers no RDMA");
        let number = |of: &Value, name: &str| of[name].as_u64().with_context(|| format!("no {name} in {of}"));
        let gid_index = u8::try_from(self.place.index)?;
        let path = Path { port: 1, gid_index, mtu: 1024, class: Class::default(), is_global: true };
        let gid = serde_json::from_value(theirs["gid"].clone())?;
        let none = Vec::new();
        let further = theirs["further"].as_array().unwrap_or(&none);
        let mut pairs = Vec::new();
        for (of, unconnected) in [theirs].into_iter().chain(further).zip(self.unconnected) {
            let (qpn, psn) = (number(of, "qpn")? as u32, number(of, "psn")? as u32);
            pairs.push(unconnected.connect(path, QueuePairAddress { qpn, psn, gid, lid: 0 })?);
        }
        let remote =
            RemoteAddress { address: number(theirs, "address")?, key: number(theirs, "rkey")? as u32 };
        let form = (number(theirs, "places")?, number(theirs, "stride")?, number(theirs, "prefix")?);
        let (queue, region, receive_buffer) = (self.queue, self.region, Some(self.receive_buffer));
        Ok(Raw { stream, pairs, queue, region, receive_buffer, theirs: remote, form })
    }
}

impl Raw {
    /// Connects a sender, which is admitted and chooses RDMA.
    pub(super) async fn connect_to(listener: &Listener, session: u32, count: usize) -> Result<Self> {
        let mut stream = TcpStream::connect(listener.local_addresses()[0]).await?;
        let ours = Ours::new(stream.local_addr()?.ip(), RING, count)?;
        send_json(&mut stream, &hello(session, &ours.end)).await?;
        let answer = receive_json(&mut stream).await?;
        let mut raw = ours.connect(stream, &answer["accept"]["rdma"]).with_context(|| answer.to_string())?;
        raw.post_receives(REQUESTS)?;
        send_json(&mut raw.stream, &json!({"transport": "rdma"})).await?;
        Ok(raw)
    }

    /// Posts receive requests, so that the other side may send `count` immediates by each queue
    /// pair.
    pub(super) fn post_receives(&self, count: u16) -> Result<()> {
        for (number, pair) in (0..).zip(&self.pairs) {
            for _ in 0..count {
                pair.post_receive(number)?;
            }
        }
        Ok(())
    }

    /// Writes bytes by a queue pair: a header that ends where the body of a slot begins, the body,
    /// and an immediate.
    pub(super) async fn write_message(
        &self,
        pair: usize,
        place: u64,
        (header, body): (&[u8], &[u8]),
        immediate: u32,
    ) -> Result<()> {
        self.region.write(0, &[header, body].concat())?;
        let (_, stride, prefix) = self.form;
        let at = place * stride + prefix - header.len() as u64;
        let remote = RemoteAddress { address: self.theirs.address + at, key: self.theirs.key };
        self.write_to(pair, remote, header.len() + body.len(), immediate).await?
    }

    /// Writes to a remote address. Returns the outcome of the write.
    pub(super) async fn write_to(
        &self,
        pair: usize,
        remote: RemoteAddress,
        length: usize,
        immediate: u32,
    ) -> Result<Result<()>> {
        let sge = (length > 0).then_some((&self.region, 0..length));
        let immediate = Some(immediate);
        let pair = self.pairs.get(pair).context("no such pair")?;
        pair.post_writes(&[Write {
            id: WRITTEN,
            sge,
            zero_copy: None,
            remote,
            immediate,
            is_signalled: true,
        }])?;
        loop {
            let Completion { id, status, .. } = self.next_completion().await?;
            if id == WRITTEN {
                return Ok(status.map_err(|status| anyhow::anyhow!("{status}")));
            }
        }
    }

    /// Waits for the next immediate of the other side. Returns it with the number of its queue
    /// pair.
    pub(super) async fn next_immediate(&self) -> Result<(u64, u32)> {
        let Completion { id, status, immediate } = self.next_completion().await?;
        status.map_err(|status| anyhow::anyhow!("{status}"))?;
        Ok((id, immediate.context("no immediate")?))
    }

    async fn next_completion(&self) -> Result<Completion> {
        let begun = Instant::now();
        loop {
            if let Some(completion) = self.queue.poll()? {
                return Ok(completion);
            }
            ensure!(begun.elapsed() < BOUND, "nothing completes");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Returns the reason with which the other side closes the connection.
    pub(super) async fn goodbye(&mut self) -> Result<String> {
        let mut header = [0; HEADER];
        tokio::time::timeout(BOUND, self.stream.read_exact(&mut header)).await??;
        ensure!(header[0] == 3, "{header:?} is no goodbye");
        let mut text = vec![0; u16::from_be_bytes([header[2], header[3]]).into()];
        self.stream.read_exact(&mut text).await?;
        Ok(String::from_utf8(text)?)
    }
}

impl Receiver {
    pub(super) async fn new() -> Result<Self> {
        Ok(Self(TcpListener::bind((HERE, 0)).await?))
    }

    pub(super) fn endpoint(&self) -> Result<Endpoint> {
        let address: SocketAddr = self.0.local_addr()?;
        let mut endpoint = Endpoint::at(address);
        (endpoint.host, endpoint.target) = ("bad".to_owned(), "bad".to_owned());
        Ok(endpoint)
    }

    /// Admits the next sender, with this number of queue pairs and receive requests, and four slots
    /// for frames of `frame_size` bytes. `change` edits the answer. Returns our end, and the
    /// sender's choice unless it has left.
    pub(super) async fn admit(
        &self,
        (pairs, ready, frame_size): (usize, u16, u64),
        change: impl FnOnce(&mut Value),
    ) -> Result<(Raw, Option<Value>)> {
        let (mut stream, _) = tokio::time::timeout(BOUND, self.0.accept()).await??;
        let hello = receive_json(&mut stream).await?;
        let prefix = 4416;
        let ours = Ours::new(HERE.into(), (4, prefix + frame_size.next_multiple_of(64), prefix), pairs)?;
        let mut answer = json!({"accept": {
            "name": "bad", "frame_size": frame_size, "slots": 4, "transport": "rdma", "rdma": ours.end,
        }});
        change(&mut answer["accept"]);
        let mut raw = ours.connect(stream, &hello["rdma"])?;
        raw.post_receives(ready)?;
        send_json(&mut raw.stream, &answer).await?;
        let chosen = receive_json(&mut raw.stream).await.ok();
        Ok((raw, chosen))
    }
}

/// Returns the greeting of a sender that offers this end.
pub(super) fn hello(session: u32, end: &Value) -> Value {
    json!({
        "service": "infer", "from": "stranger", "session": format!("{session:032x}"), "epoch": 1, "lane": 0,
        "delivery": "at-most-once", "transports": ["rdma"], "rdma": end,
    })
}

/// Returns an end that does not exist.
pub(super) fn no_end(address: IpAddr) -> Value {
    json!({
        "device": "by hand", "qpn": 1000, "psn": 1, "gid": gid::gid_of(address), "mtu": 1024,
        "address": 4096, "rkey": 1, "places": 64, "stride": 192, "prefix": 40,
    })
}

pub(super) async fn send_json(stream: &mut TcpStream, message: &Value) -> Result<()> {
    let body = message.to_string();
    let length = u16::try_from(body.len())?.to_be_bytes();
    Ok(stream.write_all(&[b"MNET\0\x01", &length[..], body.as_bytes()].concat()).await?)
}

pub(super) async fn receive_json(stream: &mut TcpStream) -> Result<Value> {
    let mut preamble = [0; 8];
    tokio::time::timeout(BOUND, stream.read_exact(&mut preamble)).await??;
    let mut body = vec![0; u16::from_be_bytes([preamble[6], preamble[7]]).into()];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}
