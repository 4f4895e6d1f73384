//! Mutual TLS between peers: a refusal names its reason on both sides, and what is right works as it does without. Each reason for
//! which a handshake fails is tested beside the code, in `src/tls/tests`.

mod authority;

use std::time::{Duration, Instant, SystemTime};

use futures::channel::mpsc::UnboundedSender;
use multinet_client::{
    Acknowledge, Delivery, Endpoint, Frame, Listener, PeerSet, Tls, Transport, TransportKind,
};
use rcgen::date_time_ymd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use self::authority::{Authority, Folder, Mounted as _};
use crate::log::{Logs, Says as _, capture};
use crate::raw::{HEADER, Receiver, accept, data, greeting, hello};
use crate::rig::{at_most, connector, endpoint, follow, listener, mixed_connector, rdma, soon};

/// As `follow` asks for it.
const SERVICE: &str = "infer.vision.svc.multinet";
const INFER: &str = "spiffe://cluster.local/ns/vision/sa/infer";
const DETECT: &str = "spiffe://cluster.local/ns/vision/sa/detect";

/// A receiver and a sender of one authority.
struct Pair {
    authority: Authority,
    infer: Folder,
    detect: Folder,
}

impl Pair {
    fn new() -> Self {
        let authority = Authority::named("authority");
        let infer = Folder::of(&authority.issue(&[SERVICE, INFER]), &authority.pem());
        let detect = Folder::of(&authority.issue(&[DETECT]), &authority.pem());
        Self { authority, infer, detect }
    }

    async fn meet(&self) -> Met {
        self.meet_with(true, Delivery::AtMostOnce).await
    }

    /// Lets them meet with TLS or without.
    async fn meet_with(&self, tls: bool, delivery: Delivery) -> Met {
        let [infer, detect] = [&self.infer, &self.detect].map(|folder| tls.then(|| folder.tls()));
        Met::new(infer, detect, delivery).await
    }
}

/// With TLS, RDMA has to be asked for by name on both sides.
fn asked_for() -> Transport {
    if rdma().is_some() { Transport::Rdma } else { Transport::Auto }
}

/// A listener, and somebody who tries to connect.
struct Met {
    listener: Listener,
    peers: PeerSet,
    endpoints: UnboundedSender<Vec<Endpoint>>,
}

impl Met {
    async fn new(infer: Option<Tls>, detect: Option<Tls>, delivery: Delivery) -> Self {
        let mut listener = listener().acknowledge(Acknowledge::OnDrop).transport(asked_for());
        if let Some(tls) = infer {
            listener = listener.tls(tls);
        }
        let listener = listener.bind().await.unwrap();
        let mut connector = connector().delivery(delivery);
        if let Some(tls) = detect {
            connector = connector.tls(tls);
        }
        let (peers, endpoints) = follow(connector);
        endpoints.unbounded_send(vec![endpoint(&listener, "infer-0", None)]).unwrap();
        Self { listener, peers, endpoints }
    }

