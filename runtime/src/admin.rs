//! The endpoints for operators: probes, metrics, state, log level.
//!
//! | path | answers |
//! |---|---|
//! | `/livez`, `/health` | 200 `ok` as long as the process runs, also while it drains |
//! | `/readyz`, `/ready` | 200 `ok`, or 503 with a line `name: reason` for everything that is waited for |
//! | `/metrics` | OpenMetrics text |
//! | pages of the binary's own, such as `/debug/state` | JSON |
//! | `/logging` | GET: the log filter; PUT or POST with a filter as body or `?level=`: sets it |
//!
//! Nobody has to prove who they are here, and the log level can be set: the port belongs behind a NetworkPolicy.
//! What a stranger on it can cost is bounded (see [`connections`] and [`page`](mod@page)): slow clients, many clients, big requests and long pages.

mod connections;
mod page;

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
pub use page::{Page, page};
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{Escaped, LogLevel, Readiness, ipv4_instead};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Size limit of a request's body, in bytes. A log filter is short.
const MAX_BODY: usize = 4096;

/// What the admin endpoints show.
#[derive(Clone)]
pub struct Admin {
    /// For `/readyz`.
    pub readiness: Readiness,
    /// For `/metrics`.
    pub registry: Arc<Registry>,
    /// For `/logging`.
    pub log_level: LogLevel,
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
        for (path, page) in &self.pages {
            let (page, one_at_a_time) = (Arc::clone(page), Arc::new(Mutex::new(())));
            router = router.route(path, get(move || page::show(page, one_at_a_time)));
        }
        router
            .route("/livez", get(live))
            .route("/health", get(live))
            .route("/readyz", get(ready))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .route("/logging", get(log_level).put(set_log_level).post(set_log_level))
            .layer(DefaultBodyLimit::max(MAX_BODY))
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
        Err(source) => match ipv4_instead(address, &source) {
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
    let pending = admin.readiness.pending();
    if pending.is_empty() {
        return "ok".into_response();
    }
    let mut lines = String::new();
    for (name, reason) in &pending {
        let reason = reason.as_deref().unwrap_or("not ready yet");
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{}: {}", Escaped(name), Escaped(reason));
    }
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a metric cannot be encoded\n").into_response(),
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
    Query(query): Query<SetLogLevel>,
    body: String,
) -> Result<String, (StatusCode, String)> {
    let filter = query.level.as_deref().unwrap_or(&body).trim();
    match admin.log_level.set(filter) {
        Ok(()) => {
            tracing::info!(filter = %Escaped(filter), "the log filter has been set");
            Ok(format!("{filter}\n"))
        }
        Err(error) => Err((StatusCode::BAD_REQUEST, format!("{}\n", Escaped(&error.to_string())))),
    }
}

#[cfg(test)]
mod tests;
