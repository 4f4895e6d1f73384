//! Ten thousand strangers at the same time. The listener, in a process of its own, stays small,
//! logs little, and still serves a well-behaved sender.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use multinet_client::{Acknowledge, Delivery, Endpoint, Frame, PeerSet};
use tokio::net::{TcpSocket, TcpStream};

use crate::raw::{Raw, greeting, hello};
use crate::rig::{PATIENCE, connector, follow, listener, soon};

/// Environment variable that is set in the process that listens.
const LISTENS: &str = "MULTINET_TEST_LISTENS";

const STRANGERS: u64 = 10_000;
/// Longest time for a frame of the well-behaved sender meanwhile, on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);
/// Largest growth of the listener's memory in bytes: a tenth of the tasks, buffers and sessions
/// that all strangers would take if they were admitted.
const MOST_GROWTH: u64 = 100 << 20;

/// Process that only listens.
struct Process {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
    address: SocketAddr,
    log: tempfile::NamedTempFile,
}

impl Process {
    fn start() -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "hostile::flood::the_flooded_process_listens_until_its_input_ends",
                "--nocapture",
            ])
            .env(LISTENS, "yes")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, said, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), log };
        process.address = process.value_of("listening ").parse().unwrap();
        process
    }

    /// Returns the number of its connections.
    fn connections(&mut self) -> usize {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        self.value_of("connections ").parse().unwrap()
    }

    /// Waits for a line of its output that begins with `what`. Returns the rest of the line.
    fn value_of(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it has ended: {}", self.log());
            // The test harness may have written the beginning of the line.
            if let Some((_, rest)) = line.split_once(what) {
                return rest.trim().to_owned();
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    /// Returns its resident memory in bytes.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::at(self.address)
    }

    async fn comes_down_to(&mut self, connections: usize) {
        let start = Instant::now();
        while self.connections() != connections {
            assert!(start.elapsed() < Duration::from_secs(20), "{} connections", self.connections());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs only in the process that [`Process::start`] starts.
#[tokio::test]
async fn the_flooded_process_listens_until_its_input_ends() {
    if std::env::var_os(LISTENS).is_none() {
        return;
    }
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let listener = listener()
        .acknowledge(Acknowledge::OnDrop)
        // With this memory, the limit of connections is reached first.
        .frame_size(1000)
        // The time limit of a handshake is longer than a frame may take, so that no frame waits for
        // the end of a stranger.
        .patience(2 * LONGEST)
        .bind()
        .await
        .unwrap();
    println!("\nlistening {}", listener.local_addresses()[0]);
    let (ask, mut asked) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {
            let _ = ask.send(());
        }
    });
    loop {
        tokio::select! {
            frame = listener.recv() => drop(frame.unwrap()),
            question = asked.recv() => match question {
                Some(()) => println!("connections {}", listener.statistics().connections),
                None => return,
            }
        }
    }
}

/// Connects from one of many addresses.
async fn connect(process: SocketAddr, number: u64) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let [.., low] = (number % 250).to_be_bytes();
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 1, 1, low), 0)))?;
    socket.connect(process).await
}

/// Sends frames one after the other. Returns the longest time that one took.
async fn behaves(peers: &PeerSet, until: impl Future) -> Duration {
    let mut longest = Duration::ZERO;
    let sending = async {
        loop {
            let start = Instant::now();
            let sent = soon(peers.send(Frame::new("behaved"))).await.unwrap();
            soon(sent.acknowledged()).await.unwrap();
            longest = longest.max(start.elapsed());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        _ = until => {}
        () = sending => {}
    }
    longest
}

#[tokio::test]
async fn silent_strangers_beyond_the_limit_are_turned_away() {
    flood(|stream, _| async move { Some(stream) }, "turned away: too many are in their handshake").await;
}

#[tokio::test]
async fn strangers_are_admitted_up_to_the_connection_limit() {
    let greets = |stream, number: u64| async move {
        let mut raw = Raw(stream);
        raw.write(&greeting(1, hello(number.into(), 1).to_string().as_bytes())).await;
        // The stranger may be admitted or refused.
        let mut answer = [0; 40];
        let _ = tokio::io::AsyncReadExt::read(&mut raw.0, &mut answer).await;
        String::from_utf8_lossy(&answer).contains("accept").then_some(raw.0)
    };
    let held = flood(greets, "refused: 1024 connections, as many as may be").await;
    assert_eq!(held, 1023);
}

#[tokio::test]
async fn strangers_with_another_protocol_are_turned_away() {
    let talks = |stream, _| async move {
        let mut raw = Raw(stream);
        raw.write(b"GET / HTTP/1.1\r\nHost: infer\r\n\r\n").await;
        raw.rest().await;
        None
    };
    assert_eq!(flood(talks, "turned away: it does not begin with MNET").await, 0);
}

/// Floods the listener with strangers. Returns the number of connections that stayed open.
async fn flood<F: Future<Output = Option<TcpStream>>>(
    acts: impl Fn(TcpStream, u64) -> F,
    logged: &str,
) -> usize {
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    let mut process = Process::start();
    let (peers, endpoints) = follow(connector().delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![process.endpoint()]).unwrap();
    soon(peers.connected(1)).await;
    behaves(&peers, tokio::time::sleep(Duration::from_millis(300))).await;
    let before = process.memory();
    let address = process.address;
    let mut held = Vec::new();
    let strangers = async {
        let strangers = stream::iter(0..STRANGERS).map(|number| {
            let acts = &acts;
            async move {
                let stream = connect(address, number).await.ok()?;
                acts(stream, number).await
            }
        });
        held = strangers.buffer_unordered(64).filter_map(std::future::ready).collect().await;
    };
    let longest = behaves(&peers, strangers).await;
    let growth = process.memory().saturating_sub(before);
    eprintln!("{} held, {} KiB more, longest frame {longest:?}", held.len(), growth >> 10);
    assert!(growth < MOST_GROWTH, "{} MiB more", growth >> 20);
    assert!(longest < LONGEST, "{longest:?}");
    assert_eq!(peers.statistics().disconnects, 0);
    let count = held.len();
    held.clear();
    process.comes_down_to(1).await;
    // A new sender is admitted.
    let start = Instant::now();
    let (others, endpoints) = follow(connector());
    endpoints.unbounded_send(vec![process.endpoint()]).unwrap();
    soon(others.send(Frame::new("behaved"))).await.unwrap();
    while !process.log().contains("left_out=") {
        assert!(start.elapsed() < PATIENCE, "{}", process.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let log = process.log();
    assert!(log.contains(logged), "{log}");
    let lines = log.lines().count();
    assert!(lines < 3000, "{lines} lines");
    count
}
