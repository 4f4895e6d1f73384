//! Both sides of a transfer, written byte by byte, so that each can be of another version, slow, or
//! wrong.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

const HEADER: usize = 40;
const DATA: u8 = 1;
const CONTROL: u8 = 2;

/// Bound of each wait.
const BOUND: Duration = Duration::from_secs(60);

/// SHA-256 of "abc".
pub(crate) const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// A sender.
pub(crate) struct Sender {
    stream: TcpStream,
    next: u64,
}

/// A receiver, with a connection that it has accepted.
pub(crate) struct Receiver {
    stream: TcpStream,
    freed: u64,
}

/// A received frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) sequence: u64,
    pub(crate) header: Value,
    pub(crate) payload: Vec<u8>,
}

impl Sender {
    /// Connects. The sequences of frames begin with `next`.
    pub(crate) fn connect(to: SocketAddr, session: u128, epoch: u64, next: u64) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        let hello = json!({
            "service": "infer", "from": "stranger", "session": format!("{session:032x}"), "epoch": epoch, "lane": 0,
            "delivery": "at-least-once", "transports": ["tcp"],
        });
        let mut this = Self { stream, next };
        this.stream.write_all(&greeting(&hello)).unwrap();
        let answer = heard(&mut this.stream).unwrap();
        assert!(answer.get("accept").is_some(), "{answer}");
        this
    }

    /// Sends a frame, and returns its sequence.
    pub(crate) fn send(&mut self, header: &Value, payload: &[u8]) -> u64 {
        let (sequence, metadata) = (self.next, header.to_string());
        self.next += 1;
        let mut bytes = [0; HEADER];
        bytes[0] = DATA;
        bytes[4..6].copy_from_slice(&u16::try_from(metadata.len()).unwrap().to_be_bytes());
        bytes[8..12].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
        bytes[16..24].copy_from_slice(&sequence.to_be_bytes());
        bytes[24..32].copy_from_slice(&1_u64.to_be_bytes());
        self.stream.write_all(&[&bytes, metadata.as_bytes(), payload].concat()).unwrap();
        sequence
    }

    /// Sends a frame, and returns whether it is acknowledged.
    pub(crate) fn ask(&mut self, header: &Value, payload: &[u8]) -> bool {
        let sequence = self.send(header, payload);
        loop {
            let mut bytes = [0; HEADER];
            self.stream.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes[0], CONTROL);
            let [acked, rejected] =
                [2, 4].map(|at| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]])));
            let mut ids = vec![0; 8 * (acked + rejected)];
            self.stream.read_exact(&mut ids).unwrap();
            let ids: Vec<u64> = ids.as_chunks().0.iter().map(|&id| u64::from_be_bytes(id)).collect();
            if let Some(place) = ids.iter().position(|&id| id == sequence) {
                return place < acked;
            }
        }
    }
}

impl Receiver {
    /// Listens for `multinet send`.
    pub(crate) fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Accepts the next connection by which a frame comes: `multinet send` makes another one first,
    /// to see which receivers there are.
    pub(crate) fn accept(listener: &TcpListener, slots: u32) -> (Self, Frame) {
        loop {
            let mut stream = listener.accept().unwrap().0;
            stream.set_read_timeout(Some(BOUND)).unwrap();
            let Some(_) = heard(&mut stream) else { continue };
            let accept =
                json!({"name": "by-hand", "frame_size": 1 << 20, "slots": slots, "transport": "tcp"});
            let _ = stream.write_all(&greeting(&json!({ "accept": accept })));
            let mut this = Self { stream, freed: 0 };
            if let Some(frame) = this.frame() {
                return (this, frame);
            }
        }
    }

    /// Returns the next frame; none at the end.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        let mut bytes = [0; HEADER];
        self.stream.read_exact(&mut bytes).ok()?;
        if bytes[0] != DATA {
            return None;
        }
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let metadata = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
        let payload: [u8; 4] = std::array::from_fn(|i| bytes[8 + i]);
        let mut body = vec![0; usize::from(bytes[2]) + metadata + u32::from_be_bytes(payload) as usize];
        self.stream.read_exact(&mut body).unwrap();
        let payload = body.split_off(usize::from(bytes[2]) + metadata);
        let header = serde_json::from_slice(&body[usize::from(bytes[2])..]).unwrap();
        Some(Frame { sequence: number(16), header, payload })
    }

    pub(crate) fn acknowledge(&mut self, frame: &Frame) {
        self.answer(frame, 3);
    }

    pub(crate) fn refuse(&mut self, frame: &Frame) {
        self.answer(frame, 5);
    }

    /// Answers a frame. `count` is the place of the number of frames that have that answer.
    fn answer(&mut self, frame: &Frame, count: usize) {
        self.freed += 1;
        let mut bytes = [0; HEADER];
        bytes[0] = CONTROL;
        bytes[count] = 1;
        bytes[16..24].copy_from_slice(&self.freed.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.freed.to_be_bytes());
        self.stream.write_all(&[&bytes[..], &frame.sequence.to_be_bytes()].concat()).unwrap();
    }
}

/// Returns a message of the handshake.
fn greeting(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [b"MNET\0\x01", &length[..], body.as_bytes()].concat()
}

/// Reads the other side's message; none if it has gone.
fn heard(stream: &mut TcpStream) -> Option<Value> {
    let mut preamble = [0; 8];
    stream.read_exact(&mut preamble).ok()?;
    let mut body = vec![0; usize::from(u16::from_be_bytes([preamble[6], preamble[7]]))];
    stream.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}