    /// What the connector says, and the listener's log; each has to contain its text.
    async fn is_refused(&self, log: &Logs, connector: &str, listener: &str) {
        let start = Instant::now();
        let error = loop {
            let error =
                self.peers.status().first().and_then(|peer| Some(peer.last_error.as_ref()?.to_string()));
            match error {
                Some(error) if error.contains(connector) => break error,
                error => assert!(
                    start.elapsed() < at_most(Duration::from_secs(60)),
                    "{error:?} is not {connector}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let address = self.listener.local_addresses()[0].to_string();
        assert!(error.starts_with(&address) && !error.contains('\n'), "{error}");
        log.says("WARN", connector).await;
        log.says("WARN", listener).await;
        let statistics = self.listener.statistics();
        assert_eq!((self.peers.statistics().connected, statistics.connections), (0, 0));
        assert!(statistics.refused > 0);
    }

    async fn works(&self) {
        let sent = soon(self.peers.send(Frame::new("frame"))).await.unwrap();
        assert_eq!(soon(self.listener.recv()).await.unwrap().bytes(), b"frame");
        soon(sent.acknowledged()).await.unwrap();
    }
}

#[tokio::test]
async fn frames_arrive_as_they_were_sent_with_tls_or_without() {
    let pair = Pair::new();
    let payload: Vec<u8> = (0..1 << 20).map(|at: u32| at.wrapping_mul(2_654_435_761) as u8).collect();
    // From empty to as large as can be.
    let content = |number: usize| payload[..(payload.len() >> (number % 21)) - number % 2].to_vec();
    let now = SystemTime::now();
    for (tls, delivery) in [
        (false, Delivery::AtMostOnce),
        (false, Delivery::AtLeastOnce),
        (true, Delivery::AtMostOnce),
        (true, Delivery::AtLeastOnce),
    ] {
        let met = pair.meet_with(tls, delivery).await;
        let frames: Vec<Frame> = (0..40)
            .map(|number| {
                let mut first = content(number);
                let second = first.split_off(first.len() / 2);
                let frame = Frame::new(first).and(second);
                frame.key(format!("{number}")).metadata(vec![7; number * 100]).timestamp(now)
            })
            .collect();
        let peers = met.peers.clone();
        let sending = tokio::spawn(async move {
            let mut ids = Vec::new();
            for frame in frames {
                ids.push(peers.send(frame).await.unwrap().id());
            }
            peers.flush().await.unwrap();
            ids
        });
        let mut ids = Vec::new();
        for number in 0..40 {
            let frame = soon(met.listener.recv()).await.unwrap();
            assert_eq!((frame.key(), frame.is_repeat()), (number.to_string().as_bytes(), false));
            assert_eq!(frame.sender().certificate_names(), if tls { &[DETECT][..] } else { &[] });
            assert_eq!(frame.metadata().len(), number * 100);
            assert!(now.duration_since(frame.timestamp().unwrap()).unwrap() < Duration::from_micros(1));
            assert!(frame.bytes() == content(number), "frame {number} is not as it was sent");
            ids.push(frame.id());
        }
        assert_eq!(soon(sending).await.unwrap(), ids);
        assert_eq!(soon(met.peers.close(Duration::from_secs(5))).await.unfinished, 0);
        soon(met.listener.close()).await;
    }
}

/// With TLS only the connection's task writes: it has not begun when the last handle goes, or is within a frame. Without, some is
/// not written yet: small frames that come one after the other, and more than the kernel takes.
#[tokio::test]
async fn what_was_sent_before_the_last_handle_went_arrives() {
    let pair = Pair::new();
    for (tls, turns, length) in [
        (false, 0, 10),
        (false, 0, 256 << 10),
        (true, 0, 100 << 10),
        (true, 1, 100 << 10),
        (true, 2, 100 << 10),
        (true, 20, 100 << 10),
    ] {
        let Met { listener, peers, endpoints } = pair.meet_with(tls, Delivery::AtMostOnce).await;
        if tls {
            soon(peers.connected(1)).await;
        }
        for number in 0..8 {
            soon(peers.send(Frame::new(vec![number; length]))).await.unwrap();
        }
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        drop(peers);
        for number in 0..8 {
            assert_eq!(soon(listener.recv()).await.unwrap().bytes(), vec![number; length]);
        }
        drop(endpoints);
    }
}

/// RDMA does not encrypt: who sets TLS has none unless both sides ask for it by name, and who has asked is told.
#[tokio::test]
async fn tls_is_not_given_up_unasked() {
    let (log, _guard) = capture();
    let pair = Pair::new();
    let receiver = listener().tls(pair.infer.tls()).bind().await.unwrap();
    let (peers, endpoints) = follow(mixed_connector().tls(pair.detect.tls()));
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", None)]).unwrap();
    soon(peers.connected(1)).await;
    let status = peers.status().remove(0);
    let reason = status.instead_of_rdma.unwrap_or_default();
    assert_eq!(status.transport, Some(TransportKind::Tcp));
    assert!(reason.starts_with("TLS is set, and what goes by RDMA is not encrypted"), "{reason}");
    let (_peers, endpoints) = follow(connector().transport(Transport::Rdma).tls(pair.detect.tls()));
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", None)]).unwrap();
    let address = receiver.local_addresses()[0];
    match rdma() {
        Some(_) => log.says("WARN", "RDMA cannot be used: TLS is set").await,
        None => log.says("WARN", &format!("cannot connect: {address} cannot be reached by RDMA: ")).await,
    }
}

#[tokio::test]
async fn another_authority() {
    let (log, _guard) = capture();
    let pair = Pair::new();
    let other = Authority::named("another");
    let stranger = Folder::of(&other.issue(&[DETECT]), &pair.authority.pem());
    let met = Met::new(Some(pair.infer.tls()), Some(stranger.tls()), Delivery::AtMostOnce).await;
    met.is_refused(
        &log,
        "the peer refuses: our certificate is from no authority that it trusts",
        "turned away: the peer's certificate (for spiffe://cluster.local/ns/vision/sa/detect) is from no authority in",
    )
    .await;
    let stranger = Folder::of(&other.issue(&[SERVICE]), &pair.authority.pem());
    let met = Met::new(Some(stranger.tls()), Some(pair.detect.tls()), Delivery::AtMostOnce).await;
    met.is_refused(
        &log,
        "the peer's certificate (for infer.vision.svc.multinet) is from no authority in",
        "turned away: the peer refuses: our certificate is from no authority",
    )
    .await;
}

#[tokio::test]
async fn one_side_with_tls_and_one_without() {
    let (log, _guard) = capture();
    let pair = Pair::new();
    let met = Met::new(Some(pair.infer.tls()), None, Delivery::AtMostOnce).await;
    met.is_refused(
        &log,
        "it speaks TLS: give this side certificates too",
        "turned away: the peer does not speak TLS: give it certificates, or listen without",
    )
    .await;
    let met = Met::new(None, Some(pair.detect.tls()), Delivery::AtMostOnce).await;
    met.is_refused(
        &log,
        "the peer does not speak TLS: give it certificates, or connect without",
        "refused: it speaks TLS: give this side certificates too",
    )
    .await;
}

/// All receivers of a sender know its session, and some have certificates that others let in. What they say by it is not the sender's.
#[tokio::test]
async fn who_knows_a_session_is_not_its_sender() {
    let pair = Pair::new();
    let listener = listener().tls(pair.infer.tls()).acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
    // Who is one by hand comes by TCP.
    let sender = connector().tls(pair.detect.tls()).transport(Transport::Tcp);
    let (peers, endpoints) = follow(sender.delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&listener, "infer-0", None)]).unwrap();
    let met = Met { listener, peers, endpoints };
    soon(met.peers.send("first")).await.unwrap();
    let session = soon(met.listener.recv()).await.unwrap().id().session;
    let other = pair.authority.issue(&[SERVICE, INFER]);
    let mut stream = authority::connect(&pair.authority, met.listener.local_addresses()[0], &other).await;
    // All before the last of all frames is done with.
    let last = u64::MAX - 1;
    let mut words = greeting(1, hello(session, last).to_string().as_bytes());
    words.extend(data(last, last, b"not his"));
    soon(stream.write_all(&words)).await.unwrap();
    assert_eq!(soon(met.listener.recv()).await.unwrap().bytes(), b"not his");
    drop(stream);
    met.works().await;
}

/// Nothing follows the part of a frame that could be written: a receiver would take it for the rest.
#[tokio::test]
async fn a_frame_that_is_cut_off_stays_cut_off() {
    const SIZE: usize = 100 << 10;
    const COUNT: u32 = 32;
    let pair = Pair::new();
    let receiver = Receiver::new().await;
    let (peers, endpoints) = follow(mixed_connector().tls(pair.detect.tls()));
    endpoints.unbounded_send(vec![receiver.endpoint("infer-0")]).unwrap();
    let issued = pair.authority.issue(&[SERVICE]);
    let mut stream = authority::accept(&issued, receiver.next().await.0, &pair.authority).await;
    let mut preamble = [0; 8];
    soon(stream.read_exact(&mut preamble)).await.unwrap();
    let mut hello = vec![0; usize::from(u16::from_be_bytes([preamble[6], preamble[7]]))];
    soon(stream.read_exact(&mut hello)).await.unwrap();
    stream.write_all(&greeting(1, accept(COUNT).to_string().as_bytes())).await.unwrap();
    stream.flush().await.unwrap();
    // More than the kernel takes without a reader.
    for _ in 0..COUNT {
        soon(peers.send(Frame::new(vec![7; SIZE]))).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The goodbye finds room only when the receiver reads again.
    let closing = tokio::spawn(peers.close(Duration::from_millis(1)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut came = Vec::new();
    let _ = soon(stream.read_to_end(&mut came)).await;
    soon(closing).await.unwrap();
    let mut frames = came.chunks(HEADER + SIZE);
    assert!(frames.len() > 1 && came.len() < COUNT as usize * SIZE, "{} bytes", came.len());
    assert!(frames.all(|frame| frame.iter().skip(HEADER).all(|&byte| byte == 7)));
}

/// No signature is made for it.
#[tokio::test]
async fn an_address_that_is_not_admitted_hears_so_without_a_handshake() {
    let (log, _guard) = capture();
    let pair = Pair::new();
    let receiver = listener().tls(pair.infer.tls()).admit(|_| Err("not on the list".to_owned()));
    let receiver = receiver.bind().await.unwrap();
    let mut stranger = soon(TcpStream::connect(receiver.local_addresses()[0])).await.unwrap();
    let mut came = Vec::new();
    soon(stranger.read_to_end(&mut came)).await.unwrap();
    assert_eq!(came, [21, 3, 3, 0, 2, 2, 80], "a fatal alert: internal_error");
    let (peers, endpoints) = follow(connector().transport(asked_for()).tls(pair.detect.tls()));
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", None)]).unwrap();
    log.says("WARN", "it admits none from our address, or not yet").await;
    let error = peers.status()[0].last_error.clone().unwrap();
    assert!(!error.is_lasting(), "it may be admitted later: {error}");
}

#[tokio::test]
async fn certificates_are_renewed_on_disk() {
    let (log, _guard) = capture();
    let pair = Pair::new();
    let expired = pair.authority.issue_as(&[SERVICE], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    pair.infer.put(&expired, &pair.authority.pem());
    let met = pair.meet().await;
    met.is_refused(&log, "expired", "has expired").await;
    // Both sides go on, and the next attempt takes what is there by then.
    pair.infer.put(&pair.authority.issue(&[SERVICE]), &pair.authority.pem());
    met.works().await;
    // A new authority on both sides; the connection that there is stays.
    let other = Authority::named("another");
    pair.infer.put(&other.issue(&[SERVICE]), &other.pem());
    pair.detect.put(&other.issue(&[DETECT]), &other.pem());
    tokio::time::sleep(Duration::from_millis(1100)).await;
    met.works().await;
    assert_eq!(met.peers.statistics().disconnects, 0);
    // With the new one it works; who comes with the old one does not find whom it trusts.
    let (new, endpoints) = follow(connector().tls(pair.detect.tls()));
    endpoints.unbounded_send(vec![endpoint(&met.listener, "infer-0", None)]).unwrap();
    soon(new.connected(1)).await;
    let late = Folder::of(&pair.authority.issue(&[DETECT]), &pair.authority.pem());
    let (late, endpoints) = follow(connector().tls(late.tls()));
    endpoints.unbounded_send(vec![endpoint(&met.listener, "infer-0", None)]).unwrap();
    log.says("WARN", "cannot connect").await;
    log.says("WARN", "(for infer.vision.svc.multinet) is from no authority").await;
    assert_eq!(late.statistics().connected, 0);
}
