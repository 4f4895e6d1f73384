//! HTTP endpoints for operators: probes, metrics, state, log filter.
//!
//! | path | answers |
//! |---|---|
//! | `/livez`, `/health` | 200 `ok` as long as the process runs, also while it drains |
//! | `/readyz`, `/ready` | 200 `ok`, or 503 with a line `name: reason` per part that is not ready |
//! | `/metrics` | OpenMetrics text, or Prometheus' older text format, as `Accept` prefers |
//! | [`Admin::pages`], such as `/debug/state` | JSON |
//! | `/logging` | GET: the log filter; PUT with a filter as body or `?level=`: sets it |
//!
//! Clients are not authenticated, so the port belongs behind a NetworkPolicy. Only clients on this
//! host may set the log filter, unless [`Admin::allow_logging`] allows all clients. Setting it
//! takes PUT, because a browser sends PUT to another site only after a preflight request.
//!
//! The cost of hostile clients is bounded: [`connections`] limits slow and many clients and large
//! requests, [`page`](mod@page) limits long pages.

mod connections;
mod page;

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
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
use crate::limits::admin::{BODY_TIME, MAX_BODY};
use crate::{LogLevel, Readiness, TerminalSafe, UNLIMITED, ipv4_fallback};

/// The admin endpoints and the state that they show.
#[derive(Clone)]
pub struct Admin {
    /// State that `/readyz` shows.
    pub readiness: Readiness,
    /// Metrics that `/metrics` shows.
    pub registry: Arc<Registry>,
    /// Log filter that `/logging` shows and sets.
    pub log_level: LogLevel,
    /// Whether clients on other hosts may set the log filter, too.
    pub allow_logging: bool,
    /// Pages that the binary adds, by path.
    pub pages: Vec<(&'static str, Page)>,
}

/// Paths of every program, as a client that asks for another one is told.
const PATHS: [&str; 4] = ["/livez", "/readyz", "/metrics", "/logging"];

impl Admin {
    /// Binds the address of the flag `--admin`; 0.0.0.0 instead of `[::]` on a host without IPv6.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound.
    pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
        bind_by(TcpListener::bind, address).await
    }

    /// Serves the endpoints until `shutdown` is cancelled, then finishes the requests under way. A
    /// failure to accept a connection is logged and retried.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        connections::serve(listener, self.router(), shutdown).await;
    }

    fn router(self) -> Router {
        let mut router = Router::new();
        let paths: Vec<&str> = PATHS.into_iter().chain(self.pages.iter().map(|(path, _)| *path)).collect();
        let paths = format!("there is no such page; these exist: {}\n", paths.join(" "));
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
            .fallback(move || std::future::ready((StatusCode::NOT_FOUND, paths)))
            .with_state(self)
    }
}

/// Binds `address` through `bind`, which tests replace by a host without IPv6.
async fn bind_by(
    bind: impl AsyncFn(SocketAddr) -> io::Result<TcpListener>,
    address: SocketAddr,
) -> Result<TcpListener> {
    let bound = match bind(address).await {
        Err(source) => match ipv4_fallback(address, &source) {
            Some(ipv4) => bind(ipv4).await,
            None => Err(source),
        },
        bound => bound,
    };
    bound.with_context(|| format!("--admin {address}: cannot listen; choose another address or port"))
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

/// Answers `/metrics`: one client at a time, and on a blocking thread, so that a long answer delays
/// no probe.
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
    // Log the change before it takes effect, and past the current filter if that hides warnings.
    // The record of who silenced the log must not depend on the filter.
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

const FORBIDDEN: &str = "only clients on the program's host may set the log filter, for example through \
                         kubectl port-forward; --admin-allow-logging allows other clients\n";

/// Returns the text of a request's body. Refuses bodies that are late, too long or not UTF-8.
async fn text(body: Body) -> Result<String, (StatusCode, String)> {
    let refused = |status, reason: &str| (status, format!("{reason}\n"));
    let body = timeout(BODY_TIME, to_bytes(body, MAX_BODY)).await;
    let body = body
        .map_err(|_| refused(StatusCode::REQUEST_TIMEOUT, "the request's body did not arrive within 2 s"))?;
    let too_long = |_| refused(StatusCode::PAYLOAD_TOO_LARGE, "a log filter has at most 4096 bytes");
    let not_text = |_| refused(StatusCode::BAD_REQUEST, "a log filter must be UTF-8");
    String::from_utf8(body.map_err(too_long)?.into()).map_err(not_text)
}

#[cfg(test)]
mod tests;
