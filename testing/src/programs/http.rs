//! HTTP requests to endpoints without a client library of their own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use reqwest::StatusCode;
use serde_json::Value;

use crate::metrics::sum;

/// Time limit of a request.
const BOUND: Duration = Duration::from_secs(10);

/// Returns a GET request for a Kubernetes client to send.
pub fn request(path: &str) -> Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get(path).body(Vec::new())?)
}

/// Returns the body at `url`. Fails if the status is not a success.
pub async fn get(url: &str) -> Result<String> {
    let (status, body) = get_any(url).await?;
    ensure!(status.is_success(), "{url}: {status}: {body}");
    Ok(body)
}

/// Returns status and body at `url`.
pub async fn get_any(url: &str) -> Result<(StatusCode, String)> {
    let response = client()?.get(url).send().await.with_context(|| format!("GET {url}"))?;
    Ok((response.status(), response.text().await?))
}

/// Returns the [sum] of a metric's samples whose names and labels begin with `prefix`.
pub async fn metric(admin: SocketAddr, prefix: &str) -> Result<u64> {
    let metrics = get(&format!("http://{admin}/metrics")).await?;
    Ok(sum(&metrics, prefix)? as u64)
}

/// Posts JSON. Returns the JSON of the answer.
pub async fn post(url: &str, body: &Value) -> Result<Value> {
    let response =
        client()?.post(url).body(body.to_string()).send().await.with_context(|| format!("POST {url}"))?;
    let (status, body) = (response.status(), response.text().await?);
    ensure!(status.is_success(), "{url}: {status}: {body}");
    Ok(serde_json::from_str(&body)?)
}

/// Posts JSON to a server whose certificate is one of `trusted`, in PEM. Returns its certificate,
/// and the JSON of the answer.
pub async fn post_trusting(url: &str, trusted: &[u8], body: &Value) -> Result<(Vec<u8>, Value)> {
    let mut builder = builder().tls_info(true);
    for certificate in reqwest::Certificate::from_pem_bundle(trusted)? {
        builder = builder.add_root_certificate(certificate);
    }
    let request = builder.build()?.post(url).body(body.to_string());
    let response = request.send().await.with_context(|| format!("POST {url}"))?;
    let info = response.extensions().get::<reqwest::tls::TlsInfo>();
    let certificate = info.and_then(|info| info.peer_certificate()).context("no certificate")?.to_vec();
    let (status, body) = (response.status(), response.text().await?);
    ensure!(status.is_success(), "{url}: {status}: {body}");
    Ok((certificate, serde_json::from_str(&body)?))
}

fn client() -> Result<reqwest::Client> {
    Ok(builder().build()?)
}

fn builder() -> reqwest::ClientBuilder {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().timeout(BOUND)
}
