//! Mutual TLS between peers. Refusals name their reason on both sides, and good certificates work.
//! Each reason for a failed handshake is tested beside the code, in `src/tls/tests`.

mod authority;

use std::time::{Duration, Instant, SystemTime};

use futures::channel::mpsc::UnboundedSender;
use multinet_client::{
    Acknowledge, Delivery, Endpoint, Frame, Listener, Offers, PeerSet, Tls, Transport, TransportKind,
};
use rcgen::date_time_ymd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use self::authority::{Authority, Folder, Mounted as _};
use crate::log::{Logs, WaitFor as _, capture};
use crate::raw::{HEADER, Receiver, accept, data, greeting, hello};
use crate::rig::{at_most, connector, endpoint, follow, listener, mixed_connector, rdma, soon};

/// Service that `follow` connects to.
const SERVICE: &str = "infer.vision.svc.multinet";
const INFER: &str = "spiffe://cluster.local/ns/vision/sa/infer";
const DETECT: &str = "spiffe://cluster.local/ns/vision/sa/detect";

/// Certificates of a receiver and of a sender, from one authority.
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

    /// Connects both, with or without TLS.
    async fn meet_with(&self, tls: bool, delivery: Delivery) -> Met {
        let [infer, detect] = [&self.infer, &self.detect].map(|folder| tls.then(|| folder.tls()));
        Met::new(infer, detect, delivery).await
    }
}

/// Returns the transport to request: with TLS, both sides have to name RDMA.
fn asked_for() -> Transport {
    if rdma().is_some() { Transport::Rdma } else { Transport::Auto }
}

