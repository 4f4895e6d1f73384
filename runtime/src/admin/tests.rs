use std::any::Any;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::*;

struct Server {
    address: SocketAddr,
    readiness: Readiness,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    _logger: Box<dyn Any>,
}

fn admin(state: Page) -> (Box<dyn Any>, Admin) {
    let mut registry = Registry::default();
    let counter = Counter::<u64>::default();
    registry.register("things", "Things", counter.clone());
    counter.inc_by(7);
    let (logger, log_level) = crate::log::unused_logger();
    let admin = Admin {
        readiness: Readiness::default(),
        registry: Arc::new(registry),
        log_level,
        allow_logging: false,
        pages: vec![("/debug/state", state), ("/debug/other", page(|| 1))],
    };
    (Box::new(logger), admin)
}

impl Server {
    async fn start() -> Self {
        Self::with_state(|| json!({"a": [2]})).await
    }

    async fn with_state<S: Serialize>(state: impl Fn() -> S + Send + Sync + 'static) -> Self {
        let (logger, admin) = admin(page(state));
        let readiness = admin.readiness.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(admin.serve(listener, shutdown.clone()));
        Self { address, readiness, shutdown, task, _logger: logger }
    }

    /// Sends a request without a body. Returns status and body of the answer.
    async fn ask(&self, request: &str) -> (u16, String) {
        let (head, body) = self.exchange(request, "").await;
        (status(&head), body)
    }

    async fn ask_with_body(&self, request: &str, body: &str) -> (u16, String) {
        let (head, body) = self.exchange(request, body).await;
        (status(&head), body)
    }

