//! A real etcd of a test's own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;
use crate::pki::{Certificate, FileAuthority};
use crate::process::{Process, free_port};
use crate::tools::tool;

/// Time limit to start. It takes a second, but the machine may be busy.
const START: Duration = Duration::from_secs(60);

/// Running etcd on loopback: by HTTP, and by HTTPS for clients with a certificate.
#[derive(Debug)]
pub struct Etcd {
    // Before the folder that it writes to, so that the process is dropped first.
    process: Option<Process>,
    ports: [u16; 3],
    authority: FileAuthority,
    server: Certificate,
    folder: TempDir,
}

impl Etcd {
    /// Starts etcd without keys, and waits until it is healthy.
    pub async fn start() -> Result<Self> {
        let folder = TempDir::with_prefix("multinet-etcd-")?;
        let authority = FileAuthority::new(folder.path())?;
        let server = authority.server("etcd.example.com")?;
        let ports = [free_port()?, free_port()?, free_port()?];
        let mut etcd = Self { process: None, ports, authority, server, folder };
        etcd.start_again().await?;
        Ok(etcd)
    }

    /// Starts etcd again with the keys that it had.
    pub async fn start_again(&mut self) -> Result<()> {
        self.kill()?;
        let [_, _, peer] = self.ports;
        let (clients, peer) =
            (format!("{},{}", self.url(), self.secure_url()), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new(tool("etcd")?);
        command
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .arg("--cert-file")
            .arg(&self.server.cert)
            .arg("--key-file")
            .arg(&self.server.key)
            .arg("--trusted-ca-file")
            .arg(self.authority.ca())
            .args(["--client-cert-auth", "--unsafe-no-fsync", "--log-level", "warn"]);
        let mut process = Process::spawn(&mut command, &self.folder.path().join("etcd.log"))?;
        let health = format!("{}/health", self.url());
        process.until("be healthy", START, async || http::get(&health).await.map(drop)).await?;
        self.process = Some(process);
        Ok(())
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.kill())
    }

    /// Returns the URL without TLS.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Returns the URL with TLS, for clients with a certificate.
    pub fn secure_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports[1])
    }

    /// Returns the file with the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.authority.ca()
    }

    /// Issues a certificate for a client.
    pub fn client(&self, name: &str) -> Result<Certificate> {
        self.authority.client(name, "clients")
    }

    /// Puts a key.
    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        self.post("kv/put", &json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)}))
            .await
            .map(drop)
    }

    /// Deletes a key.
    pub async fn delete(&self, key: &str) -> Result<()> {
        self.post("kv/deleterange", &json!({"key": STANDARD.encode(key)})).await.map(drop)
    }

    /// Returns all keys that begin with `prefix`, with their values.
    pub async fn keys(&self, prefix: &str) -> Result<BTreeMap<String, String>> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let found = self
            .post("kv/range", &json!({"key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end)}))
            .await?;
        let text = |field: &Value| -> Result<String> {
            Ok(String::from_utf8(STANDARD.decode(field.as_str().unwrap_or_default())?)?)
        };
        let all = found["kvs"].as_array().into_iter().flatten();
        all.map(|found| Ok((text(&found["key"])?, text(&found["value"])?))).collect()
    }

    /// Sends a request to the gateway, such as `kv/range`.
    pub async fn post(&self, method: &str, body: &Value) -> Result<Value> {
        http::post(&format!("{}/v3/{method}", self.url()), body).await.with_context(|| method.to_owned())
    }
}
