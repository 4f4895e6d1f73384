//! Senders that have been let in by RDMA and break the rules: each is told why it is cut off, and nobody else is affected.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::channel::mpsc::unbounded;
use multinet_client::gid::{self, Local};
use multinet_client::verbs::{
    Depths, Domain, Endpoint as End, Fresh, Landing, Library, Pair, Path, Queue, Region, Remote, Write,
};
use multinet_client::{Connector, Endpoint, Listener, PeerSet, Resolver, Transport, TransportKind};
use multinet_tests::in_guest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BOUND: Duration = Duration::from_secs(60);
const FRAME_SIZE: u32 = 1000;
const HEADER: usize = 40;

/// A sender by hand.
struct Raw {
    stream: TcpStream,
    pair: Pair,
    queue: Queue,
    region: Region,
    /// Only held, for it was promised.
    _landing: Landing,
    /// The receiver's slots, from one to the next, and to what follows the header.
    slots: Remote,
    stride: u64,
    prefix: u64,
}

/// One thing that a sender does.
#[derive(Clone, Copy)]
enum Deed {
    /// Tells of a slot with this header.
    Frame(u32, [u8; HEADER]),
    /// Tells this, and nothing else.
    Immediate(u32),
    /// Says it by TCP.
    Stream([u8; HEADER]),
}

