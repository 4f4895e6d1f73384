//! Keeps the webhook's certificate and its configuration in order.
//!
//! Every few seconds it reads the MutatingWebhookConfiguration and the Secret, or the files of
//! `--tls-cert` and `--tls-key`. The leader makes certificates ([`Store::step`]) and writes the
//! configuration. All replicas serve what they find.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail};
use arc_swap::ArcSwapOption;
use http::Uri;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use multinet_pem::CertifiedKeyError;
use multinet_runtime::{Leadership, Readiness, ReadyGuard, TerminalSafe};
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::certificate::Store;
use crate::limits::writes::{CERTIFICATE_INTERVAL, REQUEST_TIME};
use crate::metrics::Metrics;

/// Name of the webhook in the configuration.
pub const WEBHOOK: &str = "vertices.multinetwork.numaproj.io";

/// Key of the Secret's data.
const DATA: &str = "certificates.json";

/// Certificate that handshakes present now; none until one is known.
#[derive(Debug, Default)]
pub struct Current(ArcSwapOption<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

/// Settings of the keeper.
#[derive(Clone, Debug)]
pub struct KeeperConfig {
    /// Name of the MutatingWebhookConfiguration.
    pub configuration: String,
    /// Namespace and name of the Secret.
    pub secret: (String, String),
    /// Files with a certificate and its key, instead of the Secret.
    pub files: Option<(PathBuf, PathBuf)>,
    /// Lifetime of certificates that it makes.
    pub lifetime: Duration,
    /// Whether Numaflow's writes have to wait while the webhook is down.
    pub fail_closed: bool,
}

/// Task that keeps certificate and configuration in order.
pub struct Keeper {
    /// Client for the API server.
    pub client: Client,
    /// Settings.
    pub config: KeeperConfig,
    /// Permission to write.
    pub leadership: Leadership,
    /// Certificate that the server presents.
    pub current: Arc<Current>,
    /// Whether the cluster has the webhook's configuration.
    pub has_webhook: Arc<AtomicBool>,
    /// Readiness of the process, for notes about problems.
    pub readiness: Readiness,
    /// Metrics of the program.
    pub metrics: Metrics,
}

impl Keeper {
    /// Runs until `shutdown`. Releases `ready` once a certificate is served, or no webhook is
    /// configured.
    pub async fn run(self, ready: ReadyGuard, shutdown: CancellationToken) {
        let mut ready = Some(ready);
        let mut served = Vec::new();
        let (mut last, mut said) = (String::new(), String::new());
        let mut ticks = interval(CERTIFICATE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut leadership = self.leadership.clone();
        loop {
            let leads = leadership.is_leader();
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
                // A new leader makes the first certificate at once.
                () = leadership.changed(leads) => {}
            }
            let Some(checked) = shutdown.run_until_cancelled(self.check(&mut served)).await else { return };
            let problem = checked.err().map(|error| format!("{error:#}")).unwrap_or_default();
            if problem.is_empty() {
                drop(ready.take());
                self.readiness.note("webhook", None);
            } else {
                match &ready {
                    Some(ready) => ready.waiting_for(&problem),
                    None => self.readiness.note("webhook", Some(problem.clone())),
                }
            }
            // A replica that starts meets problems that the leader is about to solve.
            if problem == last && problem != said {
                match problem.as_str() {
                    "" => tracing::info!("the webhook's certificate and configuration are in order"),
                    problem => tracing::warn!("{}; trying again", TerminalSafe(problem)),
                }
                said.clone_from(&problem);
            }
            last = problem;
        }
    }

    /// Does everything that is due. `served` is the PEM of the certificate and key that are served.
    async fn check(&self, served: &mut Vec<u8>) -> Result<()> {
        let configurations = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        let name = &self.config.configuration;
        let found = within(configurations.get_opt(name)).await;
        let found = found.with_context(|| format!("cannot read MutatingWebhookConfiguration {name}"))?;
        if self.has_webhook.swap(found.is_some(), Ordering::Relaxed) && found.is_none() {
            tracing::info!("MutatingWebhookConfiguration {name} is gone: nothing is injected from now on");
        }
        let Some(found) = found else { return Ok(()) };
        let webhook = found.webhooks.iter().flatten().find(|webhook| webhook.name == WEBHOOK);
        let webhook = webhook.with_context(|| {
            format!("MutatingWebhookConfiguration {name} has no webhook {WEBHOOK}; apply the manifest again")
        })?;
        let trusted = match &self.config.files {
            Some((certificate, key)) => {
                self.serve_files(certificate.clone(), key.clone(), served).await?;
                None
            }
            None => Some(self.serve_secret(webhook, served).await?),
        };
        if self.leadership.is_leader()
            && let Some(patch) = patch(webhook, trusted.as_deref(), self.config.fail_closed)
        {
            let patch = Patch::Strategic(patch);
            let patched = within(configurations.patch(name, &PatchParams::default(), &patch)).await;
            patched.with_context(|| format!("cannot write MutatingWebhookConfiguration {name}"))?;
            tracing::info!("wrote MutatingWebhookConfiguration {name}");
        }
        Ok(())
    }

    /// Serves the certificate of the files.
    async fn serve_files(&self, certificate: PathBuf, key: PathBuf, served: &mut Vec<u8>) -> Result<()> {
        // Reading may block, on a network file system even forever.
        let read = tokio::task::spawn_blocking(move || {
            let read = |flag: &str, path: &PathBuf| {
                multinet_pem::read(path).map_err(|problem| anyhow!("{flag} {}: {problem}", path.display()))
            };
            Ok::<_, anyhow::Error>((
                read("--tls-cert", &certificate)?,
                read("--tls-key", &key)?,
                certificate,
                key,
            ))
        });
        let (chain, secret, certificate, key) = read.await??;
        self.install(&chain, &secret, served).map_err(|error| match error {
            CertifiedKeyError::Certificate(problem) => {
                anyhow!("--tls-cert {}: {problem}", certificate.display())
            }
            CertifiedKeyError::Key(problem) => anyhow!("--tls-key {}: {problem}", key.display()),
        })
    }

    /// Serves the certificate of the Secret, which the leader writes where that is due. Returns the
    /// certificates to trust.
    async fn serve_secret(&self, webhook: &MutatingWebhook, served: &mut Vec<u8>) -> Result<String> {
        let names = vec![host(webhook)?];
        let (namespace, name) = &self.config.secret;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        let place = || format!("Secret {namespace}/{name}");
        let known =
            within(secrets.get_opt(name)).await.with_context(|| format!("cannot read {}", place()))?;
        let data = known.as_ref().and_then(|secret| secret.data.as_ref()?.get(DATA));
        // A Secret that is not ours to read is written anew.
        let mut store: Store = data.and_then(|data| serde_json::from_slice(&data.0).ok()).unwrap_or_default();
        if self.leadership.is_leader() {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
            let next = store.step(&names, now, self.config.lifetime.as_secs());
            let next = next.with_context(|| format!("cannot make a certificate for {}", names[0]))?;
            if let Some(next) = next {
                write(&secrets, name, known, &next)
                    .await
                    .with_context(|| format!("cannot write {}", place()))?;
                tracing::info!("wrote a new certificate for {} to {}", names[0], place());
                store = next;
            }
        }
        let Some(current) = &store.current else {
            bail!("{} has no certificate yet, which the leader makes", place())
        };
        self.install(current.certificate.as_bytes(), current.key.as_bytes(), served).map_err(|error| {
            let (CertifiedKeyError::Certificate(problem) | CertifiedKeyError::Key(problem)) = error;
            anyhow!("{} {problem}; delete it, and the leader makes another", place())
        })?;
        self.metrics.certificate_end.set(current.end() as f64);
        Ok(store.trusted)
    }

    /// Serves a certificate from now on, if it is another one.
    fn install(&self, chain: &[u8], key: &[u8], served: &mut Vec<u8>) -> Result<(), CertifiedKeyError> {
        let both = [chain, key].concat();
        if *served != both {
            let file = std::path::Path::new("the certificate");
            let certified = multinet_pem::certified_key(&ring::default_provider(), (file, chain), key)?;
            self.current.0.store(Some(Arc::new(certified)));
            *served = both;
        }
        Ok(())
    }
}

/// Writes the contents of the Secret. Fails if another replica wrote it since it was read.
async fn write(secrets: &Api<Secret>, name: &str, known: Option<Secret>, store: &Store) -> Result<()> {
    let data = BTreeMap::from([(DATA.to_owned(), ByteString(serde_json::to_vec(store)?))]);
    let params = PostParams::default();
    match known {
        Some(mut secret) => {
            secret.data = Some(data);
            within(secrets.replace(name, &params, &secret)).await?;
        }
        None => {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let secret = Secret { metadata, data: Some(data), ..Secret::default() };
            within(secrets.create(&params, &secret)).await?;
        }
    }
    Ok(())
}

/// Returns the name or address by which API servers call the webhook.
fn host(webhook: &MutatingWebhook) -> Result<String> {
    let config = &webhook.client_config;
    match (&config.service, &config.url) {
        (Some(service), _) => Ok(format!("{}.{}.svc", service.name, service.namespace)),
        (None, Some(url)) => {
            let host = url.parse::<Uri>().ok().and_then(|url| url.host().map(str::to_owned));
            let host = host.map(|host| host.trim_matches(['[', ']']).to_owned());
            host.with_context(|| {
                format!("the webhook {WEBHOOK} has the URL {url}, without a host; correct it")
            })
        }
        (None, None) => bail!("the webhook {WEBHOOK} has neither service nor URL; apply the manifest again"),
    }
}

/// Returns the strategic merge patch that gives the webhook these certificates to trust, and its
/// failure policy; `None` if it has them. Without certificates, another program writes them.
fn patch(webhook: &MutatingWebhook, trusted: Option<&str>, fail_closed: bool) -> Option<Value> {
    let policy = if fail_closed { "Fail" } else { "Ignore" };
    let known = webhook.client_config.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice());
    let is_trusted = trusted.is_none_or(|trusted| known == Some(trusted.as_bytes()));
    if is_trusted && webhook.failure_policy.as_deref() == Some(policy) {
        return None;
    }
    let mut change = json!({"name": WEBHOOK, "failurePolicy": policy});
    if let Some(trusted) = trusted {
        change["clientConfig"] = json!({"caBundle": ByteString(trusted.as_bytes().to_vec())});
    }
    Some(json!({"webhooks": [change]}))
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T> {
    let answer = timeout(REQUEST_TIME, request).await;
    Ok(answer.map_err(|_| anyhow!("no answer within {} s", REQUEST_TIME.as_secs()))??)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(value: Value) -> MutatingWebhook {
        let mut all = json!({"name": WEBHOOK, "admissionReviewVersions": ["v1"], "sideEffects": "None"});
        all["clientConfig"] = value;
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn the_certificate_is_for_the_host_that_the_configuration_names() {
        for (config, wanted) in [
            (json!({"service": {"name": "a", "namespace": "b"}}), "a.b.svc"),
            (json!({"url": "https://127.0.0.1:9443/vertices"}), "127.0.0.1"),
            (json!({"url": "https://[::1]:9443/vertices"}), "::1"),
        ] {
            assert_eq!(host(&webhook(config)).unwrap(), wanted);
        }
        assert!(host(&webhook(json!({}))).unwrap_err().to_string().contains("neither service nor URL"));
    }

    #[test]
    fn the_configuration_is_written_only_if_it_differs() {
        let mut known = webhook(json!({"service": {"name": "a", "namespace": "b"}}));
        let all = json!({"name": WEBHOOK, "failurePolicy": "Ignore", "clientConfig": {"caBundle": "UEVN"}});
        assert_eq!(patch(&known, Some("PEM"), false), Some(json!({"webhooks": [all]})));
        known.client_config.ca_bundle = Some(ByteString(b"PEM".to_vec()));
        known.failure_policy = Some("Fail".to_owned());
        assert_eq!(patch(&known, Some("PEM"), true), None);
        let policy = json!({"name": WEBHOOK, "failurePolicy": "Ignore"});
        // cert-manager writes the certificates to trust.
        assert_eq!(patch(&known, None, true), None);
        assert_eq!(patch(&known, None, false), Some(json!({"webhooks": [policy]})));
    }
}