    async fn exchange(&self, request: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let text = format!("{request} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn text(text: &str) -> String {
    text.to_owned()
}

#[tokio::test]
async fn probes_answer_and_readiness_names_the_pending_parts() {
    let server = Server::start().await;
    let slices = server.readiness.register("slices");
    let _listener = server.readiness.register("listener");
    slices.waiting_for("the CRD\nforged: line");

    for path in ["/livez", "/health"] {
        assert_eq!(server.ask(&format!("GET {path}")).await, (200, text("ok")));
    }
    for path in ["/readyz", "/ready"] {
        let expected = "listener: not ready yet\nslices: the CRD\\nforged: line\n";
        assert_eq!(server.ask(&format!("GET {path}")).await, (503, text(expected)));
    }
}

#[tokio::test]
async fn a_draining_process_is_alive_but_not_ready() {
    let server = Server::start().await;
    assert_eq!(server.ask("GET /readyz").await, (200, text("ok")));
    server.readiness.start_draining();
    assert_eq!(server.ask("GET /readyz").await, (503, text("shutdown: draining\n")));
    assert_eq!(server.ask("GET /livez").await, (200, text("ok")));
}

#[tokio::test]
async fn metrics_are_open_metrics_unless_text_is_preferred() {
    let server = Server::start().await;
    let (head, body) = server.exchange("GET /metrics", "").await;
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    assert!(body.contains("things_total 7\n") && body.ends_with("# EOF\n"), "{body}");
    // The helper appends " HTTP/1.1" to the request, which becomes the value of the header x.
    let request = "GET /metrics HTTP/1.1\r\naccept: text/plain\r\naccept: text/html\r\nx:";
    let (head, body) = server.exchange(request, "").await;
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(body.ends_with("# TYPE things_total counter\nthings_total 7\n"), "{body}");
}

#[tokio::test]
async fn a_page_is_json_with_its_length() {
    let (head, body) = Server::start().await.exchange("GET /debug/state", "").await;
    assert!(head.contains("content-type: application/json"), "{head}");
    let expected = "{\n  \"a\": [\n    2\n  ]\n}\n";
    assert!(head.contains(&format!("content-length: {}", expected.len())), "{head}");
    assert_eq!(body, expected);
}

#[tokio::test]
async fn each_page_answers_at_its_path() {
    let server = Server::start().await;
    assert_eq!(server.ask("GET /debug/other").await, (200, text("1\n")));
    assert_eq!(server.ask("GET /debug/none").await.0, 404);
}

#[tokio::test]
async fn a_page_that_panics_fails_only_its_own_request() {
    let server = Server::with_state(|| -> u8 { panic!("for the test") }).await;
    assert_eq!(server.ask("GET /debug/state").await.0, 500);
    assert_eq!(server.ask("GET /debug/state").await.0, 500);
    assert_eq!(server.ask("GET /livez").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_rendered_for_one_client_at_a_time() {
    static NOW: AtomicUsize = AtomicUsize::new(0);
    let server = Server::with_state(|| {
        let others = NOW.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        NOW.fetch_sub(1, Ordering::SeqCst);
        others
    })
    .await;
    let answers = futures::future::join_all((0..4).map(|_| server.ask("GET /debug/state"))).await;
    assert_eq!(answers, vec![(200, text("0\n")); 4]);
}

/// Value that serializes to 12 MiB, and counts the KiB written so far.
struct Long(Arc<AtomicUsize>);

impl Long {
    const PIECES: usize = 12_288;
}

impl Serialize for Long {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.store(0, Ordering::SeqCst);
        serializer.collect_seq((0..Self::PIECES).map(|_| {
            self.0.fetch_add(1, Ordering::SeqCst);
            "x".repeat(1016)
        }))
    }
}

/// Connects a client for which the kernel buffers little, and asks for the long page.
async fn ask_for_long_page(server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(256 << 10).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    stream.write_all(b"GET /debug/state HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_page_is_rendered_at_the_pace_of_its_client() {
    let written = Arc::new(AtomicUsize::new(0));
    let long = Arc::clone(&written);
    let server = Server::with_state(move || Long(Arc::clone(&long))).await;
    let mut stream = ask_for_long_page(&server).await;
    let mut answer = vec![0; 1024];
    stream.read_exact(&mut answer).await.unwrap();
    // The length has been counted by now, and the page is being written. The kernel buffers less
    // than 5 MiB for a client that does not read (net.ipv4.tcp_wmem, and 512 KiB at the client).
    let mut before = usize::MAX;
    while before != written.load(Ordering::SeqCst) {
        before = written.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(before < Long::PIECES / 2, "{before} KiB for a client that reads nothing");
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"xxx\"\n]\n"));
    let head = String::from_utf8_lossy(&answer[..1024]).into_owned();
    let length: usize =
        head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    assert_eq!(answer.len(), head.find("\r\n\r\n").unwrap() + 4 + length);

    // The page of a client that disconnects is abandoned, and the next client gets its own.
    let mut gone = ask_for_long_page(&server).await;
    gone.read_exact(&mut [0; 1024]).await.unwrap();
    drop(gone);
    assert_eq!(server.ask("GET /debug/state").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_delays_others_only_for_the_send_timeout() {
    let server = Server::with_state(|| Long(Arc::default())).await;
    let mut stuck = ask_for_long_page(&server).await;
    stuck.read_exact(&mut [0; 1024]).await.unwrap();
    // Less than the time limit of a connection.
    let answer = timeout(Duration::from_secs(40), server.ask("GET /debug/state")).await;
    assert_eq!(answer.unwrap().0, 200);
    drop(stuck);
}

#[tokio::test]
async fn the_log_filter_is_shown_and_set_and_bad_ones_are_refused() {
    let server = Server::start().await;
    assert_eq!(server.ask("GET /logging").await, (200, text("info\n")));
    assert_eq!(server.ask("PUT /logging?level=info,dns=debug").await, (200, text("info,dns=debug\n")));
    assert_eq!(server.ask("GET /logging").await, (200, text("info,dns=debug\n")));
    assert_eq!(server.ask_with_body("PUT /logging", "warn\n").await, (200, text("warn\n")));

    for (request, body) in [("PUT /logging?level=loud", ""), ("PUT /logging", "a\nb=x"), ("PUT /logging", "")]
    {
        let (status, line) = server.ask_with_body(request, body).await;
        assert_eq!(status, 400, "{request}: {line}");
        assert!(line.starts_with("bad log filter") && line.matches('\n').count() == 1, "{line}");
    }
    assert_eq!(server.ask("GET /logging").await, (200, text("warn\n")));
}

#[tokio::test]
async fn clients_on_other_hosts_set_the_log_filter_only_if_allowed() {
    for (peer, allow_logging, status) in [
        ("192.0.2.1:9", false, 403),
        ("192.0.2.1:9", true, 200),
        ("[::ffff:192.0.2.1]:9", false, 403),
        ("[2001:db8::1]:9", false, 403),
        ("[::1]:9", false, 200),
        ("[::ffff:127.0.0.2]:9", false, 200),
    ] {
        let (_logger, admin) = admin(page(|| 1));
        let log_level = admin.log_level.clone();
        let router = Admin { allow_logging, ..admin }.router().layer(Extension(Peer(peer.parse().unwrap())));
        let request = Request::put("/logging?level=debug").body(Body::empty()).unwrap();
        let response = TowerToHyperService::new(router).call(request).await.unwrap();
        assert_eq!(response.status(), status, "{peer}");
        assert_eq!(log_level.current() == "debug", status == 200, "{peer}");
        let body = to_bytes(response.into_body(), 1000).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&body).contains("--admin-allow-logging"), status == 403, "{peer}");
    }
}

#[tokio::test]
async fn a_change_of_the_log_filter_is_logged_whatever_the_filter() {
    for filter in ["debug", "off"] {
        let (logs, _guard) = multinet_testing::logs::Logs::capture(tracing::Level::WARN);
        let server = Server::start().await;
        server.ask(&format!("PUT /logging?level={filter}")).await;
        let lines = logs.with("the log filter is set");
        assert!(lines.len() == 1 && lines[0].contains("peer=127.0.0.1:"), "{lines:?}");
        assert!(lines[0].contains(&format!("filter={filter}")), "{lines:?}");
    }
}

#[tokio::test]
async fn unknown_paths_methods_and_long_bodies_are_refused() {
    let server = Server::start().await;
    let (status, body) = server.ask("GET /").await;
    assert_eq!(status, 404);
    assert!(body.contains("/readyz /metrics"), "{body:?}");
    for method in ["DELETE", "POST", "PATCH", "OPTIONS"] {
        assert_eq!(server.ask(&format!("{method} /logging?level=debug")).await.0, 405, "{method}");
    }
    assert_eq!(server.ask("GET /logging").await, (200, text("info\n")));
    assert_eq!(server.ask_with_body("PUT /logging", &"x".repeat(MAX_BODY + 1)).await.0, 413);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_finish_its_request_is_dropped() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: te").await.unwrap();
    let start = tokio::time::Instant::now();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    // Measured on the paused clock, which moves only while all tasks wait.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_body_does_not_arrive_times_out() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"PUT /logging HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\ninfo").await.unwrap();
    let start = tokio::time::Instant::now();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(status(&answer), 408, "{answer}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// The connections are held by incomplete requests; the first one, by no request at all.
#[tokio::test]
async fn at_the_limit_a_new_connection_evicts_the_idlest_one() {
    let server = Server::start().await;
    let mut held = Vec::new();
    for number in 0..crate::limits::admin::MAX_CONNECTIONS + 50 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        if number > 0 {
            stream
                .write_all(b"PUT /logging HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\n")
                .await
                .unwrap();
        }
        held.push(stream);
        if number % 50 == 0 {
            assert_eq!(server.ask("GET /livez").await, (200, text("ok")));
        }
    }
    assert_eq!(held[0].read(&mut [0]).await.unwrap_or(0), 0);
    // The newest one is still open.
    held.last_mut().unwrap().write_all(b"dns=loud!").await.unwrap();
    let mut answer = String::new();
    held.last_mut().unwrap().read_to_string(&mut answer).await.unwrap();
    // 408 where the machine is too busy to send the body within its time.
    assert!([400, 408].contains(&status(&answer)), "{answer}");
}

#[tokio::test]
async fn shutdown_ends_the_server_and_closes_the_port() {
    let server = Server::start().await;
    assert_eq!(server.ask("GET /livez").await.0, 200);
    server.shutdown.cancel();
    server.task.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn without_ipv6_the_wildcard_falls_back_to_ipv4() {
    let without_ipv6 = async |address: SocketAddr| {
        if address.is_ipv6() {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        TcpListener::bind(address).await
    };
    let listener = bind_by(without_ipv6, "[::]:0".parse().unwrap()).await.unwrap();
    assert!(listener.local_addr().unwrap().ip() == std::net::Ipv4Addr::UNSPECIFIED);
    let error = bind_by(without_ipv6, "[::1]:0".parse().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("--admin [::1]:0"), "{error}");
}
