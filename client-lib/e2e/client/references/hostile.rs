//! Many fetchers of one payload that read nothing.

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use multinet_testing::process::free_port;
use multinet_testing::usage::resident_mebibytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::worker::{Event, Program};

/// Addresses of fetchers that read nothing, and how many each has. All of them fit into the usual
/// limit of open files, and among the connections that the program allows.
const ADDRESSES: u8 = 15;
const SILENT: usize = 60;

const PATIENCE: Duration = Duration::from_secs(60);

/// Length of the payload.
const SIZE: usize = 1 << 20;

/// Most memory of the offering program, in MiB: it has one copy of the payload.
const MOST: f64 = 200.0;

/// Kind of the message by which a fetcher asks.
const ASK: u8 = 5;

const HEADER: usize = 40;

#[tokio::test]
async fn hundreds_of_fetchers_that_read_nothing_do_not_keep_another_from_a_payload() -> Result<()> {
    let port = free_port()?;
    let (events, inbox) = channel();
    let (number, size) = (port.to_string(), SIZE.to_string());
    let offer = Program::new("offer", [&*number, "--address", "127.0.0.1", "--size", &size])?;
    let mut offer = offer.start(&events)?;
    offer.write("camera/1")?;
    let Event::Offered(reference) = inbox.recv_timeout(PATIENCE)? else {
        bail!("the payload is not on offer")
    };
    let mut silent = Vec::new();
    for address in (1..=ADDRESSES).flat_map(|last| [Ipv4Addr::new(127, 2, 0, last); SILENT]) {
        silent.push(fetcher_by_hand(address, port).await?);
    }
    let fetch = Program::new("fetch", ["127.0.0.1", "--port", &number, "--server", "127.0.0.1:9"])?;
    let mut fetch = fetch.start(&events)?;
    fetch.write(&reference)?;
    let mut told = [inbox.recv_timeout(PATIENCE)?, inbox.recv_timeout(PATIENCE)?];
    told.sort_by_key(|event| matches!(event, Event::Taken(_)));
    ensure!(matches!(&told, [Event::Fetched(_), Event::Taken(id)] if id == "camera/1"), "{told:?}");
    let resident = resident_mebibytes(offer.pid())?;
    ensure!(resident < MOST, "{resident} MiB with {} fetchers", silent.len());
    Ok(())
}

/// Connects as a fetcher does, grants slots, and asks for the payload.
async fn fetcher_by_hand(from: Ipv4Addr, port: u16) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let mut stream = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await?;
    stream.write_all(&greeting(&json!({"fetch": {"service": "decode", "from": "stranger"}}))?).await?;
    let mut preamble = [0; 8];
    stream.read_exact(&mut preamble).await?;
    let mut body = vec![0; usize::from(u16::from_be_bytes([preamble[6], preamble[7]]))];
    stream.read_exact(&mut body).await?;
    let hello: Value = serde_json::from_slice(&body)?;
    ensure!(hello.get("session").is_some(), "{hello}");
    let accept = json!({"accept": {"name": "stranger", "frame_size": SIZE, "slots": 4, "transport": "tcp"}});
    let id = b"camera/1";
    let mut ask = [0; HEADER];
    ask[0] = ASK;
    ask[2..4].copy_from_slice(&u16::try_from(id.len())?.to_be_bytes());
    stream.write_all(&[&greeting(&accept)?, &ask[..], id].concat()).await?;
    Ok(stream)
}

/// Returns a message of the handshake.
fn greeting(body: &Value) -> Result<Vec<u8>> {
    let body = body.to_string();
    let length = u16::try_from(body.len()).context("a long message")?.to_be_bytes();
    Ok([b"MNET\0\x01", &length[..], body.as_bytes()].concat())
}