/// A header of a frame with so many bytes of payload.
fn data(sequence: u8, payload: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = 1;
    header[8..12].copy_from_slice(&payload.to_be_bytes());
    (header[23], header[31]) = (sequence, sequence);
    header
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_breaks_the_rules_is_cut_off() -> Result<()> {
    in_guest!();
    let listener = Listener::builder().address([10, 9, 0, 2].into()).port(0).frame_size(FRAME_SIZE).slots(4);
    let listener = listener.patience(Duration::from_secs(20)).bind().await?;
    let honest = honest(&listener)?;
    honest.connected(1).await;
    ensure!(honest.status()[0].transport == Some(TransportKind::Rdma), "{:#?}", honest.status());

    let mut control = [0; HEADER];
    control[0] = 2;
    let cases: &[(&[Deed], &str)] = &[
        (&[Deed::Immediate(0x0300_0000)], "an immediate of 0x03000000, which means nothing"),
        (&[Deed::Immediate(0x0001_0000)], "an immediate of 0x00010000, which means nothing"),
        (&[Deed::Immediate(0x0100_0000)], "it says that it has heard more than it was told"),
        (&[Deed::Frame(4, data(1, 10))], "it tells of place 4, which there is not"),
        (
            &[Deed::Frame(0, data(1, 10)), Deed::Frame(0, data(2, 10))],
            "place 0, which it has not been told is free",
        ),
        (&[Deed::Frame(1, [0; HEADER])], "a message of kind 0, which there is not"),
        (&[Deed::Frame(1, control)], "a receiver's message, where only frames are allowed"),
        (&[Deed::Frame(3, data(1, FRAME_SIZE + 1))], "a frame of 1001 bytes, where 1000 are allowed"),
        (&[Deed::Frame(3, data(1, u32::MAX))], "a frame of 4294967295 bytes, where 1000 are allowed"),
        (&[Deed::Immediate(0x0200_0000), Deed::Immediate(0x0200_0000)], "it tries the way again"),
        (&[Deed::Stream(data(1, 10))], "a frame by TCP, where RDMA was agreed"),
    ];
    for (number, (deeds, reason)) in (1..).zip(cases) {
        let mut raw = Raw::admitted(&listener, number).await.with_context(|| format!("case {number}"))?;
        for deed in *deeds {
            raw.does(*deed).await?;
        }
        let said = raw.goodbye().await.with_context(|| format!("{reason:?} is not said"))?;
        ensure!(
            said.contains("the sender broke the protocol") && said.contains(reason),
            "{said:?}, not {reason:?}"
        );
    }
    handshakes_that_lie(&listener).await?;
    // The frame that came before a rule was broken is there; nothing else is, and the honest sender has not noticed.
    let frame = listener.recv().await?;
    ensure!(frame.sender().name() == "stranger" && frame.bytes().len() == 10, "{frame:?}");
    honest.send("honest").await?;
    let frame = tokio::time::timeout(BOUND, listener.recv()).await??;
    ensure!(frame.bytes() == b"honest", "{frame:?}");
    ensure!(honest.statistics().disconnects == 0, "{:?}", honest.statistics());
    Ok(())
}

/// Neither is let in: who would have the listener send to a third party, and who takes what it did not offer.
async fn handshakes_that_lie(listener: &Listener) -> Result<()> {
    let end = |gid: &str| {
        json!({"device": "by hand", "qpn": 1000, "psn": 1, "gid": gid, "mtu": 1024,
               "address": 4096, "rkey": 1, "places": 64, "stride": 192, "prefix": 40})
    };
    let mut stream = TcpStream::connect(listener.local_addresses()[0]).await?;
    say(&mut stream, &hello(100, &end("::ffff:10.9.0.77"))).await?;
    let answer = hear(&mut stream).await?;
    let message = answer["refuse"]["message"].as_str().unwrap_or_default();
    ensure!(message == "RDMA cannot be used: the peer's GID is not that of its address", "{answer}");

    let mut stream = TcpStream::connect(listener.local_addresses()[0]).await?;
    let own = format!("::ffff:{}", stream.local_addr()?.ip());
    say(&mut stream, &hello(101, &end(&own))).await?;
    let answer = hear(&mut stream).await?;
    ensure!(answer["accept"]["transport"] == "rdma", "{answer}");
    say(&mut stream, &json!({"transport": "tcp"})).await?;
    let mut rest = Vec::new();
    tokio::time::timeout(BOUND, stream.read_to_end(&mut rest)).await??;
    ensure!(rest.is_empty(), "{rest:?}");
    Ok(())
}

fn hello(session: u32, end: &Value) -> Value {
    json!({
        "service": "infer", "from": "stranger", "session": format!("{session:032x}"), "epoch": 1, "lane": 0,
        "delivery": "at-most-once", "transports": ["rdma"], "rdma": end,
    })
}

fn honest(listener: &Listener) -> Result<PeerSet> {
    let nobody = Resolver::builder().servers([SocketAddr::from(([127, 0, 0, 1], 9))]).build()?;
    let connector = Connector::builder().resolver(nobody).transport(Transport::Rdma).build()?;
    let (endpoints, changes) = unbounded();
    endpoints.unbounded_send(vec![Endpoint::at(listener.local_addresses()[0])])?;
    Ok(connector.follow("infer", changes))
}

impl Raw {
    /// One that has been let in, and has chosen RDMA.
    async fn admitted(listener: &Listener, session: u32) -> Result<Self> {
        let mut stream = TcpStream::connect(listener.local_addresses()[0]).await?;
        let address: IpAddr = stream.local_addr()?.ip();
        let local = Local { address, interface: "rdma0", port_gid: None };
        let place = gid::choose(&gid::local_ports()?, local).chosen.context("no row")?;
        let context = Library::load()?.devices()?.first().context("no device")?.open()?;
        let domain = Domain::new(&context)?;
        let page = NonZeroUsize::new(64 * 192).context("zero")?;
        let (region, landing) = (domain.region(page)?, domain.landing(page)?);
        let queue = Queue::new(&context, 200)?;
        let fresh = Fresh::new(&domain, &queue, Depths { send: 16, receive: 64 })?;
        let End { number, sequence, gid, .. } = fresh.endpoint(place.gid, 0);
        let Remote { address, key } = landing.remote(0)?;
        let end = json!({
            "device": "by hand", "qpn": number, "psn": sequence, "gid": gid, "mtu": 1024,
            "address": address, "rkey": key, "places": 64, "stride": 192, "prefix": 40,
        });
        say(&mut stream, &hello(session, &end)).await?;
        let answer = hear(&mut stream).await?;
        let theirs = &answer["accept"]["rdma"];
        ensure!(theirs.is_object(), "{answer}");
        let number = |name: &str| theirs[name].as_u64().with_context(|| format!("no {name} in {theirs}"));
        let end = End {
            number: number("qpn")? as u32,
            sequence: number("psn")? as u32,
            gid: serde_json::from_value(theirs["gid"].clone())?,
            lid: 0,
        };
        let path = Path { port: 1, row: u8::try_from(place.index)?, mtu: 1024, is_global: true };
        let pair = fresh.connect(path, end)?;
        for _ in 0..64 {
            pair.receive(1 << 40)?;
        }
        say(&mut stream, &json!({"transport": "rdma"})).await?;
        let slots = Remote { address: number("address")?, key: number("rkey")? as u32 };
        let (stride, prefix) = (number("stride")?, number("prefix")?);
        Ok(Self { stream, pair, queue, region, _landing: landing, slots, stride, prefix })
    }

    async fn does(&mut self, deed: Deed) -> Result<()> {
        let (part, at, immediate) = match deed {
            Deed::Stream(header) => {
                return Ok(self.stream.write_all(&[&header[..], &[0; 10]].concat()).await?);
            }
            Deed::Immediate(immediate) => (None, 0, immediate),
            Deed::Frame(slot, header) => {
                self.region.write(0, &header)?;
                // There are four.
                let at = u64::from(slot % 4) * self.stride + self.prefix - HEADER as u64;
                (Some((&self.region, 0..HEADER)), at, slot)
            }
        };
        let remote = Remote { address: self.slots.address + at, key: self.slots.key };
        let immediate = Some(immediate);
        self.pair.write(&[Write { id: 1, part, lent: None, remote, immediate, is_signalled: true }])?;
        let begun = Instant::now();
        while self.queue.poll()?.is_none_or(|completion| completion.id != 1) {
            ensure!(begun.elapsed() < BOUND, "nothing has become of the write");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Why the receiver ends the connection.
    async fn goodbye(mut self) -> Result<String> {
        let mut header = [0; HEADER];
        tokio::time::timeout(BOUND, self.stream.read_exact(&mut header)).await??;
        ensure!(header[0] == 3, "{header:?} is no goodbye");
        let mut text = vec![0; u16::from_be_bytes([header[2], header[3]]).into()];
        self.stream.read_exact(&mut text).await?;
        Ok(String::from_utf8(text)?)
    }
}

async fn say(stream: &mut TcpStream, message: &Value) -> Result<()> {
    let body = message.to_string();
    let length = u16::try_from(body.len())?.to_be_bytes();
    Ok(stream.write_all(&[b"MNET\0\x01", &length[..], body.as_bytes()].concat()).await?)
}

async fn hear(stream: &mut TcpStream) -> Result<Value> {
    let mut preamble = [0; 8];
    stream.read_exact(&mut preamble).await?;
    let mut body = vec![0; u16::from_be_bytes([preamble[6], preamble[7]]).into()];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}
