//! Both sides of the protocol by hand, so that tests can break it in any way.

use std::net::{Ipv4Addr, SocketAddr};

use multinet_client::{Endpoint, Listener};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::soon;

pub(crate) const HEADER: usize = 40;
pub(crate) const DATA: u8 = 1;
pub(crate) const CONTROL: u8 = 2;
pub(crate) const CLOSE: u8 = 3;
pub(crate) const LIMITED: u8 = 4;

/// Returns the greeting of a sender.
pub(crate) fn hello(session: u128, epoch: u64) -> Value {
    json!({
        "service": "infer.vision.svc.multinet",
        "from": "stranger",
        "session": format!("{session:032x}"),
        "epoch": epoch,
        "lane": 0,
        "delivery": "at-least-once",
        "transports": ["tcp"],
    })
}

/// Returns the answer of a receiver that admits the sender.
pub(crate) fn accept(slots: u32) -> Value {
    json!({"accept": {"name": "stranger", "frame_size": 1 << 20, "slots": slots, "transport": "tcp"}})
}

/// Returns a message of the handshake.
pub(crate) fn greeting(version: u16, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap();
    [b"MNET", &version.to_be_bytes()[..], &length.to_be_bytes(), body].concat()
}

/// Returns the header of a message, with these bytes at these offsets.
pub(crate) fn header(kind: u8, numbers: &[(usize, &[u8])]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = kind;
    for (at, bytes) in numbers {
        header[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    header
}

pub(crate) fn data(sequence: u64, floor: u64, payload: &[u8]) -> Vec<u8> {
    [&data_header(sequence, floor, payload.len())[..], payload].concat()
}

pub(crate) fn data_header(sequence: u64, floor: u64, length: usize) -> [u8; HEADER] {
    let length = u32::try_from(length).unwrap().to_be_bytes();
    header(DATA, &[(8, &length), (16, &sequence.to_be_bytes()), (24, &floor.to_be_bytes())])
}

pub(crate) fn control(freed: u64, taken: u64, acked: &[u64], rejected: &[u64]) -> Vec<u8> {
    let count = |ids: &[u64]| u16::try_from(ids.len()).unwrap().to_be_bytes();
    let header = header(
        CONTROL,
        &[(2, &count(acked)), (4, &count(rejected)), (16, &freed.to_be_bytes()), (24, &taken.to_be_bytes())],
    );
    let ids = acked.iter().chain(rejected).flat_map(|id| id.to_be_bytes());
    header.into_iter().chain(ids).collect()
}

/// One side of a connection.
pub(crate) struct Raw(pub(crate) TcpStream);

/// Received message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: [u8; HEADER],
    pub(crate) body: Vec<u8>,
}

impl Raw {
    pub(crate) async fn connect(listener: &Listener) -> Self {
        Self(soon(TcpStream::connect(listener.local_addresses()[0])).await.unwrap())
    }

    /// Connects, and completes the handshake.
    pub(crate) async fn admitted(listener: &Listener, hello: &Value) -> Self {
        let mut raw = Self::connect(listener).await;
        let answer = raw.greet(hello).await;
        assert!(answer.get("accept").is_some(), "{answer}");
        raw
    }

    /// Sends a greeting. Returns the answer.
    pub(crate) async fn greet(&mut self, hello: &Value) -> Value {
        self.write(&greeting(1, hello.to_string().as_bytes())).await;
        self.handshake_message().await
    }

    /// Waits for the other side's message of the handshake.
    pub(crate) async fn handshake_message(&mut self) -> Value {
        let mut preamble = [0; 8];
        soon(self.0.read_exact(&mut preamble)).await.unwrap();
        assert_eq!(&preamble[..6], b"MNET\0\x01");
        let mut body = vec![0; usize::from(u16::from_be_bytes([preamble[6], preamble[7]]))];
        soon(self.0.read_exact(&mut body)).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// Writes bytes. Ignores errors, because the other side may have closed the connection.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = soon(self.0.write_all(bytes)).await;
    }

    /// Waits for the next message; `None` at the end of the connection.
    pub(crate) async fn message(&mut self) -> Option<Message> {
        let mut header = [0; HEADER];
        soon(self.0.read_exact(&mut header)).await.ok()?;
        let short = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let length = match header[0] {
            DATA => {
                let payload: [u8; 4] = std::array::from_fn(|i| header[8 + i]);
                usize::from(header[2]) + short(4) + u32::from_be_bytes(payload) as usize
            }
            CONTROL => (short(2) + short(4)) * 8,
            _ => short(2),
        };
        let mut body = vec![0; length];
        soon(self.0.read_exact(&mut body)).await.ok()?;
        Some(Message { header, body })
    }

    /// Waits for the message that closes the connection. Returns its text.
    pub(crate) async fn goodbye(&mut self) -> String {
        let mut said = String::new();
        while let Some(message) = self.message().await {
            if message.header[0] == CLOSE {
                said = String::from_utf8(message.body).unwrap();
            }
        }
        said
    }

    /// Reads all bytes until the end of the connection.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset also ends the connection.
        let _ = soon(self.0.read_to_end(&mut rest)).await;
        rest
    }
}

impl Message {
    pub(crate) fn sequence(&self) -> u64 {
        self.number(16)
    }

    /// Returns the eight-byte number at an offset.
    pub(crate) fn number(&self, at: usize) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|i| self.header[at + i]))
    }

    /// Returns the sequence numbers that a control message acknowledges.
    pub(crate) fn acked(&self) -> Vec<u64> {
        let count = usize::from(u16::from_be_bytes([self.header[2], self.header[3]]));
        self.sequences().take(count).collect()
    }

    /// Returns the sequence numbers that a control message rejects.
    pub(crate) fn rejected(&self) -> Vec<u64> {
        let count = usize::from(u16::from_be_bytes([self.header[2], self.header[3]]));
        self.sequences().skip(count).collect()
    }

    fn sequences(&self) -> impl Iterator<Item = u64> {
        self.body.as_chunks().0.iter().map(|&bytes| u64::from_be_bytes(bytes))
    }
}

/// Receiver by hand.
pub(crate) struct Receiver(TcpListener);

impl Receiver {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    pub(crate) fn endpoint(&self, host: &str) -> Endpoint {
        let mut endpoint = Endpoint::at(self.address());
        endpoint.host = host.to_owned();
        endpoint.target = format!("{host}.infer.vision.svc.multinet.cluster.local");
        endpoint
    }

    /// Waits for the next connection.
    pub(crate) async fn next(&self) -> Raw {
        Raw(soon(self.0.accept()).await.unwrap().0)
    }

    /// Waits for the next connection, and answers its greeting.
    pub(crate) async fn answer(&self, answer: &Value) -> Raw {
        let mut raw = self.next().await;
        raw.handshake_message().await;
        raw.write(&greeting(1, answer.to_string().as_bytes())).await;
        raw
    }
}