/// Listener, and a connector that tries to connect to it.
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

    /// Checks that the connector's error and both log lines contain these texts.
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
        log.wait_for("WARN", connector).await;
        log.wait_for("WARN", listener).await;
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
async fn frames_arrive_unchanged_with_tls_and_without() {
    let pair = Pair::new();
    let payload: Vec<u8> = (0..1 << 20).map(|at: u32| at.wrapping_mul(2_654_435_761) as u8).collect();
    // The sizes range from empty to the largest possible.
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

/// With TLS, only the connection's task writes, which may not have begun or may be within a frame
/// when the last handle is dropped. Without TLS, small frames in sequence, and bytes that the
/// kernel has not accepted, are not written yet.
#[tokio::test]
async fn frames_sent_before_the_last_handle_is_dropped_arrive() {
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

/// RDMA does not encrypt. With TLS, it is used only if both sides name it; a side that names it
/// gets the reason if it is not used.
#[tokio::test]
async fn rdma_without_encryption_is_used_only_by_name() {
    let (log, _guard) = capture();
    let pair = Pair::new();
    let receiver = listener().tls(pair.infer.tls()).bind().await.unwrap();
    let (peers, endpoints) = follow(mixed_connector().tls(pair.detect.tls()));
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", None)]).unwrap();
    soon(peers.connected(1)).await;
    let status = peers.status().remove(0);
    let reason = status.instead_of_rdma.unwrap_or_default();
    assert_eq!(status.transport, Some(TransportKind::Tcp));
    assert!(reason.starts_with("TLS is set, but RDMA does not encrypt"), "{reason}");
    let (_peers, endpoints) = follow(connector().transport(Transport::Rdma).tls(pair.detect.tls()));
    endpoints.unbounded_send(vec![endpoint(&receiver, "infer-0", None)]).unwrap();
    let address = receiver.local_addresses()[0];
    match rdma() {
        Some(_) => log.wait_for("WARN", "RDMA cannot be used: TLS is set").await,
        None => log.wait_for("WARN", &format!("cannot connect: {address} cannot be reached by RDMA: ")).await,
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_by_both_sides() {
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
async fn tls_on_one_side_only_is_refused_with_advice() {
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

/// All receivers of a sender know its session, and some have certificates that other listeners
/// accept. Frames that such a client sends with the session do not count as the sender's.
#[tokio::test]
async fn a_known_session_does_not_make_another_client_its_sender() {
    let pair = Pair::new();
    let listener = listener().tls(pair.infer.tls()).acknowledge(Acknowledge::OnDrop).bind().await.unwrap();
    // The client by hand uses TCP.
    let sender = connector().tls(pair.detect.tls()).transport(Transport::Tcp);
    let (peers, endpoints) = follow(sender.delivery(Delivery::AtLeastOnce));
    endpoints.unbounded_send(vec![endpoint(&listener, "infer-0", None)]).unwrap();
    let met = Met { listener, peers, endpoints };
    soon(met.peers.send("first")).await.unwrap();
    let session = soon(met.listener.recv()).await.unwrap().id().session;
    let other = pair.authority.issue(&[SERVICE, INFER]);
    let mut stream = authority::connect(&pair.authority, met.listener.local_addresses()[0], &other).await;
    // This marks all frames before the last possible one as done.
    let last = u64::MAX - 1;
    let mut words = greeting(1, hello(session, last).to_string().as_bytes());
    words.extend(data(last, last, b"not his"));
    soon(stream.write_all(&words)).await.unwrap();
    assert_eq!(soon(met.listener.recv()).await.unwrap().bytes(), b"not his");
    drop(stream);
    met.works().await;
}

/// A receiver would take any following bytes for the rest of the frame.
#[tokio::test]
async fn nothing_follows_a_frame_that_was_cut_off() {
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
    // This is more than the kernel buffers without a reader.
    for _ in 0..COUNT {
        soon(peers.send(Frame::new(vec![7; SIZE]))).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The closing message fits only once the receiver reads again.
    let closing = tokio::spawn(peers.close(Duration::from_millis(1)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut came = Vec::new();
    let _ = soon(stream.read_to_end(&mut came)).await;
    soon(closing).await.unwrap();
    let mut frames = came.chunks(HEADER + SIZE);
    assert!(frames.len() > 1 && came.len() < COUNT as usize * SIZE, "{} bytes", came.len());
    assert!(frames.all(|frame| frame.iter().skip(HEADER).all(|&byte| byte == 7)));
}

/// The listener does not compute a signature for it.
#[tokio::test]
async fn an_address_that_is_not_admitted_gets_an_alert_without_a_handshake() {
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
    log.wait_for("WARN", "it admits none from our address, or not yet").await;
    let error = peers.status()[0].last_error.clone().unwrap();
    assert!(!error.is_lasting(), "it may be admitted later: {error}");
}

#[tokio::test]
async fn renewed_certificates_are_used_for_new_connections() {
    let (log, _guard) = capture();
    let pair = Pair::new();
    let expired = pair.authority.issue_as(&[SERVICE], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    pair.infer.put(&expired, &pair.authority.pem());
    let met = pair.meet().await;
    met.is_refused(&log, "expired", "has expired").await;
    // Both sides keep running, and the next attempt uses the renewed files.
    pair.infer.put(&pair.authority.issue(&[SERVICE]), &pair.authority.pem());
    met.works().await;
    // Both sides get a new authority. The open connection stays.
    let other = Authority::named("another");
    pair.infer.put(&other.issue(&[SERVICE]), &other.pem());
    pair.detect.put(&other.issue(&[DETECT]), &other.pem());
    tokio::time::sleep(Duration::from_millis(1100)).await;
    met.works().await;
    assert_eq!(met.peers.statistics().disconnects, 0);
    // A sender with the new certificate connects. One with the old authority does not trust the
    // listener.
    let (new, endpoints) = follow(connector().tls(pair.detect.tls()));
    endpoints.unbounded_send(vec![endpoint(&met.listener, "infer-0", None)]).unwrap();
    soon(new.connected(1)).await;
    let late = Folder::of(&pair.authority.issue(&[DETECT]), &pair.authority.pem());
    let (late, endpoints) = follow(connector().tls(late.tls()));
    endpoints.unbounded_send(vec![endpoint(&met.listener, "infer-0", None)]).unwrap();
    log.wait_for("WARN", "cannot connect").await;
    log.wait_for("WARN", "(for infer.vision.svc.multinet) is from no authority").await;
    assert_eq!(late.statistics().connected, 0);
}

#[tokio::test]
async fn only_peers_that_are_named_fetch_with_tls() {
    let Pair { infer, detect, .. } = Pair::new();
    let offers = |tls: Tls| {
        let address = rdma().unwrap_or_else(|| std::net::Ipv4Addr::LOCALHOST.into());
        Offers::builder().address(address).port(0).transport(asked_for()).tls(tls).bind()
    };
    let fetcher = |tls: Option<Tls>| {
        let fetcher = connector().transport(asked_for());
        match tls {
            Some(tls) => fetcher.tls(tls),
            None => fetcher,
        }
        .build()
        .unwrap()
    };
    for (expected, is_named) in [(DETECT, true), (INFER, false)] {
        let offers = soon(offers(infer.tls().expect(expected).unwrap())).await.unwrap();
        let offer = offers.offer("a".parse().unwrap(), "a").await.unwrap();
        let endpoints = || vec![Endpoint::at(offers.local_addresses()[0])];
        let plain = soon(fetcher(None).fetch_from(SERVICE, endpoints(), &offer.reference())).await;
        assert!(plain.unwrap_err().to_string().contains("it speaks TLS"));
        let fetched = fetcher(Some(detect.tls()));
        let fetched = soon(fetched.fetch_from(SERVICE, endpoints(), &offer.reference())).await;
        match fetched {
            Ok(frame) => {
                assert!(is_named);
                assert_eq!(frame.sender().certificate_names(), [INFER]);
                frame.acknowledge();
                soon(offer.taken()).await.unwrap();
            }
            Err(error) => {
                assert!(
                    !is_named && error.to_string().contains("for another name than the peer expects"),
                    "{error}"
                );
            }
        }
    }
}
