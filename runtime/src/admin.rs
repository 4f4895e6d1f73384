//! The endpoints for operators: probes, metrics, state, log level.
//!
//! | path | answers |
//! |---|---|
//! | `/livez`, `/health` | 200 `ok` as long as the process runs, also while it drains |
//! | `/readyz`, `/ready` | 200 `ok`, or 503 with a line `name: reason` for everything that is waited for |
//! | `/metrics` | OpenMetrics text, or Prometheus' older text format, as `Accept` prefers |
//! | pages of the binary's own, such as `/debug/state` | JSON |
//! | `/logging` | GET: the log filter; PUT with a filter as body or `?level=`: sets it |
//!
//! The port belongs behind a NetworkPolicy, for nobody has to prove who they are here. Only clients on this host set the
//! log filter, unless [`Admin::allow_logging`] lets all do so; and only by PUT, which a browser sends to no other site
//! without asking it first.
//! The cost of a stranger is bounded (see [`connections`] and [`page`](mod@page)): slow clients, many clients, big requests and long pages.

mod connections;
mod page;

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use connections::Peer;
pub use page::{Page, page};
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::exposition;
use crate::{LogLevel, Readiness, TerminalSafe, UNLIMITED, ipv4_fallback};

/// Size limit of a request's body, in bytes. A log filter is short.
const MAX_BODY: usize = 4096;

/// Within this time after its head a request's body has to have come.
const BODY_TIME: Duration = Duration::from_secs(2);

/// What the admin endpoints show.
#[derive(Clone)]
pub struct Admin {
    /// For `/readyz`.
    pub readiness: Readiness,
    /// For `/metrics`.
    pub registry: Arc<Registry>,
    /// For `/logging`.
    pub log_level: LogLevel,
    /// Whether clients of other hosts may set it, too.
    pub allow_logging: bool,
    /// The binary's own: what answers at each of these paths.
    pub pages: Vec<(&'static str, Page)>,
}

impl Admin {
    /// Takes the address that the flag `--admin` names, and 0.0.0.0 for `[::]` on a host without IPv6.
    ///
    /// # Errors
    ///
    /// [`BindError`], if that is not possible.
    pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
        bind_by(TcpListener::bind, address).await
    }

    /// Serves the endpoints until `shutdown` is cancelled, and answers then what has been asked before. Failing to
    /// accept a connection is logged, and tried again.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        connections::serve(listener, self.router(), shutdown).await;
    }

    fn router(self) -> Router {
        let mut router = Router::new();
        let metrics_lock = Arc::new(Mutex::new(()));
        for (path, page) in &self.pages {
            let (page, one_at_a_time) = (Arc::clone(page), Arc::new(Mutex::new(())));
            router = router.route(path, get(move || page::respond(page, one_at_a_time)));
        }
        router
            .route("/livez", get(live))
            .route("/health", get(live))
            .route("/readyz", get(ready))
            .route("/ready", get(ready))
            .route("/metrics", get(move |admin, headers| metrics(admin, headers, metrics_lock)))
            .route("/logging", get(log_level).put(set_log_level))
            .with_state(self)
    }
}

/// Why nobody can be served at an address.
#[derive(Debug, thiserror::Error)]
#[error("--admin {address}: cannot listen; choose another address or port")]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// What the operating system says.
    #[source]
    pub source: io::Error,
}

/// Binds by `bind`, which stands for the host.
async fn bind_by(
    bind: impl AsyncFn(SocketAddr) -> io::Result<TcpListener>,
    address: SocketAddr,
) -> Result<TcpListener, BindError> {
    let bound = match bind(address).await {
        Err(source) => match ipv4_fallback(address, &source) {
            Some(ipv4) => bind(ipv4).await,
            None => Err(source),
        },
        bound => bound,
    };
    bound.map_err(|source| BindError { address, source })
}

async fn live() -> &'static str {
    "ok"
}

async fn ready(State(admin): State<Admin>) -> Response {
    let (pending, notes) = (admin.readiness.pending(), admin.readiness.notes());
    let (status, mut lines) = match (pending.is_empty(), notes.is_empty()) {
        (true, true) => return "ok".into_response(),
        (true, false) => (StatusCode::OK, "ok\n".to_owned()),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
    };
    let pending = pending
        .into_iter()
        .map(|(name, reason)| (name, reason.unwrap_or_else(|| "not ready yet".to_owned())));
    for (name, text) in pending.chain(notes) {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{}: {}", TerminalSafe(&name), TerminalSafe(&text));
    }
    (status, lines).into_response()
}

/// Made for one client at a time, and on no thread that answers probes.
async fn metrics(State(admin): State<Admin>, headers: HeaderMap, one_at_a_time: Arc<Mutex<()>>) -> Response {
    let permit = one_at_a_time.lock_owned().await;
    let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    let accept = accept.join(",");
    let encoded = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        exposition::encode(&admin.registry, &accept)
    });
    match encoded.await {
        Ok(Ok((media_type, text))) => ([(CONTENT_TYPE, media_type), (VARY, "accept")], text).into_response(),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "a metric cannot be encoded\n").into_response(),
    }
}

async fn log_level(State(admin): State<Admin>) -> String {
    format!("{}\n", admin.log_level.current())
}

#[derive(Deserialize)]
struct SetLogLevel {
    level: Option<String>,
}

async fn set_log_level(
    State(admin): State<Admin>,
    Extension(Peer(peer)): Extension<Peer>,
    Query(query): Query<SetLogLevel>,
    request: Request,
) -> Result<String, (StatusCode, String)> {
    if !admin.allow_logging && !peer.ip().to_canonical().is_loopback() {
        return Err((StatusCode::FORBIDDEN, FORBIDDEN.to_owned()));
    }
    let filter = match query.level {
        Some(level) => level,
        None => text(request.into_body()).await?,
    };
    let filter = filter.trim();
    // Before it takes effect, and whatever the filter is until then.
    let set = admin.log_level.set(filter, || {
        if tracing::enabled!(tracing::Level::WARN) {
            tracing::warn!(name: UNLIMITED, %peer, filter = %TerminalSafe(filter), "the log filter is set");
        } else {
            multinet_stderr::write_line(&format!("the log filter is set by {peer}: {filter}"));
        }
    });
    match set {
        Ok(()) => Ok(format!("{filter}\n")),
        Err(error) => Err((StatusCode::BAD_REQUEST, format!("{}\n", TerminalSafe(&error.to_string())))),
    }
}

const FORBIDDEN: &str = "the log filter is set from the program's own host, as by kubectl port-forward; \
                         --admin-allow-logging lets others set it, too\n";

/// The body of a request, if it is text, short, and comes soon.
async fn text(body: Body) -> Result<String, (StatusCode, String)> {
    let refused = |status, reason: &str| (status, format!("{reason}\n"));
    let body = timeout(BODY_TIME, to_bytes(body, MAX_BODY)).await;
    let body = body.map_err(|_| refused(StatusCode::REQUEST_TIMEOUT, "the body took too long"))?;
    let too_long = |_| refused(StatusCode::PAYLOAD_TOO_LARGE, "a log filter has at most 4096 octets");
    let not_text = |_| refused(StatusCode::BAD_REQUEST, "a log filter is text in UTF-8");
    String::from_utf8(body.map_err(too_long)?.into()).map_err(not_text)
}

#[cfg(test)]
mod tests;
